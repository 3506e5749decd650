from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import write_run
from typer.testing import CliRunner

from sagc_verl.cli import app
from sagc_verl.cli.errors import UserError
from sagc_verl.cli.steps import parse_steps


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "static8", steps=10)
    write_run(place / "sagc", policy="sagc", sizes=(4, 8), steps=10)
    return place


def run_cli(*arguments: object, code: int = 0):
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == code, found.stderr
    return found


def test_summary(place: Path) -> None:
    assert "straggler rate" in run_cli("summary", place / "sagc").stdout
    told = json.loads(run_cli("summary", place / "sagc", "--json").stdout)
    assert (told["run"], told["steps"]) == ("sagc", 10)


def test_summary_of_a_directory_of_runs_asks_for_one(place: Path) -> None:
    assert "holds 2 runs (sagc, static8): name one of them" in run_cli("summary", place, code=2).stderr


def test_export_to_a_file_and_to_a_pipe(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    found = run_cli("export", place / "sagc", "--table", "steps", "--out", out)
    assert found.stdout == ""
    assert "10 rows" in found.stderr
    assert len(out.read_text().splitlines()) == 11
    piped = run_cli("export", place / "sagc", "--columns", "step, n", "--steps", "2:3", "--out", "-")
    assert piped.stdout == '"step","n"\n2,4\n3,4\n'
    assert piped.stderr == ""


def test_trace_of_a_step_and_of_the_last(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "step3.json"
    assert "64 rollouts" in run_cli("trace", place / "static8", "--step", 3, "--out", out).stderr
    assert json.loads(out.read_text())["otherData"] == {"run": "static8", "steps": "3"}
    assert json.loads(run_cli("trace", place / "static8", "--out", "-").stdout)["otherData"]["steps"] == "10"
    assert "not both" in run_cli("trace", place / "static8", "--step", 3, "--steps", "1:2", "--out", "-", code=2).stderr


def test_compare_as_table_json_and_report(place: Path, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    found = run_cli("compare", place / "static8", place / "sagc", "--html", html)
    assert found.stdout.splitlines()[1].startswith("static8")
    assert html.read_text().startswith("<!DOCTYPE html>")
    told = json.loads(run_cli("compare", place, "--json").stdout)
    assert [setting["label"] for setting in told["settings"]] == ["sagc", "static8"]
    piped = run_cli("compare", place, "--html", "-").stdout
    assert piped.startswith("<!DOCTYPE html>")
    assert piped.rstrip().endswith("</html>")


def test_a_log_becomes_a_table_or_a_run(place: Path, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"step:{step} - critic/score/mean:0.5 - timing_s/step:2.0" for step in range(1, 13)))
    assert "12 steps (1 to 12)" in run_cli("import-log", log, "--out", tmp_path / "frame.parquet").stderr
    run_cli("import-log", log, "--out", tmp_path / "steps.csv")
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 13
    run_cli("import-log", log, "--out", tmp_path / "old", "--name", "before")
    assert "read from a log" in run_cli("summary", tmp_path / "old").stdout
    assert run_cli("compare", tmp_path / "old", place / "sagc").stdout.splitlines()[1].startswith("before")
    assert "frame" in run_cli("summary", tmp_path / "frame.parquet").stdout


def test_what_is_no_log_or_no_table_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.log"
    text.write_text("nothing here")
    assert "no training steps found" in run_cli("import-log", text, "--out", tmp_path / "x.csv", code=2).stderr
    fake = tmp_path / "fake.parquet"
    fake.write_text("not parquet")
    assert "not a Parquet file" in run_cli("compare", fake, code=2).stderr


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("10:200", (10, 200)), ("10:", (10, None)), (":200", (None, 200)), ("12", (12, 12)), (None, (None, None))],
)
def test_ranges_of_steps(text: str | None, bounds: tuple[int | None, int | None]) -> None:
    assert parse_steps(text) == bounds


@pytest.mark.parametrize("text", ["a:b", "1:2:3", "9:3"])
def test_wrong_ranges_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--steps"):
        parse_steps(text)
