"""Breaks parts of a real run, or kills it, at a stated step: veRL loads `Saboteur` as its checkpoint callback.

`SAGC_SABOTAGE` holds what and when, e.g. "collect:2,save:2,kill_in_record:3". What breaks raises as a full disk or a
bug would; what kills ends the process that trains, with no chance to tidy up.
"""

from __future__ import annotations

import errno
import os
import signal

import verl.utils.fs
from e2e_probe import Probe

from sagc_verl.control.controller import Controller
from sagc_verl.records import layout, writer
from sagc_verl.trainer import session, trainer

PLAN = {what: int(step) for what, _, step in (part.partition(":") for part in os.environ["SAGC_SABOTAGE"].split(","))}
_step = 0
_left = {"record": 2}  # how often a disk fault lasts


class Saboteur(Probe):
    """The probe, with everything below in place."""


def _due(what: str) -> bool:
    return PLAN.get(what) == _step


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_on_step_begin = trainer.SagcTrainer.on_step_begin
_from_workers, _write_state, _observe = trainer.from_workers, session.write_state, Controller.observe
_write_file, _rollout_columns, _mkdir = writer.write_file, session.rollout_columns, verl.utils.fs.local_mkdir_safe


def on_step_begin(self) -> None:
    global _step
    _step = self.global_steps
    _on_step_begin(self)


def from_workers(*args, **kwargs):
    if _due("collect"):
        raise RuntimeError("sabotaged: collect")
    return _from_workers(*args, **kwargs)


def observe(self, batch):
    if _due("observe"):
        raise RuntimeError("sabotaged: observe")
    return _observe(self, batch)


def rollout_columns(*args, **kwargs):
    if _due("rows"):
        raise RuntimeError("sabotaged: rows")
    return _rollout_columns(*args, **kwargs)


def write_state(*args, **kwargs):
    if _due("save"):
        raise _no_space()
    return _write_state(*args, **kwargs)


def write_file(path, *args, **kwargs) -> None:
    """In the writer's own thread, so the step is that of the file."""
    if path.name == layout.file_name(PLAN.get("record", -1), PLAN.get("record", -1), 1) and _left["record"]:
        _left["record"] -= 1
        raise _no_space()
    killing = PLAN.get("kill_in_record", -1)
    if path.parent.name == "groups" and path.name == layout.file_name(killing, killing, 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / f"{layout.TEMP_PREFIX}half").write_bytes(b"PAR1")
        _die()
    _write_file(path, *args, **kwargs)


def local_mkdir_safe(*args, **kwargs):
    """veRL calls it once the weights are saved, before its own state and marker."""
    if _due("kill_in_checkpoint"):
        _die()
    return _mkdir(*args, **kwargs)


trainer.SagcTrainer.on_step_begin = on_step_begin
trainer.from_workers, session.write_state, session.rollout_columns = from_workers, write_state, rollout_columns
Controller.observe = observe
writer.write_file, verl.utils.fs.local_mkdir_safe = write_file, local_mkdir_safe
