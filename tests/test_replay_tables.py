"""Tables of lengths from other people: what is read, what is refused, in one line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pandas as pd
import pytest

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.source import open_source, open_sources
from sagc_verl.replay.tables import table_from_frame


def good() -> pd.DataFrame:
    return pd.DataFrame({"prompt_id": [0, 0, 1, 1, 1], "length": [10, 20, 30, 40, 50], "score": [0, 1, 0, 0, 1]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"length": None}, "no column of lengths"),
        ({"prompt_id": None}, "no column of prompts"),
        (
            {"length": [10, float("nan"), 30, float("nan"), 50]},
            r"row 2: length=nan is not a number \(and 1 more rows\)",
        ),
        ({"length": [10, "?", 30, 40, 50]}, "row 2: length=? is not a number".replace("?", r"\?")),
        ({"length": [10, 20, -3, 40, 50]}, "row 3: length=-3 is not above zero"),
        ({"length": [10, 20, 30, 40, 0]}, "row 5: length=0 is not above zero"),
        ({"length": [10, 20, 30, 40, float("inf")]}, "row 5: length=inf is not a number"),
        ({"prompt_id": [0, 1, 2, 3, 4]}, "one sample per prompt"),
        ({"prompt_id": [0, None, 1, 1, 1]}, "row 2: prompt_id=nan is empty"),
        ({"length": [10, 20, 30.5, 40, 50]}, "mixed units: 20% of length are fractions"),
        ({"unit": ["tokens", "tokens", "seconds", "tokens", "tokens"]}, r"mixed units \(seconds, tokens\)"),
        ({"unit": ["furlongs"] * 5}, "unit 'furlongs': must be one of"),
    ],
)
def test_bad_tables_are_refused_in_one_line(change: dict, says: str):
    frame = good()
    for column, values in change.items():
        frame = frame.drop(columns=column) if values is None else frame.assign(**{column: values})
    with pytest.raises(SourceError, match=says) as error:
        table_from_frame(frame, "t.csv")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(("t.csv: ", "unit "))


def test_what_a_table_says():
    frame = good().assign(data_source=["a", "a", "b", "b", "b"], truncated=[False, False, False, False, True])
    table, unit, notes = table_from_frame(frame, "t.csv")
    assert (table.num_prompts, table.recorded, unit, notes) == (2, 2, "tokens", [])
    assert table.cap == 50.0
    assert list(table.sources) == ["a", "b"]
    assert table.has_scores


def test_prompts_with_one_sample_are_left_out_and_said():
    frame = pd.DataFrame({"prompt": ["x", "y", "y", "z", "z"], "seconds": [1.5, 2.25, 3.5, 4.0, 5.5]})
    table, unit, notes = table_from_frame(frame, "t.csv")
    assert list(table.keys) == ["y", "z"]
    assert unit == "seconds"
    assert notes == ["t.csv: 1 of 3 prompts have a single sample and are left out"]


def test_fractions_alone_are_seconds_and_units_asked_for_must_fit():
    frame = pd.DataFrame({"prompt": [0, 0], "length": [1.5, 2.5]})
    assert table_from_frame(frame, "t")[1] == "seconds"
    with pytest.raises(SourceError, match="mixed units"):
        table_from_frame(frame, "t", unit="tokens")
    with pytest.raises(SourceError, match="the table says seconds, asked for tokens"):
        table_from_frame(frame.rename(columns={"length": "seconds"}), "t", unit="tokens")
    with pytest.raises(SourceError, match="cap 5 is below the longest length, 50"):
        table_from_frame(good(), "t", cap=5)


def test_files(tmp_path: Path):
    good().to_csv(tmp_path / "a.csv.gz", index=False)
    good().to_parquet(tmp_path / "b.parquet")
    assert open_source(str(tmp_path / "a.csv.gz")).name == "a"
    assert open_sources([str(tmp_path / "a.csv.gz"), str(tmp_path / "b.parquet")]).name == "a + b"
    (tmp_path / "empty.csv").write_text("prompt_id,length\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "none.csv").write_bytes(b"")
    for name, says in (
        ("empty.csv", "holds no rows"),
        ("broken.parquet", "cannot be read as a table"),
        ("none.csv", "cannot be read as a table"),
        ("missing.csv", "no such file or run, nor a named workload"),
    ):
        with pytest.raises(SourceError, match=says) as error:
            open_source(str(tmp_path / name))
        assert "\n" not in str(error.value)


def test_damaged_bytes_and_odd_flags_are_refused(tmp_path: Path):
    good().to_csv(tmp_path / "a.csv.gz", index=False)
    whole = (tmp_path / "a.csv.gz").read_bytes()
    for cut in (0, 5, 12, len(whole) // 2, len(whole) - 4):
        (tmp_path / "a.csv.gz").write_bytes(whole[:cut])
        with pytest.raises(SourceError) as error:
            open_source(str(tmp_path / "a.csv.gz"))
        assert "\n" not in str(error.value)
        (tmp_path / "a.csv.gz").write_bytes(whole[:cut] + b"\xff" * 9 + whole[cut:])
        with contextlib.suppress(SourceError):  # some bytes of the header do not matter; nothing else may be raised
            open_source(str(tmp_path / "a.csv.gz"))
    with pytest.raises(SourceError, match="must hold true and false"):
        table_from_frame(good().assign(truncated=["maybe"] * 5), "t.csv")
