"""RecordWriter: records a run from one background thread, and never stands in the way of training.

What happens when the disk fails: nothing raises. The first fault is logged as a warning, every fault is counted, the
steps that could not be written wait in memory and are tried again (after 1 s, then twice as long each time, up to a
minute; once the run has ended, until two seconds pass without success). The same holds when the disk is only slow.
Nothing is dropped until the waiting steps hold MAX_PENDING_BYTES; then the oldest go, are counted in `dropped`, and are
warned about once.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagc_verl.records import compact, layout, runinfo
from sagc_verl.records.errors import RecordsError
from sagc_verl.records.parquet import table_of_rows, table_of_step, write_file

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 512 * 2**20
SLOW_DISK_S = 120.0
LONGEST_WAIT_S = 60.0
CLOSING_PATIENCE_S = 2.0
"""Once the run has ended: how long without success until each waiting step gets one last try."""


@dataclass(frozen=True)
class _Step:
    step: int
    rollouts: Mapping[str, Any]
    groups: Mapping[str, Any]
    row: Mapping[str, Any]
    nbytes: int
    since: float


class RecordWriter:
    """Writes `<directory>/run.json` and the three tables, one file per step and table, compacted now and then.

    directory: the records folder itself, by custom `<run dir>/sagc`.
    run_info: goes to the top of run.json; keys of use: `config` (resolved, plain containers), `command`, `name`,
        `versions`, `host`. Versions, host, command and start time are filled in where absent.
    resume_step: the step of the checkpoint the run goes on from; None or 0 from the start. Steps of earlier attempts
        after it become a dead branch.

    No method raises. `faults` counts what went wrong, `dropped` the steps given up, `attempt` numbers this start.
    """

    FIRST_WAIT_S = 1.0

    def __init__(self, directory: str | Path, run_info: Mapping[str, Any], resume_step: int | None = None) -> None:
        self.directory = Path(directory)
        self.faults = 0
        self.dropped = 0
        self.attempt = 1
        self._pending: deque[_Step] = deque()
        self._pending_bytes = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._give_up_at = 0.0
        self._warned: set[str] = set()
        self._run_info: dict[str, Any] = {}
        self._told_run = False
        self._earlier: list[int] = []
        self._written = 0
        self._compacted_to = 0
        self._enabled = True
        self._thread = threading.Thread(target=self._work, name="sagc-records", daemon=True)
        try:
            self._open(run_info, int(resume_step or 0))
            self._thread.start()
            atexit.register(self.close, 10.0)
        except Exception as error:  # whatever it is, training must go on
            self._fault("open", f"records: cannot start in {self.directory}: {error}; training goes on without them")
            self._enabled = False

    @property
    def pending(self) -> int:
        """Steps handed over and not yet on disk."""
        return len(self._pending)

    def write_step(
        self,
        step: int,
        rollouts: Mapping[str, ArrayLike],
        groups: Mapping[str, ArrayLike],
        step_row: Mapping[str, Any],
    ) -> None:
        """Hand over one step; returns at once.

        rollouts, groups: column -> values, one per row, or one scalar for all rows; names as in tables.py, missing ones
            become null. step and attempt are filled in.
        step_row: the fixed columns of the steps table by name, and any other scalar (metrics) under its own name.
        The arrays must not be changed afterwards.
        """
        if not self._enabled or self._closing.is_set():
            return
        try:
            nbytes = _size(rollouts) + _size(groups)
            job = _Step(int(step), dict(rollouts), dict(groups), dict(step_row), nbytes, time.monotonic())
        except Exception as error:
            self._fault("hand-over", f"records: step {step} cannot be recorded: {error}; training goes on")
            return
        with self._changed:
            self._pending.append(job)
            self._pending_bytes += job.nbytes
            while self._pending_bytes > MAX_PENDING_BYTES and len(self._pending) > 1:
                self._pending_bytes -= self._pending.popleft().nbytes
                self.dropped += 1
            self._changed.notify()
            waited = job.since - self._pending[0].since
        if waited > SLOW_DISK_S:
            self._warn("slow", f"records: steps have waited {waited:.0f} s for the disk of {self.directory}, in memory")
        if self.dropped:
            self._warn("dropped", f"records: the disk of {self.directory} cannot keep up, oldest steps are dropped")

    def close(self, timeout: float = 30.0) -> None:
        """Write what is pending, waiting at most `timeout` seconds; further steps are ignored. Twice does no harm."""
        atexit.unregister(self.close)
        with self._changed:
            if not self._closing.is_set():
                self._give_up_at = time.monotonic() + CLOSING_PATIENCE_S
            self._closing.set()
            self._changed.notify()
        if self._enabled:
            self._thread.join(timeout)
        lost = self.pending
        if lost:
            self._warn("lost", f"records: {lost} steps could not be written to {self.directory}")

    # Everything below runs in the background thread, but for _open and the counters.

    def _open(self, run_info: Mapping[str, Any], resume_step: int) -> None:
        try:
            previous = runinfo.read_run_info(self.directory)
        except RecordsError as error:
            if "pip install" in str(error):
                raise
            self._fault("run.json", f"records: {error}; it is kept as {layout.RUN_FILE}.unreadable")
            (self.directory / layout.RUN_FILE).replace(self.directory / f"{layout.RUN_FILE}.unreadable")
            previous = {}
        resumes = runinfo.resume_steps(previous)
        files = [file for table in layout.TABLE_NAMES for file in layout.list_files(self.directory / table)[0]]
        self._earlier = sorted({*resumes, *(file.attempt for file in files)})
        self.attempt = max(self._earlier, default=0) + 1
        self._run_info = runinfo.next_run_info(previous, run_info, self.attempt, resume_step)
        self._write_run_info()

    def _write_run_info(self) -> None:
        """Write run.json where this attempt's is not there: at first, and after the folder was deleted in mid-run."""
        if self._told_run and (self.directory / layout.RUN_FILE).exists():
            return
        try:
            runinfo.write_run_info(self.directory, self._run_info)
        except OSError as error:
            self._disk_fault(error)
        else:
            self._told_run = True

    def _work(self) -> None:
        self._tidy()
        wait = self.FIRST_WAIT_S
        while (job := self._next()) is not None:
            try:
                self._write_run_info()
                self._write(job)
            except OSError as error:
                self._disk_fault(error)
                if not self._closing.is_set():
                    self._closing.wait(wait)
                    wait = min(2 * wait, LONGEST_WAIT_S)
                elif time.monotonic() < self._give_up_at:
                    time.sleep(0.05)
                else:
                    self._give_up(job)
            except Exception as error:
                self._fault("step", f"records: step {job.step} cannot be recorded: {error!r}; training goes on")
                self._done(job)
            else:
                self._done(job)
                wait = self.FIRST_WAIT_S
                self._give_up_at = time.monotonic() + CLOSING_PATIENCE_S
                self._compact()

    def _next(self) -> _Step | None:
        with self._changed:
            while not self._pending:
                if self._closing.is_set():
                    return None
                self._changed.wait()
            return self._pending[0]

    def _done(self, job: _Step) -> None:
        with self._changed:
            # It is gone already where the queue was full and dropped it while it was being written.
            if self._pending and self._pending[0] is job:
                self._pending.popleft()
                self._pending_bytes -= job.nbytes

    def _give_up(self, job: _Step) -> None:
        self._done(job)
        self.dropped += 1

    def _write(self, job: _Step) -> None:
        if job.step <= self._compacted_to:
            raise ValueError(f"step {job.step} comes after step {self._compacted_to}")
        # The steps row goes last: where it is there, the step is whole.
        tables = {
            "rollouts": table_of_rows("rollouts", job.rollouts, job.step, self.attempt, self._note),
            "groups": table_of_rows("groups", job.groups, job.step, self.attempt, self._note),
            "steps": table_of_step(job.row, job.step, self.attempt, self._note),
        }
        for name, table in tables.items():
            path = self.directory / name / layout.file_name(job.step, job.step, self.attempt)
            write_file(path, table.schema, [table], compress=len(table) > 1)

    def _tidy(self) -> None:
        """Remove temporary files of killed processes and merge what earlier attempts left in single steps."""
        for name in layout.TABLE_NAMES:
            folder = self.directory / name
            try:
                for path in folder.glob(f"{layout.TEMP_PREFIX}*"):
                    path.unlink(missing_ok=True)
                for attempt in self._earlier:
                    compact.compact_attempt(folder, attempt)
            except Exception as error:
                self._fault("compact", f"records: files in {folder} could not be merged: {error}")

    def _compact(self) -> None:
        self._written += 1
        if self._written % compact.STEPS_PER_FILE:
            return
        for name in layout.TABLE_NAMES:
            folder = self.directory / name
            try:
                if compact.compact_table(folder, self.attempt):
                    last = [file.last for file in layout.list_files(folder)[0] if file.attempt == self.attempt]
                    self._compacted_to = max(last, default=0)
            except Exception as error:
                self._fault("compact", f"records: files in {folder} could not be merged: {error}")

    def _note(self, message: str) -> None:
        self._fault(message.split(":")[0], f"records: {message}")

    def _disk_fault(self, error: OSError) -> None:
        self._fault("disk", f"records: cannot write to {self.directory}: {error}; training goes on, will try again")

    def _fault(self, key: str, message: str) -> None:
        self.faults += 1
        self._warn(key, message)

    def _warn(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(message)


def _size(rows: Mapping[str, Any]) -> int:
    """About how many bytes a table's columns hold; only there to bound the queue."""
    return sum(
        getattr(values, "nbytes", None) or 60 * (len(values) if hasattr(values, "__len__") else 1)
        for values in rows.values()
    )
