"""The writer through long runs and bad disks: memory stays flat, nothing is lost, order holds."""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sagc_verl import load_run
from sagc_verl.records import compact, layout, parquet, runinfo, writer
from sagc_verl.records.writer import RecordWriter


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordWriter, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(writer, "LONGEST_WAIT_S", 0.05)


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.005)


def hand_over(records: RecordWriter, step: int, n: int = 4) -> None:
    uids = np.repeat([f"{step}-{group}" for group in range(2)], n)
    rollouts = {"uid": uids, "n": n, "response_tokens": np.arange(2 * n) + step, "status": "trained"}
    groups = {"uid": [f"{step}-0", f"{step}-1"], "n": n, "straggler": [False, True]}
    records.write_step(step, rollouts, groups, {"n": n, "time": time.time(), "actor/loss": step / 8})


def whole(directory: Path, steps: range) -> bool:
    """Every step is there once, in order, with all its rows."""
    run = load_run(directory)
    return (
        run.steps["step"].tolist() == list(steps)
        and run.rollouts["step"].tolist() == [step for step in steps for _ in range(8)]
        and run.groups["step"].tolist() == [step for step in steps for _ in range(2)]
    )


# ---- weeks


def test_memory_is_flat_over_many_hundred_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_flush", lambda path: None)  # what a disk costs is not what is looked at
    monkeypatch.setattr(compact, "STEPS_PER_FILE", 40)
    records = RecordWriter(tmp_path, {})

    def run(first: int, last: int) -> tuple[int, int]:
        for step in range(first, last + 1):
            hand_over(records, step)
            if step % 50 == 0:
                wait_until(lambda: not records.pending)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()

    run(1, 400)
    tracemalloc.start()
    try:
        before, after = run(401, 800), run(801, 1_200)
    finally:
        tracemalloc.stop()
    records.close()
    assert records.faults == 0
    assert after[0] - before[0] < 100_000 and after[1] - before[1] < 100_000, (before, after)
    # And so is the number of files: 40 steps to a file here, 400 once there are ten of those.
    for table in layout.TABLE_NAMES:
        assert len(layout.list_files(tmp_path / table)[0]) < 60
    assert whole(tmp_path, range(1, 1_201))


# ---- the directory


def test_a_directory_deleted_in_mid_run_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / "sagc"
    records = RecordWriter(place, {"config": {"seed": 1}})
    for step in range(1, 6):
        hand_over(records, step)
    wait_until(lambda: not records.pending)
    shutil.rmtree(place)
    for step in range(6, 11):
        hand_over(records, step)
    records.close()
    assert records.pending == records.dropped == 0
    assert whole(tmp_path, range(6, 11))  # what was deleted is gone, what came later is there
    assert load_run(tmp_path).info["config"] == {"seed": 1}


def test_a_directory_replaced_by_a_file_loses_nothing_once_it_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "sagc"
    records = RecordWriter(place, {})
    hand_over(records, 1)
    wait_until(lambda: not records.pending)
    place.rename(tmp_path / "aside")
    place.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        for step in range(2, 6):
            hand_over(records, step)
        wait_until(lambda: records.faults >= 3)
    assert records.pending == 4
    assert caplog.text.count("cannot write to") == 1
    place.unlink()
    (tmp_path / "aside").rename(place)
    records.close()
    assert records.dropped == 0
    assert whole(tmp_path, range(1, 6))


@pytest.mark.parametrize("table", layout.TABLE_NAMES)
def test_one_table_that_cannot_be_written_holds_back_its_step_and_no_row_comes_twice(
    tmp_path: Path, table: str
) -> None:
    records = RecordWriter(tmp_path, {})
    (tmp_path / table).write_text("in the way")
    for step in range(1, 4):
        hand_over(records, step)
    wait_until(lambda: records.faults >= 2)
    (tmp_path / table).unlink()
    records.close()
    assert records.dropped == 0
    assert whole(tmp_path, range(1, 4))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_that_is_opened_again_loses_nothing(tmp_path: Path) -> None:
    records = RecordWriter(tmp_path, {})
    tmp_path.chmod(0o500)
    try:
        for step in range(1, 4):
            hand_over(records, step)
        wait_until(lambda: records.faults >= 2)
    finally:
        tmp_path.chmod(0o700)
    records.close()
    assert whole(tmp_path, range(1, 4))


