"""Errors that the user can act on."""

from __future__ import annotations


class UserError(ValueError):
    """Something in the request is wrong. The text is shown as it is, on one line, and the exit code is 2."""
