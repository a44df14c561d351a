"""Errors meant for the person at the keyboard: one clear line each, no traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right. The message says what is wrong, where, and what to do."""
