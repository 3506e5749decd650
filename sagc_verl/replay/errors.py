"""Errors that the user can act on, one line each."""

from __future__ import annotations


class SourceError(ValueError):
    """Lengths or timings cannot be used as they are; the message names the file and what is wrong."""