def test_a_read_only_file_system_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root no folder is read-only: the system says so instead. Records begin when it can be written."""
    read_only = True
    mkdir = Path.mkdir

    def refused(self: Path, *args: Any, **kwargs: Any) -> None:
        if read_only and self.is_relative_to(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refused)
    records = RecordWriter(tmp_path / "sagc", {"config": {"seed": 1}})
    for step in range(1, 4):
        hand_over(records, step)
    wait_until(lambda: records.faults >= 3)
    read_only = False
    records.close()
    assert whole(tmp_path, range(1, 4))
    assert load_run(tmp_path).info["config"] == {"seed": 1}


# ---- the disk


@pytest.mark.parametrize("where", ["open", "flush", "rename"])
def test_a_full_disk_that_is_freed_loses_nothing_wherever_it_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    full = False

    def guarded(action: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return action(*args, **kwargs)

        return wrapped

    target, name = {
        "open": (parquet.pq, "ParquetWriter"),
        "flush": (parquet, "_flush"),
        "rename": (parquet.os, "replace"),
    }[where]
    monkeypatch.setattr(target, name, guarded(getattr(target, name)))
    with caplog.at_level(logging.WARNING):
        records = RecordWriter(tmp_path, {})
        for step in range(1, 31):
            full = 8 <= step < 25
            hand_over(records, step)
            if step in (7, 24):
                wait_until(lambda: records.faults >= 2 if full else not records.pending)  # noqa: B023
        full = False
        records.close()
    assert records.dropped == records.pending == 0
    assert whole(tmp_path, range(1, 31))
    assert caplog.text.count("No space left") == 1
    assert not list(tmp_path.rglob(f"{layout.TEMP_PREFIX}*"))


def test_a_full_disk_while_files_are_merged_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compact, "STEPS_PER_FILE", 5)
    records = RecordWriter(tmp_path, {})
    with monkeypatch.context() as patch:
        patch.setattr(compact, "write_file", full)
        for step in range(1, 13):
            hand_over(records, step)
        wait_until(lambda: not records.pending)
    assert records.faults > 0
    for step in range(13, 21):
        hand_over(records, step)
    records.close()
    assert whole(tmp_path, range(1, 21))
    assert len(layout.list_files(tmp_path / "steps")[0]) < 8  # the next time they are merged


# ---- the clock


def test_a_clock_that_jumps_back_changes_nothing_but_the_column_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 2_000_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    records = RecordWriter(tmp_path, {})
    for step in range(1, 11):
        now += 60 if step != 5 else -86_400 * 365
        hand_over(records, step)
    records.close()
    assert (records.faults, records.dropped) == (0, 0)
    assert whole(tmp_path, range(1, 11))
    times = load_run(tmp_path).steps["time"]
    assert times.diff().lt(0).sum() == 1


def test_a_resume_before_the_first_start_by_the_clock_is_still_the_later_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 2_000_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    for resume_step, steps in ((0, range(1, 6)), (3, range(4, 8))):
        records = RecordWriter(tmp_path, {}, resume_step=resume_step)
        for step in steps:
            hand_over(records, step)
        records.close()
        now -= 86_400
    run = load_run(tmp_path)
    assert run.steps["attempt"].tolist() == [1, 1, 1, 2, 2, 2, 2]
    assert whole(tmp_path, range(1, 8))
    resumes = runinfo.read_run_info(tmp_path)["resumes"]
    assert resumes[0]["start_time"] > resumes[1]["start_time"]
    assert [entry["attempt"] for entry in resumes] == [1, 2]


def test_steps_wait_for_their_turn_whatever_the_disk_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails again and again: each step is written once and before the next."""
    rng = np.random.default_rng(0)
    written: list[int] = []
    write_file = parquet.write_file

    def moody(path: Path, *args: Any, **kwargs: Any) -> None:
        if rng.random() < 0.3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_file(path, *args, **kwargs)
        if path.parent.name == "steps":
            written.append(int(path.name[:8]))

    monkeypatch.setattr(writer, "write_file", moody)
    records = RecordWriter(tmp_path, {})
    for step in range(1, 26):
        hand_over(records, step)
    wait_until(lambda: not records.pending)
    records.close()
    assert written == list(range(1, 26))
    assert whole(tmp_path, range(1, 26))
