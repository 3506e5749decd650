"""Scores of trained checkpoints: `<run>/sagc/eval/step_<k>.json`, as examples/eval/score.py writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sagc_verl.report import numbers
from sagc_verl.report.statistics import Estimate, seed_estimate
from sagc_verl.report.text import visible

if TYPE_CHECKING:
    from sagc_verl.report.comparison import Comparison, Setting

FOLDER = "eval"
KIND = "sagc_verl.eval"
VERSION = 1
MAX_BYTES = 16 * 2**20
"""A larger file is none that score.py wrote."""

_NAME = re.compile(r"step_(\d{1,18})\.json")
_CONDITIONS = {"n": "answers per prompt", "temperature": "temperature", "max_response_length": "length limit"}


@dataclass(frozen=True)
class Score:
    """One run on one set of questions.

    Attributes:
        step: training step of the checkpoint.
        accuracy: share of right answers; the interval is over answers, or over prompts that have several.
        length: mean length of an answer, in `unit`.
        unit: "tokens" or "characters".
        conditions: what makes scores incomparable where it differs, readable name -> value.
    """

    step: int
    accuracy: Estimate
    length: float
    unit: str
    conditions: Mapping[str, str]


def read_scores(records: Path) -> tuple[dict[str, Score], list[str]]:
    """The scores below a run's records folder, of each set the one of the latest checkpoint.

    Returns:
        Set -> score, sets in alphabetical order, and one line for each file that could not be read.
    """
    found: dict[str, Score] = {}
    faults: list[str] = []
    try:
        files = [
            (int(match[1]), path) for path in (records / FOLDER).iterdir() if (match := _NAME.fullmatch(path.name))
        ]
    except OSError:
        return {}, []
    for step, path in sorted(files):
        try:
            found.update(_read(path, step))
        except (OSError, ValueError, RecursionError) as error:
            faults.append(visible(f"{path.name}: left out: {error}"))
    return dict(sorted(found.items())), faults


def _read(path: Path, step: int) -> dict[str, Score]:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("too large")
    raw = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise ValueError("not written by examples/eval/score.py")
    if raw.get("version") != VERSION:
        raise ValueError(f"version {raw.get('version')}, this sagc-verl reads {VERSION}")
    sources = raw.get("sources")
    if not isinstance(sources, dict):
        raise ValueError("sources must be a mapping")
    conditions = {label: _condition(raw.get(key)) for key, label in _CONDITIONS.items()}
    scores = {}
    for name, entry in sources.items():
        if not isinstance(entry, dict):
            raise ValueError(f"sources.{name} must be a mapping")
        accuracy = Estimate(_number(entry, "accuracy"), _number(entry, "low"), _number(entry, "high"))
        if not 0 <= accuracy.value <= 1:
            raise ValueError(f"sources.{name}.accuracy must be from 0 to 1")
        unit = "tokens" if raw.get("length_unit") == "tokens" else "characters"
        scores[visible(name)[:60]] = Score(step, accuracy, _number(entry, "length_mean"), unit, conditions)
    return scores


def _number(entry: Mapping[str, Any], key: str) -> float:
    value = entry.get(key)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e15:
        raise ValueError(f"{key} must be a number")
    return float(value)


def _condition(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:g}"
    return "unknown" if value is None else visible(value)[:40]


@dataclass(frozen=True)
class SettingScore:
    """A setting on one set of questions: of one run its own interval, of several seeds that between them."""

    accuracy: Estimate
    length: Estimate
    unit: str
    steps: tuple[int, ...]

    def accuracy_text(self) -> str:
        """E.g. "51.2% (49.0% to 53.4%)"."""
        text = numbers.share(self.accuracy.value)
        if not self.accuracy.has_interval:
            return text
        return f"{text} ({numbers.share(self.accuracy.low)} to {numbers.share(self.accuracy.high)})"

    def length_text(self) -> str:
        """E.g. "231 tokens"."""
        return f"{numbers.count(self.length.value)} {self.unit}"


def evaluated_sets(comparison: Comparison) -> list[str]:
    """Every set of questions that a run was scored on."""
    return sorted({name for setting in comparison.settings for run in setting.runs for name in run.scores})


def setting_score(setting: Setting, name: str) -> SettingScore | None:
    """How a setting did on a set; None where none of its runs was scored on it."""
    scores = [run.scores[name] for run in setting.runs if name in run.scores]
    if not scores:
        return None
    accuracy = scores[0].accuracy
    if len(scores) > 1:
        accuracy = seed_estimate(np.array([score.accuracy.value for score in scores]))
    length = seed_estimate(np.array([score.length for score in scores]))
    units = {score.unit for score in scores}
    return SettingScore(
        accuracy=accuracy,
        length=length if len(units) == 1 else Estimate(math.nan),
        unit=units.pop() if len(units) == 1 else "tokens and characters",
        steps=tuple(sorted({score.step for score in scores})),
    )


def evaluation_caveats(comparison: Comparison) -> list[str]:
    """What was different between the evaluations, one sentence each."""
    told = []
    for label in (*_CONDITIONS.values(), "training step", "unit of length"):
        values: dict[str, list[str]] = {}
        for setting in comparison.settings:
            for value in sorted({_value(score, label) for run in setting.runs for score in run.scores.values()}):
                values.setdefault(value, []).append(setting.label)
        if len(values) > 1:
            shown = "; ".join(f"{value} in {_first_few(labels)}" for value, labels in values.items())
            told.append(f"The evaluations differ in their {label}: {shown}.")
    return told


def _value(score: Score, label: str) -> str:
    return {"training step": str(score.step), "unit of length": score.unit, **score.conditions}[label]


def _first_few(labels: Sequence[str]) -> str:
    return ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")


def scores_dict(setting: Setting) -> dict[str, Any]:
    """A setting's scores in plain types."""
    names = sorted({name for run in setting.runs for name in run.scores})
    made = {}
    for name in names:
        if (score := setting_score(setting, name)) is not None:
            made[name] = {
                "accuracy": vars(score.accuracy),
                "length": vars(score.length),
                "length_unit": score.unit,
                "steps": list(score.steps),
            }
    return made
