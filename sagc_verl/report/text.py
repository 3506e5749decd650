"""Text from data, made safe to show."""

from __future__ import annotations


def visible(text: object) -> str:
    """Text that is safe to print on a terminal: what is not printable (escape codes, line breaks) becomes "?"."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))
