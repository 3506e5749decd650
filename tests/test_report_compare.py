from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from report_runs import write_run
from rich.console import Console

from sagc_verl.report.compare import compare_runs, render_table
from sagc_verl.report.comparison import Comparison, difference
from sagc_verl.report.html import render_html
from sagc_verl.report.metrics import BY_KEY, best_smoothed
from sagc_verl.report.plots import figures
from sagc_verl.report.summary import render_summary, summarise
from sagc_verl.report.verdicts import contrasts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "static8", sizes=(8,))
    write_run(place / "sagc", policy="sagc", sizes=(4, 6, 8))
    write_run(place / "static5", sizes=(5,))
    return place


@pytest.fixture(scope="module")
def found(place: Path) -> Comparison:
    return compare_runs([place / "static8", place / "sagc", place / "static5"])


def text_of(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=1000)
    render_table(comparison, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_has_what_the_quickstart_promises(found: Comparison) -> None:
    header, *rows = text_of(found).splitlines()[:4]
    for name in (
        "steps",
        "wall seconds",
        "straggler rate",
        "budget",
        "mean n",
        "rollouts",
        "reward",
        "reward per second",
    ):
        assert name in header
    assert [row.split()[0] for row in rows] == ["static8", "sagc", "static5"]
    assert rows[0].split()[1] == "24"


@pytest.mark.parametrize(("budget", "verdict"), [(0.9, "kept"), (0.1, "not kept")])
def test_a_budget_for_waiting_is_compared_with_the_waiting_share(
    place: Path, tmp_path: Path, budget: float, verdict: str
) -> None:
    write_run(
        tmp_path / "waits", policy="sagc", sizes=(4, 6, 8), budget=budget,
        sagc__constraint="waiting", sagc__budget=budget,
    )  # fmt: skip
    comparison = compare_runs([place / "static8", tmp_path / "waits"])
    setting = comparison.settings[1]
    share = setting.values["waiting_share"].value
    assert setting.over_budget == (verdict == "not kept")
    told = f"waits: waiting share {share:.1%}"
    assert any(told in line and f"budget of {budget:.1%}: {verdict}" in line for line in comparison.sentences)
    assert f"{budget:.1%} (waiting {share:.1%})" in text_of(comparison)
    assert f"{budget:.1%} (waiting {share:.1%})" in render_html(comparison)
    shown = {figure.title: figure.layout.get("shapes") for figure in figures(comparison)}
    assert shown["Straggler rate against the budget"]
    assert [shape["y0"] for shape in shown["Waiting share against the budget"]] == [budget]
    console = Console(file=io.StringIO(), width=200)
    render_summary(summarise(setting.runs[0]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"budget {budget:.1%} of slot time waiting" in text
    assert f"{share:.1%} of a group's slot time, {'over' if setting.over_budget else 'within'} the budget" in text


def test_reward_per_second_is_the_gain_by_wall_time(found: Comparison) -> None:
    values = found.settings[0].values
    expected = values["reward_gain"].value / values["wall_seconds"].value
    assert values["reward_per_second"].value == pytest.approx(expected)


def test_missing_comparators_are_asked_for_by_size(found: Comparison) -> None:
    (sentence,) = found.missing
    assert "static n=6" in sentence  # the mean is 5.58: 5 and 8 are there
    assert "static n=5" not in sentence
    assert "static n=8" not in sentence


def test_comparable_runs_draw_no_complaint(found: Comparison) -> None:
    assert found.incomparable == ()
    assert all(not contrast.spoiled for contrast in contrasts(found))


def test_incomparable_runs_are_named_with_the_reason(place: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", sizes=(8,), actor_rollout_ref__model__path="models/big", seed=2)
    found = compare_runs([place / "sagc", other])
    assert any(line.startswith("model: ") and "models/big" in line for line in found.incomparable)
    assert any(line.startswith("seed: ") for line in found.incomparable)
    assert set(contrasts(found)[0].spoiled) == {"model", "seed"}
    assert "not comparable: other model, seed" in text_of(found)


def test_faster_steps_are_shown_and_noise_is_not(found: Comparison) -> None:
    static8, sagc, static5 = found.settings
    faster = difference(sagc, static8, BY_KEY["step_seconds"], relative=True)
    assert faster.excludes_zero
    assert faster.value < 0
    assert not difference(sagc, static5, BY_KEY["length_mean"]).excludes_zero
    sentence = contrasts(found)[0].sentence()
    assert sentence.startswith("sagc against static8 (static n=8): ")
    assert "fewer seconds per step" in sentence
    assert "no difference shown in" in sentence


def test_without_gain_over_the_mean_size_it_says_so(found: Comparison) -> None:
    assert any("Nothing here shows that sagc did better than static5" in sentence for sentence in found.sentences)


def test_one_seed_is_a_caveat(found: Comparison) -> None:
    assert "One seed per setting" in found.sentences[-1]


def test_every_run_reaches_the_target(found: Comparison) -> None:
    tops = [best_smoothed(setting.runs[0], found.window) for setting in found.settings]
    assert found.target == min(tops)
    for setting in found.settings:
        reached = setting.reached
        row = int(reached["steps"].value) - 1
        assert reached["seconds"].value == setting.runs[0].column("seconds_done")[row]
        assert reached["rollouts"].value == setting.runs[0].column("rollouts_done")[row]


def test_seeds_of_one_setting_are_one_line(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / f"static8-s{seed}", sizes=(8,), seed=seed, steps=9)
        write_run(tmp_path / f"static4-s{seed}", sizes=(4,), seed=seed, steps=9)
    found = compare_runs([tmp_path])
    assert [setting.label for setting in found.settings] == ["static4 (3 seeds)", "static8 (3 seeds)"]
    assert found.incomparable == ()
    small, large = found.settings
    assert difference(small, large, BY_KEY["step_seconds"]).excludes_zero
    assert "between seeds" in found.sentences[-1]
    spread = [run.column("wall_s").mean() for run in large.runs]
    assert large.values["step_seconds"].value == pytest.approx(sum(spread) / 3)


def test_the_same_seed_twice_is_two_lines(tmp_path: Path) -> None:
    write_run(tmp_path / "one", name="same", steps=4)
    write_run(tmp_path / "two", name="same", steps=4)
    found = compare_runs([tmp_path / "one", tmp_path / "two"])
    assert [setting.label for setting in found.settings] == ["same (one)", "same (two)"]


def test_runs_of_different_length_are_compared_on_their_common_steps(place: Path, tmp_path: Path) -> None:
    short = write_run(tmp_path / "short", sizes=(8,), steps=10)
    found = compare_runs([place / "static8", short])
    assert any(line.startswith("steps, so not in totals: ") for line in found.incomparable)
    change = difference(found.settings[1], found.settings[0], BY_KEY["length_mean"])
    assert abs(change.value) < 30


def test_a_single_run_is_shown_without_a_verdict(place: Path) -> None:
    found = compare_runs([place / "static8"])
    assert found.sentences == (
        "One run alone shows what happened, not what SAGC changed: compare it with a static run.",
    )


def test_runs_from_logs_take_part_with_what_they_have(place: Path, tmp_path: Path) -> None:
    from sagc_verl.records.importlog import import_log

    lines = [
        f"step:{step} - critic/score/mean:0.{step + 10} - response_length/mean:90.0 - prompt_length/mean:10.0"
        f" - timing_s/step:5.0 - perf/total_num_tokens:6400"
        for step in range(1, 21)
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines))
    frame = tmp_path / "old.parquet"
    import_log(log).to_parquet(frame)
    found = compare_runs([frame, place / "sagc"])
    old = found.settings[0]
    assert old.label == "old"
    assert old.values["rollouts"].value == 20 * 64
    assert math.isnan(old.values["straggler_rate"].value)
    assert any("unknown" in line for line in found.incomparable)
    assert "old" in text_of(found)


def test_numbers_are_plain_json(found: Comparison) -> None:
    from sagc_verl.cli.terminal import finite

    again = json.loads(json.dumps(finite(found.as_dict()), allow_nan=False))
    assert [setting["label"] for setting in again["settings"]] == ["static8", "sagc", "static5"]
    assert again["settings"][0]["validation"]["val-core/gsm8k/reward/mean@1"] == [pytest.approx(0.7)]


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_runs([])


def test_other_settings_that_differ_are_named_beside_the_verdict(place: Path, tmp_path: Path) -> None:
    engineered = write_run(tmp_path / "engineered", sizes=(8,), actor_rollout_ref__actor__use_dynamic_bsz=True)
    (contrast,) = contrasts(compare_runs([place / "sagc", engineered]))
    assert contrast.spoiled == ()
    assert "(they also differ in actor_rollout_ref.actor.use_dynamic_bsz): " in contrast.sentence()


def test_rates_of_different_events_are_not_compared(place: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", sizes=(8,), sagc__threshold=4.0)
    found = compare_runs([place / "sagc", other])
    assert any(line.startswith("straggler event, so not in straggler rates: ") for line in found.incomparable)
    (contrast,) = contrasts(found)
    assert contrast.spoiled == ()
    assert "straggler_rate" not in [measure.key for measure, _ in contrast.changes]
    assert "step_seconds" in [measure.key for measure, _ in contrast.changes]


def test_a_comparator_with_another_model_is_none(place: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "static8", sizes=(8,), actor_rollout_ref__model__path="models/big")
    (sentence,) = compare_runs([place / "sagc", other]).missing
    assert "static n=8, its largest size" in sentence


def test_a_narrow_terminal_never_cuts_a_number(found: Comparison) -> None:
    console = Console(file=io.StringIO(), width=80)
    render_table(found, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for setting in found.settings:
        assert BY_KEY["reward_per_second"].form(setting.values["reward_per_second"].value) in text
        assert BY_KEY["rollouts"].form(setting.values["rollouts"].value) in text
    assert max(map(len, text.splitlines()[:5])) <= 80
