"""A helper process must not outlive the program it helps, even one that was killed."""

from __future__ import annotations

import os
import signal
import threading
import time

_POLL_S = 1.0


def end_with_parent() -> None:
    """From now on, SIGTERM to this process as soon as the one that started it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
