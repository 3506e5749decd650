"""RecordWriter: all that is handed over arrives, nothing raises into training, a kill loses nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sagc_verl import load_run
from sagc_verl.records import compact, layout, parquet, writer
from sagc_verl.records.tables import CAUSES, TABLES
from sagc_verl.records.writer import RecordWriter


def rollouts(step: int, groups: int = 3, n: int = 4) -> dict:
    rows = groups * n
    return {
        "uid": np.repeat([f"{step}-{group}" for group in range(groups)], n),
        "session": np.tile(np.arange(n), groups),
        "n": n,
        "response_tokens": np.arange(rows) + step,
        "end_s": np.linspace(0.1, 5, rows),
        "reward": np.tile([0.0, 1.0], rows // 2),
        "exceeds": np.arange(rows) == rows - 1,
        "status": "trained",
        "cause": [""] * (rows - 1) + [CAUSES[0]],
    }


def groups(step: int, count: int = 3) -> dict:
    return {"uid": [f"{step}-{group}" for group in range(count)], "n": 4, "straggler": [False] * count}


def write(directory: Path, steps, resume_step=None, **info) -> RecordWriter:
    records = RecordWriter(directory, {"config": {"seed": 1}, **info}, resume_step=resume_step)
    for step in steps:
        records.write_step(step, rollouts(step), groups(step), {"n": 4, "actor/loss": step / 8})
    records.close()
    return records


def wait_until(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.005)


def files_of(directory: Path, table: str) -> list[str]:
    return [file.path.name for file in layout.list_files(directory / table)[0]]


def test_everything_handed_over_arrives(tmp_path):
    records = write(tmp_path / "sagc", range(1, 6))
    assert (records.faults, records.dropped, records.pending) == (0, 0, 0)
    run = load_run(tmp_path)
    assert run.warnings == []
    assert run.steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert run.steps["actor/loss"].tolist() == [step / 8 for step in range(1, 6)]
    assert len(run.rollouts) == 5 * 12 and len(run.groups) == 5 * 3
    third = run.rollouts[run.rollouts["step"] == 3]
    assert third["uid"].tolist() == rollouts(3)["uid"].tolist()
    assert third["response_tokens"].tolist() == rollouts(3)["response_tokens"].tolist()
    assert third["n"].eq(4).all() and third["status"].eq("trained").all()
    assert third["cause"].tolist() == rollouts(3)["cause"]
    assert third["queue_s"].isna().all() and third["turns"].isna().all()
    np.testing.assert_allclose(third["end_s"], rollouts(3)["end_s"], atol=0.5 / 1024 + 1e-6)


def test_run_json_tells_what_was_run_and_each_start(tmp_path):
    write(tmp_path, [1, 2], command="python -m verl.trainer.main_ppo", host=None)
    records = RecordWriter(tmp_path, {"config": {"seed": 2, "sagc": {"budget": np.float32(0.5)}}}, resume_step=2)
    records.close()
    info = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert info["config"] == {"seed": 2, "sagc": {"budget": 0.5}}
    assert info["versions"]["python"] and info["host"]["cpus"] and info["start_time"] > 0
    assert [(entry["attempt"], entry["step"]) for entry in info["resumes"]] == [(1, 0), (2, 2)]
    assert info["resumes"][0]["command"] == "python -m verl.trainer.main_ppo"
    assert info["resumes"][1]["changed"] == {"seed": [1, 2], "sagc": [None, {"budget": 0.5}]}


def test_a_hundred_steps_become_one_file_and_a_thousand_again(tmp_path, monkeypatch):
    monkeypatch.setattr(compact, "STEPS_PER_FILE", 4)
    monkeypatch.setattr(compact, "FILES_PER_MERGE", 3)
    write(tmp_path, range(1, 31))
    assert files_of(tmp_path, "steps") == [
        layout.file_name(1, 12, 1),
        layout.file_name(13, 24, 1),
        layout.file_name(25, 28, 1),
        layout.file_name(29, 29, 1),
        layout.file_name(30, 30, 1),
    ]
    run = load_run(tmp_path)
    assert run.steps["step"].tolist() == list(range(1, 31))
    assert run.rollouts["uid"].tolist() == [uid for step in range(1, 31) for uid in rollouts(step)["uid"]]
    assert run.rollouts.groupby("step")["cause"].agg(lambda causes: (causes == CAUSES[0]).sum()).eq(1).all()


def test_what_an_attempt_left_in_single_steps_is_merged_by_the_next(tmp_path):
    write(tmp_path, range(1, 6))
    write(tmp_path, [6], resume_step=5)
    assert files_of(tmp_path, "groups") == [layout.file_name(1, 5, 1), layout.file_name(6, 6, 2)]


@pytest.mark.parametrize("kept", [0, 3, 9])
def test_a_kill_between_merging_and_removing_the_parts_counts_nothing_twice(tmp_path, kept):
    write(tmp_path, range(1, 11))
    folder = tmp_path / "rollouts"
    parts = {file.path: file.path.read_bytes() for file in layout.list_files(folder)[0]}
    assert compact.compact_table(folder, 1, fan_in=10) == 10
    for path in list(parts)[kept:]:  # what a kill would have left
        path.write_bytes(parts[path])
    run = load_run(tmp_path)
    assert len(run.rollouts) == 120 and run.warnings == []
    assert sum(batch.num_rows for batch in run.scan("rollouts")) == 120
    write(tmp_path, [], resume_step=10)
    assert files_of(tmp_path, "rollouts") == [layout.file_name(1, 10, 1)]  # and the next start cleans up


ENDLESS_RUN = """
import sys, time
from sagc_verl.records import compact
from sagc_verl.records.writer import RecordWriter
compact.STEPS_PER_FILE = 5
records = RecordWriter(sys.argv[1], {})
for step in range(1, 1_000_000):
    records.write_step(step, {"uid": ["a"] * 12}, {"uid": ["a"] * 3}, {"n": 4})
    while records.pending:
        time.sleep(0.0005)
    print(step, flush=True)
