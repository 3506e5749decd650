"""The table of commands and how one is fetched: a command's module is imported only when the command is used."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sagc_verl.cli.errors import UserError


@dataclass(frozen=True)
class CommandEntry:
    """One line of the command list.

    Attributes:
        module: the module that defines the command as one plain function.
        summary: what `sagc-verl --help` says of it (repeated here so that listing imports nothing).
    """

    module: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "summary": CommandEntry("sagc_verl.cli.summary", "One run, in the terminal."),
    "compare": CommandEntry("sagc_verl.cli.compare", "Runs side by side: a table, and one HTML report."),
    "export": CommandEntry("sagc_verl.cli.export", "A table of a run as csv, parquet or json lines."),
    "trace": CommandEntry("sagc_verl.cli.trace", "A step's rollouts on a timeline (Perfetto, chrome://tracing)."),
    "import-log": CommandEntry("sagc_verl.cli.import_log", "A veRL console or file log as a steps table."),
    "replay": CommandEntry("sagc_verl.cli.replay", "What would SAGC have done? From lengths on record."),
    "tune": CommandEntry("sagc_verl.cli.tune", "Which threshold, budget and sizes suit this workload."),
    "sweep": CommandEntry("sagc_verl.cli.sweep", "The same training under several settings and seeds."),
    "doctor": CommandEntry("sagc_verl.cli.doctor", "Is everything installed, loaded and as expected?"),
}


def load_function(name: str) -> Callable[..., Any]:
    """The function behind the command `name`.

    Raises:
        UserError: the module is not part of this installation, or a package it needs is missing.
    """
    entry = COMMANDS[name]
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name == entry.module:
            raise UserError(
                f"the command {name!r} is not part of this installation ({entry.module} is missing)"
            ) from None
        raise UserError(
            f"the command {name!r} needs the Python package {error.name!r}, which is not installed"
        ) from None
    return _only_function(module)


def _only_function(module: ModuleType) -> Callable[..., Any]:
    short = module.__name__.rpartition(".")[2]
    named = getattr(module, short, None)
    if callable(named):
        return named
    own = [
        member
        for member_name, member in vars(module).items()
        if inspect.isfunction(member) and member.__module__ == module.__name__ and not member_name.startswith("_")
    ]
    if len(own) != 1:
        raise RuntimeError(f"{module.__name__} must expose one public function, has {len(own)}")
    return own[0]
