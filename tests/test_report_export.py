from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from report_runs import write_run

from sagc_verl.records.reader import Run
from sagc_verl.report.export import export_table, pick_format


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    place = tmp_path_factory.mktemp("runs")
    first = write_run(place / "a", steps=6)
    second = write_run(place / "b", steps=6, sizes=(4,), data_source='quo"te, comma')
    return [Run(first / "sagc", "a"), Run(second / "sagc", "b")]


def read(path: Path) -> pd.DataFrame:
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".jsonl": lambda file: pd.read_json(file, lines=True)}
    return readers[path.suffix](path)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("table", ["steps", "groups", "rollouts"])
def test_every_table_comes_out_whole_in_every_format(runs: list[Run], tmp_path: Path, table: str, suffix: str) -> None:
    out = tmp_path / f"t.{suffix}"
    rows = export_table(runs[:1], table, str(out), suffix)
    found, source = read(out), runs[0].table(table)
    assert rows == len(found) == len(source)
    assert list(found.columns) == list(source.columns)
    column = {"steps": "wall_s", "groups": "max", "rollouts": "end_s"}[table]
    assert found[column].to_numpy(float) == pytest.approx(source[column].to_numpy(float), abs=1e-6)


def test_columns_and_steps_can_be_chosen(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    export_table(runs[:1], "steps", str(out), "csv", ["n", "step"], (2, 4))
    assert read(out).to_dict("list") == {"n": [8, 8, 8], "step": [2, 3, 4]}


def test_several_runs_get_a_column_run(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    export_table(runs, "groups", str(out), "csv", ["uid", "data_source"], (1, 1))
    found = read(out)
    assert found.groupby("run").size().to_dict() == {"a": 8, "b": 8}
    assert set(found.loc[found["run"] == "b", "data_source"]) == {'quo"te, comma'}


def test_json_lines_are_strict_json(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    export_table(runs[:1], "rollouts", str(out), "jsonl", ["uid", "reward", "tool_s", "truncated"], (1, 1))
    first = json.loads(out.read_text().splitlines()[0], parse_constant=pytest.fail)
    assert first["tool_s"] is None
    assert first["truncated"] in (True, False)


def test_wrong_requests_say_what_is_right(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean wall_s"):
        export_table(runs[:1], "steps", str(tmp_path / "x.csv"), "csv", ["wall"])
    with pytest.raises(ValueError, match="must be one of steps, groups, rollouts"):
        export_table(runs[:1], "step", str(tmp_path / "x.csv"), "csv")
    with pytest.raises(ValueError, match="no rows"):
        export_table(runs[:1], "steps", str(tmp_path / "x.csv"), "csv", None, (99, None))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_the_old_file_alone(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("old")
    with pytest.raises(RuntimeError, match="disk"):
        export_table([_Breaking(runs[0])], "groups", str(out), "csv")  # type: ignore[list-item]
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


class _Breaking:
    """A run whose disk fails after the first batch."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.name = run.name
        self.columns, self.arrow = run.columns, run.arrow

    def scan(self, *args, **kwargs):
        yield next(self._run.scan(*args, **kwargs))
        raise RuntimeError("disk")


@pytest.mark.parametrize(
    ("target", "wanted", "expected"),
    [("a.csv", None, "csv"), ("a.PARQUET", None, "parquet"), ("-", None, "csv"), ("a.txt", "jsonl", "jsonl")],
)
def test_the_format_is_what_was_asked_for_or_what_the_suffix_says(target, wanted, expected) -> None:
    assert pick_format(target, wanted) == expected


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="suffix"):
        pick_format("a.xlsx", None)
    with pytest.raises(ValueError, match="must be one of csv, parquet, jsonl"):
        pick_format("a.csv", "excel")
