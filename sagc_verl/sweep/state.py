"""What has become of a run: its state file, its lock, and what its records tell."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from sagc_verl.sweep.plan import PlannedRun
from sagc_verl.sweep.spec import SweepError

STATE_FILE = "sweep_run.json"
LOCK_FILE = "sweep_run.lock"
MEANS_FILE = "sweep_means.json"

Status = Literal["pending", "submitted", "running", "interrupted", "failed", "finished"]


@dataclass(frozen=True)
class RunState:
    """A run as its state file tells it.

    Attributes:
        status: pending: never started; submitted: handed to a cluster, not started yet; running; interrupted: stopped
            by the user, or the machine went away; failed: the script ended with an error; finished.
        attempts: how often it was started.
        code: the script's exit code, negative for a signal.
        started, ended: unix seconds of the last attempt.
        command: the shell line of the last attempt.
        where: host and process of the last attempt.
    """

    status: Status = "pending"
    attempts: int = 0
    code: int | None = None
    started: float | None = None
    ended: float | None = None
    command: str = ""
    where: str = ""

    def seconds(self) -> float | None:
        """Duration of the last attempt."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started


def read_state(run: PlannedRun) -> RunState:
    """The run's state. A run that no state file calls finished counts as such where its records reach the last step."""
    state = _read_file(run.directory / STATE_FILE)
    if state.status == "running" and not _is_locked(run):
        state = replace(state, status="interrupted")  # whoever ran it is gone
    if state.status in ("pending", "submitted", "interrupted") and _records_complete(run):
        state = replace(state, status="finished")
    return state


def write_state(run: PlannedRun, state: RunState) -> None:
    """Writes the state file aside and renames."""
    _write_json(run.directory / STATE_FILE, asdict(state))


def started(run: PlannedRun, before: RunState) -> RunState:
    """The state of a run that starts now."""
    return RunState(
        status="running",
        attempts=before.attempts + 1,
        started=time.time(),
        command=run.shell_line(),
        where=f"{socket.gethostname()}, process {os.getpid()}",
    )


def ended(state: RunState, status: Status, code: int | None) -> RunState:
    """The state of a run that ends now."""
    return replace(state, status=status, code=code, ended=time.time())


@contextmanager
def run_lock(run: PlannedRun) -> Iterator[bool]:
    """Holds the run for this process; False where another one holds it. The system frees it when a process dies."""
    import fcntl

    run.directory.mkdir(parents=True, exist_ok=True)
    with (run.directory / LOCK_FILE).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass  # a file system without locks: two sweeps on one folder are then the user's to avoid
        yield True


def mean_size(runs: Sequence[PlannedRun]) -> float:
    """The mean group size over all steps of these runs, from their records.

    Raises:
        SweepError: a run without records.
    """
    from sagc_verl.records.errors import RecordsError
    from sagc_verl.records.reader import load_run

    sizes: list[float] = []
    for run in runs:
        try:
            column = load_run(run.directory).steps["n"].dropna()
        except (RecordsError, OSError, ValueError, KeyError) as error:
            raise SweepError(f"{run.name}: cannot read the group sizes it played ({error})") from None
        sizes += [float(n) for n in column]
    if not sizes:
        raise SweepError(f"{', '.join(run.name for run in runs)}: the records hold no step")
    return sum(sizes) / len(sizes)


def read_means(out: Path) -> dict[str, float]:
    """Means settled by an earlier call: once sizes around a mean have been run, they stay."""
    try:
        return {str(name): float(mean) for name, mean in json.loads((out / MEANS_FILE).read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def write_means(out: Path, means: dict[str, float]) -> None:
    """Settles the means."""
    _write_json(out / MEANS_FILE, means)


def _read_file(path: Path) -> RunState:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return RunState()
    except (OSError, ValueError):
        raise SweepError(f"{path}: damaged; remove it to run again") from None
    known = {item.name for item in fields(RunState)}
    return RunState(**{key: value for key, value in raw.items() if key in known})


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, path)


def _is_locked(run: PlannedRun) -> bool:
    if not (run.directory / LOCK_FILE).exists():
        return False
    with run_lock(run) as free:
        return not free


def _records_complete(run: PlannedRun) -> bool:
    """Whether the records reach trainer.total_training_steps, for runs that were started outside the sweep."""
    total = _total_steps(run)
    if total is None or not (run.directory / "sagc" / "run.json").is_file():
        return False
    from sagc_verl.records.errors import RecordsError
    from sagc_verl.records.reader import load_run

    try:
        steps = load_run(run.directory).steps["step"]
    except (RecordsError, OSError, ValueError, KeyError):
        return False
    return len(steps) > 0 and int(steps.max()) >= total


def _total_steps(run: PlannedRun) -> int | None:
    found = None
    for word in run.argv:
        match = re.fullmatch(r"\+{0,2}trainer\.total_training_steps=(\d+)", word)
        found = int(match[1]) if match else found
    return found
