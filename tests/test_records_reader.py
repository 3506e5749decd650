"""load_run: live rows, documented dtypes, and one line for every file that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sagc_verl import load_run
from sagc_verl.records import compact, layout
from sagc_verl.records.errors import RecordsError
from sagc_verl.records.reader import Run, Runs
from sagc_verl.records.tables import TABLES
from sagc_verl.records.writer import RecordWriter


def write(directory, steps, resume_step=None, rows=2):
    records = RecordWriter(directory, {"config": {}}, resume_step=resume_step)
    for step in steps:
        uids = np.array([f"{records.attempt}:{step}:{row}" for row in range(rows)])
        rollouts = {
            "uid": uids,
            "n": rows,
            "status": "trained",
            "response_tokens": np.arange(rows) + 1,
            "exceeds": False,
        }
        records.write_step(step, rollouts, {"uid": uids, "n": rows}, {"n": rows, f"only/in_{step}": 1.0, "time": step})
    records.close()
    assert records.faults == 0
    return records


def branch(run, which="live"):
    steps = run.table("steps", ["step", "attempt"], branch=which)
    return list(zip(steps["step"].tolist(), steps["attempt"].tolist(), strict=True))


def test_dtypes_are_the_documented_ones_whatever_was_recorded(tmp_path):
    write(tmp_path / "empty", [])
    write(tmp_path / "some", [1])
    for name in ("empty", "some"):
        run = load_run(tmp_path / name)
        for table, columns in TABLES.items():
            frame = getattr(run, table)
            got = {column.name: str(frame[column.name].dtype) for column in columns}
            text = "str" if int(pd.__version__.split(".")[0]) >= 3 else "string"
            assert got == {column.name: text if column.kind == "text" else column.dtype for column in columns}
            batches = list(run.scan(table))
            assert sum(batch.num_rows for batch in batches) == len(frame)


def test_a_resume_supersedes_older_steps_after_it(tmp_path):
    write(tmp_path, range(1, 8))
    write(tmp_path, range(5, 7), resume_step=4)
    write(tmp_path, range(6, 8), resume_step=5)
    run = load_run(tmp_path)
    live = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 3), (7, 3)]
    assert branch(run) == live
    assert sorted(branch(run, "dead")) == [(5, 1), (6, 1), (6, 2), (7, 1)]
    assert sorted(branch(run, "all")) == sorted(branch(run) + branch(run, "dead"))
    assert run.rollouts["uid"].tolist() == [f"{attempt}:{step}:{row}" for step, attempt in live for row in (0, 1)]
    scanned = [uid for batch in run.scan("rollouts", ["uid"]) for uid in batch["uid"].to_pylist()]
    assert scanned == run.rollouts["uid"].tolist()
    dead = [uid for batch in run.scan("rollouts", ["uid"], branch="dead") for uid in batch["uid"].to_pylist()]
    assert sorted(dead) == sorted(run.table("rollouts", branch="dead")["uid"])


def test_a_resume_that_died_before_its_first_step_still_supersedes(tmp_path):
    write(tmp_path, range(1, 6))
    write(tmp_path, [], resume_step=3)
    assert branch(load_run(tmp_path)) == [(1, 1), (2, 1), (3, 1)]


def test_starting_over_in_the_same_directory_supersedes_everything(tmp_path):
    write(tmp_path, range(1, 6))
    write(tmp_path, range(1, 3))
    assert branch(load_run(tmp_path)) == [(1, 2), (2, 2)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_never_two_live_rows_of_a_step(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("run")
    at, expected, everything = 0, {}, []
    for attempt in range(1, data.draw(st.integers(1, 4)) + 1):
        resume = data.draw(st.integers(0, at)) if attempt > 1 else 0
        last = resume + data.draw(st.integers(0, 4))
        write(directory, range(resume + 1, last + 1), resume_step=resume, rows=1)
        expected = {step: number for step, number in expected.items() if step <= resume}
        expected |= dict.fromkeys(range(resume + 1, last + 1), attempt)
        everything += [(step, attempt) for step in range(resume + 1, last + 1)]
        at = last
    if data.draw(st.booleans()):
        (directory / "steps").exists() and compact.compact_table(directory / "steps", attempt, fan_in=2)
    run = load_run(directory)
    assert branch(run) == sorted(expected.items())
    assert sorted(branch(run) + branch(run, "dead")) == sorted(everything)


def test_columns_and_steps_on_request(tmp_path):
    write(tmp_path, range(1, 11))
    compact.compact_table(tmp_path / "rollouts", 1, fan_in=4)
    run = load_run(tmp_path)
    frame = run.table("rollouts", ["response_tokens", "step"], steps=slice(3, 6))
    assert list(frame.columns) == ["response_tokens", "step"]
    assert frame["step"].unique().tolist() == [3, 4, 5]
    for steps, expected in (
        (4, [4]),
        ([9, 2], [2, 9]),
        (range(1, 10, 4), [1, 5, 9]),
        (slice(None, 3), [1, 2]),
        ([], []),
    ):
        assert run.table("rollouts", ["step"], steps=steps)["step"].unique().tolist() == expected
        scanned = {
            step for batch in run.scan("rollouts", ["uid", "step"], steps=steps) for step in batch["step"].to_pylist()
        }
        assert sorted(scanned) == expected
    assert [len(batch.schema) for batch in run.scan("rollouts", ["uid"], steps=3)] == [1]
    assert run.table("rollouts", ["uid"], steps=3)["uid"].tolist() == ["1:3:0", "1:3:1"]


def test_columns_that_only_some_steps_have(tmp_path):
    write(tmp_path, range(1, 4))
    run = load_run(tmp_path)
    assert run.columns("steps")[-3:] == ["only/in_1", "only/in_2", "only/in_3"]
    assert run.steps["only/in_2"].isna().tolist() == [True, False, True]
    compact.compact_table(tmp_path / "steps", 1, fan_in=2)
    assert load_run(tmp_path).steps["only/in_2"].isna().tolist() == [True, False, True]


def test_errors_are_one_line(tmp_path):
    write(tmp_path / "run", [1])
    run = load_run(tmp_path / "run")
    file = tmp_path / "log.txt"
    file.write_text("step:1 - a:1")
    (tmp_path / "nothing").mkdir()
    cases = [
        (lambda: load_run(tmp_path / "absent"), "no such directory"),
        (lambda: load_run(tmp_path / "nothing"), "no records here"),
        (lambda: load_run(file), "import-log"),
        (lambda: run.table("rollouts", ["no_such"]), "no column 'no_such'"),
        (lambda: run.table("trajectories"), "must be one of rollouts, groups, steps"),
    ]
    for call, text in cases:
        with pytest.raises(RecordsError, match=text) as error:
            call()
        assert "\n" not in str(error.value)


def test_files_that_cannot_be_used_are_named_and_skipped(tmp_path):
    write(tmp_path, range(1, 7))
    steps = tmp_path / "steps"
    whole = (steps / layout.file_name(2, 2, 1)).read_bytes()
    (steps / layout.file_name(2, 2, 1)).write_bytes(whole[: len(whole) // 2])
    (steps / layout.file_name(3, 3, 1)).write_bytes(b"")
    newer = pa.table({"step": [4]}).replace_schema_metadata({"sagc_format": str(layout.FORMAT + 1)})
    pq.write_table(newer, steps / layout.file_name(4, 4, 1))
    pq.write_table(pa.table({"x": [4]}), steps / layout.file_name(5, 5, 1))
    (steps / "notes.txt").write_text("mine")
    (steps / ".tmp-00000009-00000009.a001.parquet").write_bytes(b"half")
    run = load_run(tmp_path)
    assert run.steps["step"].tolist() == [1, 6]
    problems = {line.split(": ")[0].split("/")[-1]: line for line in run.warnings}
    assert len(run.warnings) == 5
    assert (
        "half written" in problems[layout.file_name(2, 2, 1)] and "half written" in problems[layout.file_name(3, 3, 1)]
    )
    assert "newer sagc-verl" in problems[layout.file_name(4, 4, 1)]
    assert "not written by sagc-verl" in problems[layout.file_name(5, 5, 1)]
    assert "not a records file" in problems["notes.txt"]


def test_a_file_damaged_inside_is_named_and_skipped(tmp_path):
    write(tmp_path, range(1, 4), rows=500)
    path = tmp_path / "rollouts" / layout.file_name(2, 2, 1)
    data = bytearray(path.read_bytes())
    data[8:600] = b"\xff" * 592
    path.write_bytes(data)
    run = load_run(tmp_path)
    assert run.rollouts["step"].unique().tolist() == [1, 3]
    assert [line for line in run.warnings if path.name in line and "damaged" in line]
    with pytest.raises(RecordsError, match=path.name):
        list(load_run(tmp_path).scan("rollouts"))


def test_where_no_file_can_be_read_it_says_so(tmp_path):
    write(tmp_path, [1])
    (tmp_path / "steps" / layout.file_name(1, 1, 1)).write_bytes(b"PAR1")
    with pytest.raises(RecordsError, match="half written"):
        _ = load_run(tmp_path).steps


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', "null", "[" * 100_000, "\udcff"])
def test_a_run_json_that_is_not_ours_is_refused_in_one_line(tmp_path, text):
    write(tmp_path, [1])
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RecordsError, match=r"run\.json") as error:
        load_run(tmp_path)
    assert "\n" not in str(error.value)


def test_a_newer_version_is_refused_with_what_to_do(tmp_path):
    write(tmp_path, [1])
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": layout.FORMAT + 1}))
    with pytest.raises(RecordsError, match="pip install -U sagc-verl"):
        load_run(tmp_path)


def test_without_run_json_the_file_names_tell_the_branches(tmp_path):
    write(tmp_path, range(1, 6))
    write(tmp_path, range(4, 6), resume_step=3)
    (tmp_path / "run.json").unlink()
    run = load_run(tmp_path)
    assert branch(run) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert run.warnings == [f"{tmp_path / 'run.json'}: missing"]


def test_a_directory_of_runs(tmp_path):
    write(tmp_path / "project" / "static" / "sagc", [1, 2])
    write(tmp_path / "project" / "sagc_run" / "sagc", [1])
    (tmp_path / "broken" / "sagc").mkdir(parents=True)
    (tmp_path / "broken" / "sagc" / "run.json").write_text("{")
    (tmp_path / "project" / "static" / "global_step_2" / "actor").mkdir(parents=True)
    runs = load_run(tmp_path)
    assert isinstance(runs, Runs) and list(runs) == ["project/sagc_run", "project/static"]
    assert len(runs.warnings) == 1 and "half written" in runs.warnings[0]
    assert runs.steps[["run", "step"]].values.tolist() == [
        ["project/sagc_run", 1],
        ["project/static", 1],
        ["project/static", 2],
    ]
    assert runs.rollouts["run"].dtype == "category"
    assert list(runs.table("steps", ["step", "only/in_2"]).columns) == ["run", "step", "only/in_2"]
    assert runs.table("steps", ["only/in_2"])["only/in_2"].isna().tolist() == [True, True, False]
    for path in (tmp_path / "project" / "static", tmp_path / "project" / "static" / "sagc"):
        run = load_run(path)
        assert isinstance(run, Run) and run.name == "static"


def test_a_run_can_be_read_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(compact, "STEPS_PER_FILE", 3)
    records = RecordWriter(tmp_path, {})
    seen = []
    for step in range(1, 40):
        records.write_step(step, {"uid": ["a"]}, {"uid": ["a"]}, {"n": 1})
        if step > 2:
            steps = load_run(tmp_path).table("steps", ["step"])["step"].tolist()
            assert steps == list(range(1, len(steps) + 1))
            seen.append(len(steps))
    records.close()
    assert seen == sorted(seen) and branch(load_run(tmp_path))[-1] == (39, 1)


def test_importing_the_package_stays_cheap():
    code = "import sagc_verl, sys; print([m for m in ('pandas', 'pyarrow', 'numpy', 'torch') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
