"""Plots as files: .html with plotly, .png (or .svg, .pdf) with matplotlib."""

from __future__ import annotations

import io
from pathlib import Path

from sagc_verl.control import CONSTRAINTS
from sagc_verl.replay.comparison import Comparison
from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.tune import YARDSTICK, Candidate, Tuning
from sagc_verl.report.output import binary_output

IMAGES = ("png", "svg", "pdf")
SHOWN_KINDS = ("sagc", "oracle")


def check_plot_path(path: str) -> str:
    """The ending of a plot file that can be made. Raises SourceError."""
    ending = Path(path).suffix.lstrip(".").lower()
    if ending not in (*IMAGES, "html"):
        raise SourceError(f"--plot {path}: must end in .html, .{', .'.join(IMAGES)}")
    if ending in IMAGES:
        import importlib.util

        if importlib.util.find_spec("matplotlib") is None:
            raise SourceError(
                f"--plot {path}: images need matplotlib, which is not installed; .html needs nothing more"
            )
    return ending


def _series(comparison: Comparison) -> tuple[list, list, list]:
    """Lines of the three panels: (name, x, y)."""
    sizes, costs, times = [], [], []
    for outcome in comparison.outcomes:
        columns = outcome.trace.columns()
        shown = outcome.kind in SHOWN_KINDS
        if shown:
            sizes.append((outcome.name, columns["step"], columns["size"]))
        if shown or outcome is comparison.largest:
            running = (columns["cost"] * columns["count"]).cumsum() / columns["count"].cumsum()
            costs.append((outcome.name, columns["step"], running))
            times.append((outcome.name, columns["step"], columns["step_s"]))
    return sizes, costs, times


def plot_comparison(comparison: Comparison, path: str) -> None:
    """Size, running cost against the budget, seconds a step; and rollouts against seconds of all lines."""
    ending = check_plot_path(path)
    sizes, costs, times = _series(comparison)
    config = comparison.plan.config
    panels = (
        ("group size", sizes, None),
        (f"{CONSTRAINTS[config.constraint].label} so far", costs, config.budget),
        ("predicted seconds a step", times, None),
    )
    points = [(o.name, o.seconds_per_step, o.rollouts_per_step) for o in comparison.outcomes]
    title = f"{comparison.workload.name}: threshold {config.threshold:g}"
    _draw(path, ending, title, panels, points, ("seconds a step", "rollouts a step"))


def plot_tuning(tuning: Tuning, path: str) -> None:
    """Every setting: seconds a step against rollouts a step; the front marked by name."""
    ending = check_plot_path(path)

    def name(candidate: Candidate) -> str:
        chosen = candidate is tuning.recommended
        return candidate.name + (" (recommended)" if chosen else "") if candidate.on_front or chosen else ""

    points = [
        (
            name(c),
            c.outcome.seconds_per_step,
            c.outcome.rollouts_per_step,
        )
        for c in tuning.candidates
    ]
    rates = sorted((c.outcome.rollouts_per_step, c.rate) for c in tuning.front)
    panel = (
        f"straggler rate at threshold {YARDSTICK:g} by rollouts a step",
        [("front", [x for x, _ in rates], [y for _, y in rates])],
        None,
    )
    _draw(path, ending, "settings tried", (panel,), points, ("seconds a step", "rollouts a step"))


def _draw(path: str, ending: str, title: str, panels: tuple, points: list, axes: tuple[str, str]) -> None:
    content = _html(title, panels, points, axes) if ending == "html" else _image(ending, title, panels, points, axes)
    with binary_output(path) as file:
        file.write(content)


def _html(title: str, panels: tuple, points: list, axes: tuple[str, str]) -> bytes:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rows = len(panels) + 1
    figure = make_subplots(rows=rows, cols=1, subplot_titles=[*(head for head, _, _ in panels), "all lines"])
    for row, (_, lines, level) in enumerate(panels, start=1):
        for name, x, y in lines:
            figure.add_trace(
                go.Scatter(x=list(x), y=list(y), name=name, mode="lines+markers" if len(x) < 30 else "lines"),
                row=row,
                col=1,
            )
        if level is not None:
            figure.add_hline(y=level, line_dash="dash", annotation_text="budget", row=row, col=1)  # type: ignore[arg-type]
    names, x, y = zip(*points, strict=True)
    figure.add_trace(
        go.Scatter(x=x, y=y, text=names, mode="markers+text", textposition="top center", showlegend=False),
        row=rows,
        col=1,
    )
    figure.update_xaxes(title_text=axes[0], row=rows, col=1)
    figure.update_yaxes(title_text=axes[1], row=rows, col=1)
    figure.update_layout(title=title, height=320 * rows, template="plotly_white")
    return figure.to_html(include_plotlyjs=True, full_html=True).encode()


def _image(ending: str, title: str, panels: tuple, points: list, axes: tuple[str, str]) -> bytes:
    from matplotlib.figure import Figure

    rows = len(panels) + 1
    figure = Figure(figsize=(8, 2.8 * rows), layout="constrained")
    figure.suptitle(title)
    for row, (head, lines, level) in enumerate(panels, start=1):
        axis = figure.add_subplot(rows, 1, row)
        for name, x, y in lines:
            axis.plot(x, y, label=name, marker="." if len(x) < 30 else None)
        if level is not None:
            axis.axhline(level, linestyle="--", color="gray", label="budget")
        axis.set_title(head, fontsize=10)
        axis.legend(fontsize=8)
    axis = figure.add_subplot(rows, 1, rows)
    for name, x, y in points:
        axis.plot(x, y, "o", color="tab:blue" if name else "lightgray")
        axis.annotate(name, (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axis.set_xlabel(axes[0])
    axis.set_ylabel(axes[1])
    buffer = io.BytesIO()
    # no time stamp: the same replay gives the same file
    figure.savefig(buffer, format=ending, dpi=110, metadata={"Software": None} if ending == "png" else None)
    return buffer.getvalue()
