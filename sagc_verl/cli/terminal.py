"""The terminal as the commands use it: tables on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 1000  # columns: a file or a pipe has no edge at which to wrap


def stdout_console() -> Console:
    """A rich console on stdout: coloured and as wide as the terminal, or plain and unwrapped in a pipe."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=PIPED_WIDTH, no_color=True, highlight=False)


@contextmanager
def progress(description: str) -> Iterator[Callable[[float], None] | None]:
    """A progress bar on stderr, to be told the share done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def print_json(value: Any) -> None:
    """Prints a value as JSON on stdout; not-a-number becomes null, so that any JSON reader accepts it."""
    import json

    print(json.dumps(finite(value), indent=2, ensure_ascii=False))


def finite(value: Any) -> Any:
    """The value with None for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(member) for member in value]
    return value
