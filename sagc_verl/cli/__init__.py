"""The command line `sagc-verl`.

Exit codes: 0 fine; 1 the command found a problem; 2 the request or its input is wrong; 3 a fault of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sagc_verl.cli.commands import COMMANDS, load_function
from sagc_verl.records.errors import RecordsError
from sagc_verl.report.text import visible

FOUND_A_PROBLEM = 1
BAD_REQUEST = 2
OUR_FAULT = 3
TRACEBACK_VARIABLE = "SAGC_VERL_TRACEBACK"

_EPILOG = """
\b
Examples:
  sagc-verl summary outputs/my_run
  sagc-verl compare outputs/static outputs/sagc --html report.html
  sagc-verl export outputs/my_run --table steps --out steps.csv
  sagc-verl COMMAND --help     what one command does, with examples
"""


class LazyGroup(TyperGroup):
    """Lists every command from a table, imports one only when it is used, and keeps errors to one line."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.summary), name)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
            holder.command(name)(load_function(name))
            command = typer.main.get_command(holder)
        return name, command, rest

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:
        if not extra.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **extra)
        if os.environ.get(TRACEBACK_VARIABLE):
            sys.exit(super().main(args, prog_name, standalone_mode=False, **extra) or 0)
        sys.exit(self._one_line_on_error(args, prog_name, extra))

    def _one_line_on_error(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()
            return int(code or 0)
        except BrokenPipeError:
            return _reader_went_away()
        except SystemExit as stop:  # typer's own answer to a closed pipe
            return _reader_went_away() if isinstance(stop.__context__, BrokenPipeError) else int(stop.code or 0)
        except typer.Abort:
            return _complain("stopped", FOUND_A_PROBLEM)
        except (ValueError, OSError, RecordsError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                return _reader_went_away()
            return _complain(_plain(error), BAD_REQUEST)
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                return BAD_REQUEST  # the help text has been printed
            if hasattr(error, "format_message"):  # what typer raises for a wrong option, argument or command
                where = getattr(getattr(error, "ctx", None), "command_path", None) or "sagc-verl"
                return _complain(f"{error.format_message()}  (try: {where} --help)", BAD_REQUEST)  # type: ignore[attr-defined]
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return _complain(f"a fault of ours: {text}  (set {TRACEBACK_VARIABLE}=1 to see where)", OUR_FAULT)


def _plain(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def _complain(text: str, code: int) -> int:
    print("sagc-verl: " + visible(" ".join(text.split())), file=sys.stderr)
    return code


def _reader_went_away() -> int:
    # Python flushes stdout at exit and would complain a second time: give it somewhere to flush to.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"sagc-verl {version('sagc-verl')}")
    except PackageNotFoundError:
        typer.echo("sagc-verl (version unknown: run from a source tree that is not installed)")
    raise typer.Exit()


app = typer.Typer(cls=LazyGroup, add_completion=True, no_args_is_help=True, rich_markup_mode="rich", epilog=_EPILOG)


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Straggler-aware group sizing for veRL: look at runs, compare them, plan them."""


def main() -> None:
    """The console script `sagc-verl`."""
    app(prog_name="sagc-verl")
