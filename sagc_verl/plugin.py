"""What veRL loads: the entry point `sagc` of the group `verl.plugins` (veRL 0.9.1, verl/__init__.py).

veRL imports this module in every process that imports verl, at a moment when verl is only half imported, and swallows
whatever it raises at DEBUG level. So it uses the standard library alone, imports nothing of veRL, and only leaves word:
when `verl.trainer.ppo.v1` is imported (only processes that train do), the trainers are registered.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

COMMAND = "SAGC_COMMAND"


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs an action once, right after a module has been imported."""

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        action = self._actions.pop(fullname, None)  # popped first: the search below comes through here again
        if action is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        loader_exec = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader_exec(module)
            action()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register_trainers() -> None:
    from sagc_verl.trainer.registration import register_trainers

    register_trainers()


def _register_presets() -> None:
    from sagc_verl.conf import register_presets

    register_presets()


def _run_after_import(actions: dict[str, Callable[[], None]]) -> None:
    pending = dict(actions)
    for name in list(pending):
        if name in sys.modules:
            pending.pop(name)()
    if pending:
        sys.meta_path.insert(0, _AfterImport(pending))


def _is_driver() -> bool:
    return "verl.trainer.main_ppo" in sys.orig_argv


def _remember_command() -> None:
    """Leave the driver's command line to the processes that Ray starts: the trainer runs in one of them (run.json)."""
    if _is_driver():
        os.environ.setdefault(COMMAND, shlex.join(sys.orig_argv))


def _load() -> None:
    try:
        _remember_command()
        if os.environ.get("VERL_PLATFORM") == "cpu":
            from sagc_verl.cpu.platform import register_platform

            register_platform()
            if _is_driver():
                from sagc_verl.cpu.warm import start

                start()
        _run_after_import({"verl.trainer.ppo.v1": _register_trainers, "hydra": _register_presets})
    except Exception as error:  # veRL would hide it: say it where it is seen
        print(f"sagc_verl: the veRL plug-in could not be loaded: {error!r}", file=sys.stderr, flush=True)
        raise


_load()
