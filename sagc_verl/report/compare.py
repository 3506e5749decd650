"""Runs side by side: which setting did what, and whether they may be compared at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sagc_verl.report import numbers
from sagc_verl.report.comparison import Comparison, Setting, spoiled_by
from sagc_verl.report.evals import evaluated_sets, evaluation_caveats, setting_score
from sagc_verl.report.measures import RunMeasures, Watch, measure_run
from sagc_verl.report.metrics import BY_KEY, METRICS, Reach, best_smoothed, reach
from sagc_verl.report.settings import INCOMPARABLE_KINDS, UNKNOWN, Difference, differences
from sagc_verl.report.source import open_runs
from sagc_verl.report.statistics import Estimate, finite_mean, seed_estimate, smoothing_window
from sagc_verl.report.summary import budget_of
from sagc_verl.report.verdicts import verdicts

if TYPE_CHECKING:
    from rich.console import Console

NOT_COMPARABLE = "Not comparable as they stand; the runs differ in"
LABEL_WIDTH = 40
SETS_SHOWN = 4
"""Downstream sets in the terminal; the report has all."""
_COST_PLACE = {"straggler_rate": 2, "waiting_share": 3}
"""The cell that is marked when a setting is over its budget."""
TABLE_METRICS = ("steps", "wall_seconds", "straggler_rate", "mean_n", "rollouts", "reward", "reward_per_second")


def compare_runs(paths: Iterable[str | Path], right_above: float = 0.0, watch: Watch | None = None) -> Comparison:
    """Reads runs and sets them side by side.

    Args:
        paths: run directories, directories of runs, or steps tables that `import-log` wrote.
        right_above: a rollout counts as a right answer where its reward is above this.
        watch: is told the share of the reading that is done.

    Raises:
        RecordsError: a path holds no run that can be read.
        ValueError: no path, or a run without steps.
    """
    runs = [run for path in paths for run in open_runs(path)]
    if not runs:
        raise ValueError("nothing to compare: name at least one run")
    measures = []
    for number, run in enumerate(runs):
        part = None if watch is None else partial(_watch_part, watch, number, len(runs))
        measures.append(measure_run(run, right_above, part))
    return compare_measures(measures, right_above)


def compare_measures(runs: Sequence[RunMeasures], right_above: float = 0.0) -> Comparison:
    """The comparison of runs that `measure_run` has read."""
    window = smoothing_window(min(len(run.steps) for run in runs))
    tops = [best_smoothed(run, window) for run in runs]
    known = [top for top in tops if math.isfinite(top)]
    target = min(known) if known else math.nan
    lowest = runs[tops.index(target)].name if len(known) > 1 else ""
    settings = _settings(runs, target, window)
    found = _differences(settings)
    comparison = Comparison(
        settings=settings,
        target=target,
        target_run=lowest,
        window=window,
        right_above=right_above,
        differences=tuple(found),
        incomparable=tuple(_incomparable(settings, found)),
        missing=(),
        warnings=tuple(f"{run.name}: {warning}" for run in runs for warning in run.warnings),
    )
    return replace(comparison, missing=tuple(_missing_comparators(comparison)), sentences=tuple(verdicts(comparison)))


def render_table(comparison: Comparison, console: Console) -> None:
    """Prints the table of settings and, under it, what it supports and what it does not."""
    from rich.table import Table
    from rich.text import Text

    rows = [_table_cells(setting) for setting in comparison.settings]
    headers = [BY_KEY[key].label for key in TABLE_METRICS]
    headers.insert(3, "budget")
    gap = 2 if console.width >= 100 else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for place, header in enumerate(headers):
        # A narrow terminal may wrap headers between words and labels anywhere, but never cuts a number.
        width = max(len(text) for text in (*header.split(), *(cells[place] for cells in rows)))
        table.add_column(header, justify="right", min_width=width)
    for setting, cells in zip(comparison.settings, rows, strict=True):
        marked = cells[_COST_PLACE[setting.cost_key]] if setting.over_budget else None
        table.add_row(Text(setting.label), *(Text(cell, "red" if cell is marked else "") for cell in cells))
    console.print(table)
    _render_scores(comparison, console)
    if comparison.incomparable:
        console.print(f"\n{NOT_COMPARABLE}")
        for line in comparison.incomparable:
            console.print(Text(f"- {line}"))
    for sentence in (*comparison.missing, *comparison.sentences, *comparison.warnings):
        console.print()
        console.print(Text(sentence))


def _render_scores(comparison: Comparison, console: Console) -> None:
    """Accuracy and length of answers on downstream sets, where runs were scored on any."""
    from rich.table import Table
    from rich.text import Text

    names = evaluated_sets(comparison)
    if not names:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("evaluation", overflow="fold")
    for name in names[:SETS_SHOWN]:
        table.add_column(Text(name), justify="right")
    for setting in comparison.settings:
        scores = [setting_score(setting, name) for name in names[:SETS_SHOWN]]
        cells = [f"{one.accuracy_text()}, {one.length_text()}" if one else numbers.UNKNOWN for one in scores]
        table.add_row(Text(setting.label), *(Text(cell) for cell in cells))
    console.print()
    console.print(table)
    if len(names) > SETS_SHOWN:
        console.print(f"{len(names) - SETS_SHOWN} more sets: --html, --json")
    for line in evaluation_caveats(comparison):
        console.print(Text(line))


def _table_cells(setting: Setting) -> list[str]:
    cells = [BY_KEY[key].form(setting.values[key].value) for key in TABLE_METRICS]
    cells.insert(3, budget_text(setting))
    return cells


def budget_text(setting: Setting) -> str:
    """The budget; with what was reached, where that is not the straggler rate beside it."""
    budget = numbers.share(setting.budget)
    if setting.cost_key == "straggler_rate":
        return budget
    return f"{budget} (waiting {numbers.share(setting.values[setting.cost_key].value)})"


def _watch_part(watch: Watch, number: int, parts: int, share: float) -> None:
    watch((number + share) / parts)


def _settings(runs: Sequence[RunMeasures], target: float, window: int) -> tuple[Setting, ...]:
    groups: dict[str, list[RunMeasures]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(run.settings.group_key or f"run {number}", []).append(run)
    members = list(_same_run_twice_apart(groups.values()))
    labels = _labels(members)
    return tuple(_setting(label, group, target, window) for label, group in zip(labels, members, strict=True))


def _same_run_twice_apart(groups: Iterable[list[RunMeasures]]) -> Iterable[list[RunMeasures]]:
    """Runs of one setting belong together only where their seeds tell them apart; repeats are shown alone."""
    for group in groups:
        seeds = Counter(run.settings.seed_text for run in group)
        if max(seeds.values()) == 1:
            yield group
        else:
            yield from ([run] for run in group)


def _setting(label: str, runs: list[RunMeasures], target: float, window: int) -> Setting:
    single = [{metric.key: metric.estimate(run) for metric in METRICS} for run in runs]
    costs = [reach(run, target, window) if math.isfinite(target) else _NEVER for run in runs]
    if len(runs) == 1:
        values, reached = single[0], {name: getattr(costs[0], name) for name in vars(costs[0])}
    else:
        values = {key: seed_estimate(np.array([one[key].value for one in single])) for key in single[0]}
        reached = {
            name: seed_estimate(np.array([getattr(cost, name).value for cost in costs])) for name in vars(costs[0])
        }
    return Setting(label, tuple(runs), values, reached, finite_mean(np.array([budget_of(run) for run in runs])))


_NEVER = Reach(*(Estimate(math.nan),) * 4)


def _labels(groups: Sequence[Sequence[RunMeasures]]) -> list[str]:
    """Short names that tell the settings apart: the runs' names, with the directory where names repeat."""
    named = [group[0].name if len(group) == 1 else _common_name([run.name for run in group]) for group in groups]
    folders = {name.rpartition("/")[0] for name in named}
    if len(folders) == 1 and len(named) > 1:
        named = [name.rpartition("/")[2] for name in named]
    counts = Counter(named)
    told = [
        _clip(f"{name} ({group[0].directory})" if counts[name] > 1 else name, LABEL_WIDTH)
        for name, group in zip(named, groups, strict=True)
    ]
    seeds = [f" ({len(group)} seeds)" if len(group) > 1 else "" for group in groups]
    return [label + count for label, count in zip(_numbered(told), seeds, strict=True)]


