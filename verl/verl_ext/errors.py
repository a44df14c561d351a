"""Errors of libraries and of other processes, in one line."""

from __future__ import annotations


def last_line(error: Exception) -> str:
    """What went wrong, without the traceback that Ray adds to a worker's error."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()


def cause_line(error: Exception) -> str:
    """Type and first line of an error, of what was raised in the other process where it came from one."""
    from ray.exceptions import RayTaskError  # here: checkpoints are read where there is no Ray

    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
