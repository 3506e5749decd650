"""Errors of the records, each with a message of one line."""

from __future__ import annotations


class RecordsError(Exception):
    """The records asked for are not there or cannot be read by this version."""


class ImportLogError(RecordsError):
    """A log holds no steps that could be imported, or cannot be opened."""