def _numbered(labels: Sequence[str]) -> Iterator[str]:
    counts, seen = Counter(labels), Counter()
    for label in labels:
        seen[label] += 1
        yield f"{label} #{seen[label]}" if counts[label] > 1 else label


def _common_name(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    length = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    stem = first[:length].rstrip("-_./ ")
    for word in ("seed", "s"):
        stem = stem.removesuffix(word).rstrip("-_./ ") if stem.endswith(("-" + word, "_" + word)) else stem
    return stem or names[0]


def _differences(settings: Sequence[Setting]) -> list[Difference]:
    found = [one for one in differences([setting.runs[0].settings for setting in settings]) if one.kind != "seed"]
    seeds = [_seeds_text(setting) for setting in settings]
    # With one seed its luck decides; several are a sample each, and samples need not be of the same seeds.
    if len(set(seeds) - {""}) > 1 and min(len(setting.runs) for setting in settings) == 1:
        found.insert(0, Difference("seed", "seeds", tuple(text or UNKNOWN for text in seeds)))
    steps = [str(max(len(run.steps) for run in setting.runs)) for setting in settings]
    if len(set(steps)) > 1 and not any(one.kind == "steps" for one in found):
        found.append(Difference("steps", "steps on record", tuple(steps)))
    order = [*(kind for kind, _ in INCOMPARABLE_KINDS), ""]
    return sorted(found, key=lambda one: order.index(one.kind))


def _seeds_text(setting: Setting) -> str:
    return " | ".join(sorted(run.settings.seed_text for run in setting.runs))


def _incomparable(settings: Sequence[Setting], found: Sequence[Difference]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(one.kind for one in found if one.kind):
        keys = [one for one in found if one.kind == kind]
        told = "; ".join(_told(settings, one) for one in keys[:2])
        more = f" (and {len(keys) - 2} more keys)" if len(keys) > 2 else ""
        limits = {"straggler event": ", so not in straggler rates", "steps": ", so not in totals"}.get(kind, "")
        lines.append(f"{kind}{limits}: {told}{more}")
    nameless = [setting.label for setting in settings if not setting.runs[0].settings.flat]
    if nameless and len(settings) > 1:
        lines.append(f"unknown: no configuration is on record for {', '.join(nameless)}")
    return lines


def _told(settings: Sequence[Setting], one: Difference) -> str:
    values: dict[str, list[str]] = {}
    for setting, value in zip(settings, one.values, strict=True):
        values.setdefault(value, []).append(setting.label)
    return f"{one.key} " + ", ".join(f"{_clip(value)} in {' and '.join(labels)}" for value, labels in values.items())


def _missing_comparators(comparison: Comparison) -> list[str]:
    sentences = []
    for setting in comparison.settings:
        mean = setting.values["mean_n"].value
        if setting.policy != "sagc" or not math.isfinite(mean):
            continue
        around = [round(mean)] if abs(mean - round(mean)) < 0.05 else [math.floor(mean), math.ceil(mean)]
        wanted = {size: f"static n={size}, next to its mean of {numbers.plain(mean)}" for size in around}
        if setting.largest_size is not None:
            wanted[setting.largest_size] = f"static n={setting.largest_size}, its largest size"
        there = {other.static_size for other in comparison.settings if not spoiled_by(comparison, setting, other)}
        absent = {size: why for size, why in sorted(wanted.items()) if size not in there}
        if absent:
            first = next(iter(absent))
            sentences.append(
                f"For a fair judgement of {setting.label}, these runs are missing: {'; '.join(absent.values())}."
                f" Add to the same script, e.g.: +sagc.policy=static actor_rollout_ref.rollout.n={first}"
            )
    return sentences


def _clip(value: str, width: int = 80) -> str:
    return value if len(value) <= width else value[: width - 3] + "..."