"""


@pytest.mark.parametrize("steps", [4, 6])
def test_kill_minus_nine_loses_at_most_the_step_in_flight(tmp_path, steps):
    child = subprocess.Popen([sys.executable, "-c", ENDLESS_RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(steps):
        child.stdout.readline()
    time.sleep(0.01 * (steps - 4))
    child.send_signal(signal.SIGKILL)
    done = steps + len(child.stdout.read().split())
    child.wait()
    run = load_run(tmp_path)
    assert run.warnings == []
    recorded = run.steps["step"].tolist()
    assert recorded == list(range(1, len(recorded) + 1)) and len(recorded) >= done
    for table, rows in (("rollouts", 12), ("groups", 3)):
        counts = run.table(table, ["step"])["step"].value_counts()
        assert set(counts) == {rows} and len(counts) in (len(recorded), len(recorded) + 1)


def test_a_failing_disk_warns_once_counts_and_loses_nothing(tmp_path, monkeypatch, caplog):
    full = threading.Event()
    full.set()
    write_file = parquet.write_file

    def failing(path, schema, tables, compress):
        if full.is_set():
            raise OSError(28, "No space left on device")
        write_file(path, schema, tables, compress)

    monkeypatch.setattr(writer, "write_file", failing)
    monkeypatch.setattr(writer.RecordWriter, "FIRST_WAIT_S", 0.01)
    with caplog.at_level(logging.WARNING):
        records = RecordWriter(tmp_path, {})
        for step in range(1, 4):
            records.write_step(step, rollouts(step), groups(step), {})
        wait_until(lambda: records.faults >= 3)
        assert records.pending == 3
        full.clear()
        wait_until(lambda: not records.pending)
    records.close()
    assert load_run(tmp_path).steps["step"].tolist() == [1, 2, 3]
    assert [record.getMessage() for record in caplog.records if "No space left" in record.getMessage()] != []
    assert len(caplog.records) == 1
    assert not list(tmp_path.rglob(".tmp-*"))


def test_close_does_not_wait_for_a_disk_that_stays_full(tmp_path, monkeypatch, caplog):
    def failing(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_file", failing)
    records = RecordWriter(tmp_path, {})
    for step in range(1, 4):
        records.write_step(step, rollouts(step), groups(step), {})
    start = time.monotonic()
    records.close()
    assert time.monotonic() - start < 5
    assert records.dropped == 3 and records.faults >= 3


def test_a_directory_that_cannot_be_made_never_raises(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        records = write(tmp_path / "file" / "sagc", [1, 2])
    assert records.faults > 0
    assert "training goes on" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_permission_errors_never_raise(tmp_path):
    tmp_path.chmod(0o500)
    assert write(tmp_path / "sagc", [1]).faults > 0


def test_a_stalled_disk_blocks_nobody_and_memory_is_bounded(tmp_path, monkeypatch, caplog):
    stalled = threading.Event()
    monkeypatch.setattr(writer, "write_file", lambda *_, **__: stalled.wait())
    monkeypatch.setattr(writer, "MAX_PENDING_BYTES", 20_000)
    records = RecordWriter(tmp_path, {})
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 101):
            records.write_step(step, rollouts(step), groups(step), {})
    assert time.monotonic() - start < 1
    assert 0 < records.pending < 50 and records.dropped == 100 - records.pending
    assert "cannot keep up" in caplog.text
    start = time.monotonic()
    records.close(timeout=0.1)
    assert time.monotonic() - start < 2
    stalled.set()


def test_what_does_not_fit_is_left_out_and_said(tmp_path, caplog):
    records = RecordWriter(tmp_path, {})
    rows = rollouts(1) | {"turns": [1, 2], "reward": ["good"] * 12, "no_such_column": [0] * 12}
    with caplog.at_level(logging.WARNING):
        records.write_step(
            1, rows, {}, {"n": 4, "text": "no number", "list": [1, 2], "np": np.float64(0.5), "none": None}
        )
        records.write_step(2, None, {}, {})  # type: ignore[arg-type]
        records.write_step(3, rollouts(3), groups(3), {"n": 4})
    records.close()
    run = load_run(tmp_path)
    assert run.steps["step"].tolist() == [1, 3]
    assert run.rollouts.loc[run.rollouts["step"] == 1, ["turns", "reward"]].isna().all(axis=None)
    assert "no_such_column" not in run.rollouts and "text" not in run.steps and "list" not in run.steps
    assert run.steps["np"].tolist()[0] == 0.5
    assert records.faults == 4
    for name in ("rollouts.turns", "rollouts.reward", "rollouts.no_such_column"):
        assert name in caplog.text


def test_values_as_trainers_have_them(tmp_path):
    rows = {
        "uid": np.array(["a", "a"], dtype=object),
        "prompt_index": [7.0, float("nan")],
        "data_source": np.array(["gsm8k", None], dtype=object),
        "response_tokens": np.array([3.0, np.nan]),
        "truncated": np.array([1, 0]),
        "preempted": np.array([None, 2], dtype=object),
        "queue_s": [None, 0.25],
        "reward": np.array([1, 0]),
    }
    records = RecordWriter(tmp_path, {})
    records.write_step(1, rows, {}, {"tokens": np.int64(3), "tail_s": float("nan"), "reason": "hold"})
    records.close()
    run = load_run(tmp_path)
    frame = run.rollouts
    assert records.faults == 0
    assert frame["prompt_index"].tolist()[0] == "7" and frame["prompt_index"].isna().tolist() == [False, True]
    assert frame["response_tokens"].isna().tolist() == [False, True] and frame["response_tokens"][0] == 3
    assert frame["truncated"].tolist() == [True, False]
    assert frame["preempted"][1] == 2 and frame["queue_s"][1] == 0.25
    assert run.steps["tokens"][0] == 3 and run.steps["reason"][0] == "hold" and np.isnan(run.steps["tail_s"][0])


def test_an_unreadable_run_json_is_kept_and_attempts_go_on(tmp_path, caplog):
    write(tmp_path, range(1, 5))
    (tmp_path / "run.json").write_text('{"kind": "sagc-ver')
    with caplog.at_level(logging.WARNING):
        records = write(tmp_path, [3, 4], resume_step=2)
    assert records.attempt == 2 and records.faults == 1
    assert (tmp_path / "run.json.unreadable").exists()
    steps = load_run(tmp_path).steps
    assert list(zip(steps["step"], steps["attempt"], strict=True)) == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_records_of_a_newer_version_are_not_written_to(tmp_path, caplog):
    write(tmp_path, [1])
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": layout.FORMAT + 1}))
    before = sorted(tmp_path.rglob("*"))
    assert write(tmp_path, [2], resume_step=1).faults == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_files_have_the_documented_types_and_are_small(tmp_path):
    rng = np.random.default_rng(0)
    rows = 8192
    seconds = rng.exponential(20, (5, rows))
    records = RecordWriter(tmp_path, {})
    columns = {
        "uid": np.repeat([rng.bytes(18).hex() for _ in range(rows // 8)], 8),
        "response_tokens": rng.integers(1, 8000, rows),
        "reward": rng.random(rows).round(1),
        **dict(zip(("start_s", "end_s", "queue_s", "generate_s", "tool_s"), seconds, strict=True)),
    }
    records.write_step(1, columns, {}, {})
    records.close()
    path = tmp_path / "rollouts" / layout.file_name(1, 1, 1)
    assert path.stat().st_size <= 40 * rows
    schema = pq.read_schema(path)
    assert schema.names == [column.name for column in TABLES["rollouts"]]
    assert schema.field("end_s").type == pa.float32() and schema.field("response_tokens").type == pa.int32()
