"""compare takes up what examples/eval/score.py wrote."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from report_runs import write_run
from rich.console import Console

from sagc_verl.report import evals
from sagc_verl.report.compare import compare_runs, render_table
from sagc_verl.report.comparison import Comparison
from sagc_verl.report.html import render_html

SCORE = Path(__file__).resolve().parent.parent / "examples" / "eval" / "score.py"


def score_file(run: Path, step: int, sources: dict[str, Any], **changes: Any) -> Path:
    """An evaluation as score.py writes it; `sources` maps a set to (accuracy, low, high, length)."""
    path = run / "sagc" / "eval" / f"step_{step}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "kind": "sagc_verl.eval",
        "version": 1,
        "step": step,
        "n": 1,
        "temperature": 0.0,
        "max_response_length": 2048,
        "length_unit": "tokens",
        "sources": {
            name: dict(zip(("accuracy", "low", "high", "length_mean"), values, strict=True))
            for name, values in sources.items()
        },
        **changes,
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture()
def place(tmp_path: Path) -> Path:
    write_run(tmp_path / "static8", sizes=(8,), steps=9)
    write_run(tmp_path / "sagc", policy="sagc", sizes=(4, 6, 8), steps=9)
    return tmp_path


def compared(place: Path) -> Comparison:
    return compare_runs([place / "static8", place / "sagc"])


def text_of(comparison: Comparison, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    render_table(comparison, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_accuracy_and_length_are_in_the_table_the_report_and_the_numbers(place: Path) -> None:
    score_file(place / "static8", 9, {"gsm8k": (0.5, 0.45, 0.55, 231.4), "math": (0.25, 0.2, 0.3, 800.0)})
    score_file(place / "sagc", 9, {"gsm8k": (0.6, 0.55, 0.65, 180.0)})
    found = compared(place)
    text = text_of(found)
    assert "50.0% (45.0% to 55.0%), 231 tokens" in text
    assert "25.0% (20.0% to 30.0%), 800 tokens" in text
    (line,) = [line for line in text.splitlines() if line.startswith("sagc") and "180 tokens" in line]
    assert line.split()[-1] == "-"  # not scored on math
    page = render_html(found)
    assert "<h2>Evaluation</h2>" in page and "231 tokens, step 9" in page
    settings = found.as_dict()["settings"]
    assert settings[0]["evaluation"]["gsm8k"]["accuracy"] == {"value": 0.5, "low": 0.45, "high": 0.55}
    assert settings[1]["evaluation"]["gsm8k"]["length"]["value"] == 180.0
    assert found.warnings == ()


def test_without_evaluations_nothing_is_said_of_them(place: Path) -> None:
    found = compared(place)
    assert "evaluation" not in text_of(found)
    assert "<h2>Evaluation</h2>" not in render_html(found)


def test_the_latest_checkpoint_that_was_scored_counts(place: Path) -> None:
    score_file(place / "sagc", 100, {"gsm8k": (0.7, 0.6, 0.8, 1.0)})
    score_file(place / "sagc", 9, {"gsm8k": (0.1, 0.0, 0.2, 1.0), "math": (0.3, 0.2, 0.4, 1.0)})
    scores, faults = evals.read_scores(place / "sagc" / "sagc")
    assert {name: (score.step, score.accuracy.value) for name, score in scores.items()} == {
        "gsm8k": (100, 0.7),
        "math": (9, 0.3),
    }
    assert faults == []


def test_of_several_seeds_the_interval_is_between_them(tmp_path: Path) -> None:
    for seed, accuracy in ((1, 0.4), (2, 0.5), (3, 0.6)):
        run = write_run(tmp_path / f"static8-s{seed}", sizes=(8,), seed=seed, steps=9)
        score_file(run, 9, {"gsm8k": (accuracy, accuracy - 0.01, accuracy + 0.01, 100.0 * seed)})
    (setting,) = compare_runs([tmp_path]).settings
    score = evals.setting_score(setting, "gsm8k")
    assert score is not None
    assert score.accuracy.value == pytest.approx(0.5)
    assert score.accuracy.high - score.accuracy.low == pytest.approx(2 * 4.303 * 0.1 / math.sqrt(3))
    assert score.length.value == pytest.approx(200)


def test_evaluations_made_differently_are_named(place: Path) -> None:
    sources = {"gsm8k": (0.5, 0.45, 0.55, 231.4)}
    score_file(place / "static8", 9, sources)
    score_file(place / "sagc", 8, sources, n=4, temperature=1.0, length_unit="characters")
    text = text_of(compared(place))
    assert "differ in their answers per prompt: 1 in static8; 4 in sagc." in text
    assert "differ in their temperature: 0 in static8; 1 in sagc." in text
    assert "differ in their training step: 9 in static8; 8 in sagc." in text
    assert "unit of length" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "left out"),
        ("[]", "not written by examples/eval/score.py"),
        ('{"kind": "other"}', "not written by examples/eval/score.py"),
        ('{"kind": "sagc_verl.eval", "version": 2}', "version 2, this sagc-verl reads 1"),
        ('{"kind": "sagc_verl.eval", "version": 1}', "sources must be a mapping"),
        ('{"kind": "sagc_verl.eval", "version": 1, "sources": {"a": 1}}', "sources.a must be a mapping"),
        ('{"kind": "sagc_verl.eval", "version": 1, "sources": {"a": {"accuracy": "x"}}}', "accuracy must be a number"),
        ('{"kind": "sagc_verl.eval", "version": 1, "sources": {"a": {"accuracy": 7}}}', "must be from 0 to 1"),
        ('{"kind": "sagc_verl.eval", "version": 1, "sources": {"a": {"accuracy": NaN}}}', "must be from 0 to 1"),
        ("[" * 100_000, "left out"),
    ],
)
def test_what_is_no_evaluation_is_left_out_and_named(place: Path, content: str, words: str) -> None:
    score_file(place / "sagc", 3, {"gsm8k": (0.5, 0.4, 0.6, 10.0)})
    (place / "sagc" / "sagc" / "eval" / "step_9.json").write_text(content)
    found = compared(place)
    (warning,) = found.warnings
    assert "step_9.json: left out" in warning and words in warning
    assert "50.0%" in text_of(found)


def test_names_from_the_file_cannot_inject_html_or_drive_the_terminal(place: Path) -> None:
    hostile = "</script><script>alert(1)</script>\x1b[31m"
    score_file(place / "sagc", 9, {hostile: (0.5, 0.4, 0.6, 10.0)}, temperature="<b>\x1b[31m")
    score_file(place / "static8", 9, {hostile: (0.5, 0.4, 0.6, 10.0)})
    found = compared(place)
    assert "\x1b" not in text_of(found)
    assert "<script>alert" not in render_html(found) and "<b>" not in render_html(found)


def test_many_sets_do_not_flood_the_terminal(place: Path) -> None:
    score_file(place / "sagc", 9, {f"set{number}": (0.5, 0.4, 0.6, 10.0) for number in range(9)})
    found = compared(place)
    assert "5 more sets: --html, --json" in text_of(found)
    assert "set8" not in text_of(found) and "set8" in render_html(found)


def test_the_reader_and_score_py_agree(place: Path) -> None:
    spec = importlib.util.spec_from_file_location("examples_eval_score_for_reader", SCORE)
    assert spec is not None and spec.loader is not None
    score = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = score
    spec.loader.exec_module(score)
    assert (score.KIND, score.VERSION) == (evals.KIND, evals.VERSION)
    answers = [score.Answer("gsm8k", str(number), number < 8, float(number < 8), 10) for number in range(10)]
    made = score.summarise(answers, None, None)
    path = score_file(place / "sagc", 9, {})
    path.write_text(json.dumps({**json.loads(path.read_text()), "sources": {"gsm8k": made}}))
    scores, faults = evals.read_scores(path.parent.parent)
    assert faults == []
    assert scores["gsm8k"].accuracy.value == 0.8 and scores["gsm8k"].length == 10
    assert 0.4 < scores["gsm8k"].accuracy.low < 0.8 < scores["gsm8k"].accuracy.high < 1
