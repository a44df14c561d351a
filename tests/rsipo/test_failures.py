"""Faults as one line: what vLLM's engine wrote before it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsipo.failures import as_user_errors, engine_fault
from rsipo.problems import UserError

LOG = """\
(Worker pid=7) ERROR 12-01 12:12:58 [multiproc_executor.py:1000] WorkerProc hit an exception.
(Worker pid=7) ERROR 12-01 12:12:58 [multiproc_executor.py:1000] Traceback (most recent call last):
(Worker pid=7) ERROR 12-01 12:12:58 [multiproc_executor.py:1000]     raise RuntimeError("no")
(Worker pid=7) ERROR 12-01 12:12:58 [multiproc_executor.py:1000] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=6) ERROR 12-01 12:12:59 [core.py:900] RuntimeError: Worker failed with error
ERROR 12-01 12:12:59 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: See stack trace (above).
"""


def test_the_first_error_of_an_engine_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "worker-b.out").write_text(LOG)
    (tmp_path / "worker-a.out").write_text("a line without an error\n")
    assert engine_fault(tmp_path) == "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("log", "said"), [(LOG, "torch.OutOfMemoryError: CUDA out of memory."), ("", "its log does not")]
)
def test_a_dead_engine_is_one_line(log: str, said: str, tmp_path: Path) -> None:
    from ray.exceptions import RayError

    (tmp_path / "worker-a.out").write_text(log)
    with (
        pytest.raises(UserError, match=rf"a worker failed: vLLM's engine has ended: {said}.*; resume\)$"),
        as_user_errors(tmp_path, tmp_path, "resume"),
    ):
        raise RayError("traceback\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
