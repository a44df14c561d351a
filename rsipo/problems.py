"""Errors meant for the person at the keyboard: one clear line each, no traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right. The message says what is wrong, where, and what to do."""

    exit_status = 2


class RunStopped(UserError):
    """A run ended before its end because it was asked to."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status
