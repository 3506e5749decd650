"""The figures of the HTML report, as plain plotly.js figures (dicts).

Colours are names ("@series0", "@phase3", "@muted") that the page turns into colours of its light or dark palette.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sagc_verl.report.comparison import Comparison, Setting
from sagc_verl.report.measures import OTHER_PHASE, PHASES, RunMeasures
from sagc_verl.report.statistics import trailing_mean

SERIES_COLOURS = 8
PHASE_COLOURS = 12
MAX_POINTS = 500  # per line: longer runs are averaged over stretches of steps
LENGTH_BINS = 60
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        title, caption: for readers; plain text.
        data, layout: plotly.js traces and layout.
        wide: whether it takes the page's whole width.
    """

    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    wide: bool = False


@dataclass(frozen=True)
class _Curve:
    """A column over an axis, one line per setting, with the range between seeds where there are several."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def figures(comparison: Comparison) -> list[Figure]:
    """Every figure that the runs have data for, in reading order."""
    made = [
        _sizes(comparison),
        *_costs(comparison),
        _reward(comparison, "step", "step", "Reward against steps"),
        _reward(comparison, "rollouts_done", "rollouts generated", "Reward against rollouts"),
        _reward(comparison, "seconds_done", "wall seconds", "Reward against wall-clock"),
        _tail(comparison),
        _step_time(comparison),
        _length_by_outcome(comparison),
        _length_distribution(comparison),
        *_validation(comparison),
    ]
    return [figure for figure in made if figure is not None]


def plot_text(text: str) -> str:
    """Text for plotly, which reads tags and entities in names: all of it is shown as it is."""
    return html.escape(text, quote=False)


def _sizes(comparison: Comparison) -> Figure | None:
    def line(place: int, setting: Setting) -> list[dict[str, Any]]:
        curve = _curve(setting, "step", "n", window=1)
        return [_line(curve, setting, place, line={"shape": "hv"})] if curve else []

    return _figure(
        comparison,
        line,
        "Group size",
        "Rollouts per prompt at each step.",
        x="step",
        y="n",
        layout={"yaxis": {"rangemode": "tozero"}},
    )


def _costs(comparison: Comparison) -> list[Figure | None]:
    """The straggler rate; the waiting share too where a budget limits that."""
    made = [_cost(comparison, "straggler_rate", "Straggler rate", "Share of groups with a straggler")]
    if any(setting.cost_key == "waiting_share" for setting in comparison.settings):
        made.append(_cost(comparison, "waiting_share", "Waiting share", "Share of a group's slot time spent waiting"))
    return made


def _cost(comparison: Comparison, key: str, name: str, meaning: str) -> Figure | None:
    held = [setting for setting in comparison.settings if setting.cost_key == key]
    budgets = sorted({setting.budget for setting in held if math.isfinite(setting.budget)})

    def line(place: int, setting: Setting) -> list[dict[str, Any]]:
        curve = _curve(setting, "step", key, comparison.window)
        return _with_band(curve, setting, place) if curve else []

    caption = f"{meaning}, mean of {comparison.window} steps."
    shapes = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": budget,
            "y1": budget,
            "line": {"color": "@text", "width": 1, "dash": "dot"},
        }
        for budget in budgets
    ]
    notes = [
        {
            "xref": "paper",
            "x": 0.01,
            "xanchor": "left",
            "y": budget,
            "text": f"budget {budget:.3g}",
            "showarrow": False,
            "bgcolor": "@paper",
            "font": {"color": "@text", "size": 11},
        }
        for budget in budgets
    ]
    layout = {"yaxis": {"tickformat": ".0%", "rangemode": "tozero"}, "shapes": shapes, "annotations": notes}
    return _figure(
        comparison,
        line,
        f"{name} against the budget" if budgets else name,
        caption,
        x="step",
        y=name.lower(),
        layout=layout,
    )


def _reward(comparison: Comparison, axis: str, label: str, title: str) -> Figure | None:
    def line(place: int, setting: Setting) -> list[dict[str, Any]]:
        curve = _curve(setting, axis, "reward", comparison.window)
        return _with_band(curve, setting, place) if curve else []

    caption = f"Mean reward of all rollouts generated, mean of {comparison.window} steps."
    layout: dict[str, Any] = {}
    if math.isfinite(comparison.target) and len(comparison.settings) > 1:
        target = comparison.target
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": target,
                "y1": target,
                "line": {"color": "@muted", "width": 1, "dash": "dot"},
            }
        ]
        caption += " Dotted: the highest that all runs reach."
    return _figure(comparison, line, title, caption, x=label, y="reward", layout=layout)


def _step_time(comparison: Comparison) -> Figure | None:
    data = []
    labels = [plot_text(setting.label) for setting in comparison.settings]
    means = [_phase_means(setting) for setting in comparison.settings]
    for place, phase in enumerate((*PHASES, OTHER_PHASE)):
        seconds = [mean.get(phase, 0.0) for mean in means]
        if sum(seconds) > 0:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": phase,
                    "y": labels,
                    "x": seconds,
                    "marker": {"color": f"@phase{place}", "line": {"color": "@paper", "width": 1}},
                    "hovertemplate": f"{phase}: %{{x:.3g}} s<extra>%{{y}}</extra>",
                }
            )
    if not data:
        return None
    layout = {
        "barmode": "stack",
        "bargap": 0.4,
        "height": 130 + 44 * len(labels),
        "xaxis": {"title": {"text": "seconds per step"}},
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False, "ticklabelstandoff": 8},
        "legend": {"traceorder": "normal"},
    }
    return Figure(
        "Where a step's time goes", "Mean seconds per step and phase, as veRL timed them.", data, layout, wide=True
    )


def _tail(comparison: Comparison) -> Figure | None:
    def line(place: int, setting: Setting) -> list[dict[str, Any]]:
        curve = _curve(setting, "step", "tail_s", comparison.window)
        return _with_band(curve, setting, place) if curve else []

    caption = f"From 90% of a step's rollouts done to the last one, mean of {comparison.window} steps."
    layout = {"yaxis": {"rangemode": "tozero"}}
    return _figure(comparison, line, "Tail seconds", caption, x="step", y="seconds", layout=layout)


def _length_by_outcome(comparison: Comparison) -> Figure | None:
    def line(place: int, setting: Setting) -> list[dict[str, Any]]:
        lines = []
        for column, dash, outcome in (("length_right", "solid", "right"), ("length_wrong", "dot", "wrong")):
            curve = _curve(setting, "step", column, comparison.window)
            if curve is not None:
                shown = _line(curve, setting, place, line={"dash": dash})
                shown.update({"legendgroup": f"setting{place}", "showlegend": not lines})
                shown["hovertemplate"] = f"step %{{x}}, {outcome}: %{{y}} tokens"
                lines.append(shown)
        return lines

    caption = f"Mean tokens of right (solid) and wrong (dotted) answers, mean of {comparison.window} steps."
    return _figure(
        comparison,
        line,
        "Response length by outcome",
        caption,
        x="step",
        y="tokens",
        layout={"yaxis": {"rangemode": "tozero"}},
    )


def _length_distribution(comparison: Comparison) -> Figure | None:
    counts = [
        sum_counts([run.right for run in setting.runs] + [run.wrong for run in setting.runs])
        for setting in comparison.settings
    ]
    longest = (
        max(int(np.flatnonzero(one)[-1]) for one in counts if one.any()) if any(one.any() for one in counts) else 0
    )
    if longest == 0:
        return None
    width = max(1, math.ceil((longest + 1) / LENGTH_BINS))
    edges = np.arange(0, longest + width + 1, width)
    data = []
    for place, (setting, one) in enumerate(zip(comparison.settings, counts, strict=True)):
        if not one.any():
            continue
        padded = np.zeros(edges[-1], dtype=np.int64)
        padded[: one.size] = one[: edges[-1]]
        share = padded.reshape(-1, width).sum(axis=1) / padded.sum()
        curve = _Curve(edges[:-1].astype(float), share, None, None)
        data.append(_line(curve, setting, place, line={"shape": "hv"}))
    layout = {
        "xaxis": {"title": {"text": "response tokens"}},
        "yaxis": {"title": {"text": "share of responses"}, "tickformat": ".1%", "rangemode": "tozero"},
    }
    caption = f"All responses of the run, in bins of {width} tokens. A bar at the right end is the length limit."
    return Figure("Response lengths", caption, data, layout)


def _validation(comparison: Comparison) -> list[Figure]:
    names = list(
        dict.fromkeys(name for setting in comparison.settings for run in setting.runs for name in run.validation)
    )
    made = []
    for name in names[:6]:

        def line(place: int, setting: Setting, name: str = name) -> list[dict[str, Any]]:
            curve = _curve(setting, "step", name, window=1)
            if curve is None:
                return []
            shown = _with_band(curve, setting, place)
            shown[-1].update(
                {"mode": "lines+markers", "marker": {"size": 6, "color": f"@series{place % SERIES_COLOURS}"}}
            )
            return shown

        figure = _figure(
            comparison, line, f"Validation: {name}", "Scores of veRL's own validation.", x="step", y="score"
        )
        if figure is not None:
            made.append(figure)
    return made


def _figure(
    comparison: Comparison,
    line: Callable[[int, Setting], list[dict[str, Any]]],
    title: str,
    caption: str,
    *,
    x: str,
    y: str,
    layout: dict[str, Any] | None = None,
) -> Figure | None:
    data = [trace for place, setting in enumerate(comparison.settings) for trace in line(place, setting)]
    if not data:
        return None
    layout = dict(layout or {})
    layout["xaxis"] = {"title": {"text": x}, **layout.get("xaxis", {})}
    layout["yaxis"] = {"title": {"text": y}, **layout.get("yaxis", {})}
    return Figure(title, caption, data, layout)


def _line(curve: _Curve, setting: Setting, place: int, line: dict[str, Any] | None = None) -> dict[str, Any]:
    dash = _DASHES[place // SERIES_COLOURS % len(_DASHES)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plot_text(setting.label),
        "x": _rounded(curve.x),
        "y": _rounded(curve.y),
        "line": {"color": f"@series{place % SERIES_COLOURS}", "width": 2, "dash": dash, **(line or {})},
    }


def _with_band(curve: _Curve, setting: Setting, place: int) -> list[dict[str, Any]]:
    lines = [_line(curve, setting, place)]
    if curve.low is None or curve.high is None:
        return lines
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": _rounded(np.concatenate([curve.x, curve.x[::-1]])),
        "y": _rounded(np.concatenate([curve.high, curve.low[::-1]])),
        "fill": "toself",
        "fillcolor": f"@band{place % SERIES_COLOURS}",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, *lines]


def _curve(setting: Setting, axis: str, column: str, window: int) -> _Curve | None:
    """Mean over seeds at each step, smoothed over `window` steps; only steps that every seed has."""
    runs = [run for run in setting.runs if _has(run, column) and _has(run, axis)]
    if not runs:
        return None
    steps = runs[0].column("step")
    for run in runs[1:]:
        steps = np.intersect1d(steps, run.column("step"))
    if steps.size == 0:
        return None
    values, along = [], []
    for run in runs:
        rows = np.searchsorted(run.column("step"), steps)
        values.append(trailing_mean(_series(run, column), window)[rows] if window > 1 else _series(run, column)[rows])
        along.append(_series(run, axis)[rows])
    y = np.array(values)
    x = np.array(along).mean(axis=0)
    there = np.isfinite(y).all(axis=0) & np.isfinite(x)
    x, y = x[there], y[:, there]
    if x.size == 0:
        return None
    # What the size did is shown exactly; all else is thinned by averaging over stretches.
    x, y = (x, y) if column == "n" else _thinned(x, y)
    several = len(runs) > 1
    return _Curve(x, y.mean(axis=0), y.min(axis=0) if several else None, y.max(axis=0) if several else None)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if x.size <= MAX_POINTS:
        return x, y
    starts = np.unique(np.linspace(0, x.size, MAX_POINTS, endpoint=False).astype(int))
    sizes = np.diff(np.append(starts, x.size))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts, axis=1) / sizes


def _series(run: RunMeasures, column: str) -> np.ndarray:
    table = run.validation if column in run.validation else run.steps
    return table[column].to_numpy(dtype=float)


def _has(run: RunMeasures, column: str) -> bool:
    if column not in run.steps and column not in run.validation:
        return False
    return bool(np.isfinite(_series(run, column)).any())


def _phase_means(setting: Setting) -> dict[str, float]:
    names = dict.fromkeys(name for run in setting.runs for name in run.phases)
    return {
        str(name): float(np.mean([run.phases[name].mean() if name in run.phases else 0.0 for run in setting.runs]))
        for name in names
    }


def sum_counts(counts: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of count arrays of different lengths."""
    total = np.zeros(max((one.size for one in counts), default=1), dtype=np.int64)
    for one in counts:
        total[: one.size] += one
    return total


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]
