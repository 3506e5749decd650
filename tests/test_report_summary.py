from __future__ import annotations

import io
import math

import pytest
from report_runs import write_run
from rich.console import Console

from sagc_verl.records.reader import Run
from sagc_verl.report import numbers
from sagc_verl.report.measures import measure_run
from sagc_verl.report.statistics import Estimate
from sagc_verl.report.summary import Summary, render_summary, summarise


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("runs") / "mine"
    return Run(write_run(directory, policy="sagc", sizes=(4, 6, 8), steps=20) / "sagc")


@pytest.fixture(scope="module")
def summary(run: Run) -> Summary:
    return summarise(measure_run(run))


def test_it_says_what_the_run_was(summary: Summary) -> None:
    assert (summary.run, summary.policy, summary.sizes) == ("mine", "sagc", (4, 6, 8))
    assert (summary.budget, summary.threshold) == (0.2, 2.5)
    assert summary.model == "models/tiny"
    assert summary.hardware == "2 cores of test cpu"


def test_its_numbers_are_those_of_the_tables(run: Run, summary: Summary) -> None:
    steps = run.steps
    assert summary.steps == 20
    assert summary.wall_seconds == pytest.approx(steps["wall_s"].sum())
    assert summary.mean_n == pytest.approx(steps["n"].mean())
    assert summary.straggler_rate == pytest.approx(steps["straggler_rate"].mean())
    assert summary.moves == 3
    assert summary.rollouts == len(run.rollouts)
    rewards = [rows["reward"].mean() for _, rows in run.rollouts.groupby("step")]
    assert summary.reward_first == pytest.approx(sum(rewards[:2]) / 2, abs=1e-6)
    assert summary.reward_last == pytest.approx(sum(rewards[-2:]) / 2, abs=1e-6)
    gain = summary.reward_last - summary.reward_first
    assert summary.reward_per_second == pytest.approx(gain / summary.wall_seconds)
    assert sum(summary.phases.values()) == pytest.approx(summary.wall_seconds / 20)


def test_it_reads_well_in_a_terminal(summary: Summary) -> None:
    console = Console(file=io.StringIO(), width=200)
    render_summary(summary, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "sagc, sizes 4 6 8, budget 20.0%, threshold 2.5",
        "mean n",
        "3 moves",
        "the budget of 20.0%",
        "tail seconds",
        "Seconds per step",
        "Straggling rollouts by cause",
        "Prompts with most stragglers",
        "val-core/gsm8k/reward/mean@1",
    ):
        assert words in text
    assert "nan" not in text


def test_it_reads_the_rollouts_in_batches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "rollouts", property(lambda self: pytest.fail("the whole table was loaded")))
    monkeypatch.setattr(Run, "groups", property(lambda self: pytest.fail("the whole table was loaded")))
    assert measure_run(run).has_rollouts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00141, "0.00141"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (0.0, "0"),
        (-0.5, "-0.500"),
        (1.4e-6, "1.40e-06"),
        (math.nan, "-"),
        (None, "-"),
        (0.9999, "1.000"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert numbers.plain(value) == text


def test_numbers_of_other_kinds() -> None:
    assert numbers.share(0.1234) == "12.3%"
    assert numbers.count(1234567.0) == "1,234,567"
    assert numbers.seconds(7384) == "7,384 (2h03)"
    assert numbers.seconds(9.87) == "9.9"
    assert numbers.with_interval(Estimate(0.5, 0.4, 0.6)) == "0.500 [0.400, 0.600]"
    assert numbers.with_interval(Estimate(0.5)) == "0.500"
