"""The HTML report: one file that needs nothing else, not even a network.

Every text that comes from data is escaped; the page's own policy forbids it to load or send anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from sagc_verl.report import numbers
from sagc_verl.report.compare import budget_text
from sagc_verl.report.comparison import Comparison, Setting
from sagc_verl.report.evals import evaluated_sets, evaluation_caveats, setting_score
from sagc_verl.report.metrics import BY_KEY, METRICS
from sagc_verl.report.output import binary_output
from sagc_verl.report.plots import MAX_POINTS, SERIES_COLOURS, Figure, figures, sum_counts
from sagc_verl.report.settings import short_path
from sagc_verl.report.statistics import MIN_STEPS, RESAMPLES, Estimate
from sagc_verl.report.summary import budget_of_summary, summarise
from sagc_verl.report.verdicts import MEASURES, change_text, conclusions, contrasts, described

_OVERVIEW = ("steps", "wall_seconds", "straggler_rate", "mean_n", "rollouts", "reward", "reward_per_second")
_DETAILS = tuple(metric.key for metric in METRICS if metric.key not in ("steps", "wall_seconds", "rollouts", "mean_n"))


def write_html(comparison: Comparison, path: str | Path) -> None:
    """Writes the report; "-" writes it to stdout.

    Raises:
        OSError: the file cannot be written.
        ModuleNotFoundError: plotly, whose plotly.js the report carries, is not installed.
    """
    page = render_html(comparison).encode("utf-8", errors="replace")
    with binary_output(path) as file:
        file.write(page)


def render_html(comparison: Comparison) -> str:
    """The report as one HTML document."""
    shown = figures(comparison)
    assets = resources.files("sagc_verl.report") / "assets"
    body = "\n".join(
        section
        for section in (
            _header(comparison),
            _callouts(comparison),
            _section("At a glance", _overview_table(comparison)),
            _section("What these runs show", _sentences(comparison)),
            _section("Differences", _contrast_table(comparison)),
            _section("To a reached reward", _reached_table(comparison)),
            _figures_section(shown),
            _section("All numbers", _number_table(comparison)),
            _section("Evaluation", _evaluation_table(comparison)),
            _section("Validation", _validation_table(comparison)),
            _section("Stragglers by cause", _cause_table(comparison)),
            _section("The runs", _identity_table(comparison)),
            _section("Other settings that differ", _difference_table(comparison)),
            _section("How to read the numbers", _notes(comparison)),
        )
        if section
    )
    return _PAGE.format(
        title=escape(_title(comparison)),
        style=(assets / "report.css").read_text(encoding="utf-8"),
        body=body,
        data=_script_json([{"data": figure.data, "layout": figure.layout} for figure in shown]),
        plotly=_plotly_js() if shown else "",
        script=(assets / "report.js").read_text(encoding="utf-8"),
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="figures">{data}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""  # noqa: E501


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _script_json(value: object) -> str:
    """JSON that no text in it can break out of the script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(comparison: Comparison) -> str:
    labels = [setting.label for setting in comparison.settings]
    return " / ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")


def _header(comparison: Comparison) -> str:
    first = comparison.settings[0].runs[0].settings
    runs = sum(len(setting.runs) for setting in comparison.settings)
    what = f"{_counted(runs, 'run')} in {_counted(len(comparison.settings), 'setting')}"
    facts = [what]
    if len({setting.runs[0].settings.model for setting in comparison.settings}) == 1 and first.model:
        facts.append(short_path(first.model))
    if len({setting.runs[0].settings.data for setting in comparison.settings}) == 1 and first.data:
        facts.append(short_path(first.data))
    return f"<header><h1>{escape(_title(comparison))}</h1><p>{escape(' · '.join(facts))}</p></header>"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>" if content else ""


def _callouts(comparison: Comparison) -> str:
    parts = []
    if comparison.incomparable:
        lines = "".join(f"<li>{escape(line)}</li>" for line in comparison.incomparable)
        parts.append(
            f'<aside class="warn"><p>Not comparable as they stand. The runs differ in</p><ul>{lines}</ul></aside>'
        )
    if comparison.missing:
        lines = "".join(f"<p>{escape(line)}</p>" for line in comparison.missing)
        parts.append(f"<aside>{lines}</aside>")
    if comparison.warnings:
        lines = "".join(f"<li>{escape(line)}</li>" for line in comparison.warnings)
        parts.append(f"<aside><p>Read with gaps:</p><ul>{lines}</ul></aside>")
    return "\n".join(parts)


def _sentences(comparison: Comparison) -> str:
    told = [*(contrast.sentence(brief=True) for contrast in contrasts(comparison)), *conclusions(comparison)]
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in told) + "</ul>"


def _overview_table(comparison: Comparison) -> str:
    header = ["", *(BY_KEY[key].label for key in _OVERVIEW)]
    header.insert(4, "budget")
    rows = []
    for place, setting in enumerate(comparison.settings):
        cells = [_named(place, setting), *(escape(BY_KEY[key].form(setting.values[key].value)) for key in _OVERVIEW)]
        cells.insert(4, escape(budget_text(setting)))
        if setting.over_budget:
            place = 3 if setting.cost_key == "straggler_rate" else 4
            cells[place] = f'<span class="over" title="over the budget">{cells[place]}</span>'
        rows.append(cells)
    return _table(header, rows)


def _number_table(comparison: Comparison) -> str:
    header = ["", *(_named(place, setting) for place, setting in enumerate(comparison.settings))]
    rows = []
    for key in _DETAILS:
        metric = BY_KEY[key]
        estimates = [setting.values[key] for setting in comparison.settings]
        if any(estimate.value == estimate.value for estimate in estimates):
            label = f'<span title="{escape(metric.meaning)}">{escape(metric.label)}</span>'
            rows.append([label, *(_estimate(estimate, metric.form) for estimate in estimates)])
    return _table(header, rows, header_is_html=True)


def _contrast_table(comparison: Comparison) -> str:
    found = contrasts(comparison)
    if not found:
        return ""
    used = [measure for measure in MEASURES if any(measure in dict(one.changes) for one in found)]
    rows = []
    for one in found:
        label = f"{escape(one.subject.label)} <span class='quiet'>less</span> {escape(described(one.reference))}"
        if one.spoiled:
            label += f"<br><span class='over'>not comparable: other {escape(', '.join(one.spoiled))}</span>"
        changes = dict(one.changes)
        cells = [label]
        for measure in used:
            change = changes.get(measure)
            text = "-" if change is None else escape(change_text(measure, change))
            text = text.replace(" (", "<br><span class='quiet'>(").replace(")", ")</span>") if "(" in text else text
            cells.append(f"<strong>{text}</strong>" if change is not None and change.excludes_zero else text)
        rows.append(cells)
    note = "<p class='quiet'>Bold: the 95% interval excludes no difference. Shares are of the second run.</p>"
    return _table(["", *(measure.name for measure in used)], rows) + note


def _reached_table(comparison: Comparison) -> str:
    costs = ("steps", "seconds", "rollouts", "tokens")
    rows = [
        [_named(place, setting), *(_estimate(setting.reached[cost], numbers.count) for cost in costs)]
        for place, setting in enumerate(comparison.settings)
    ]
    if not any(setting.reached["steps"].value == setting.reached["steps"].value for setting in comparison.settings):
        return ""
    note = (
        f"<p class='quiet'>Until the mean reward of {comparison.window} steps is at {numbers.plain(comparison.target)},"
        " the highest that all runs reach. The run whose best that is reaches it late by construction.</p>"
    )
    return _table(["", *costs], rows) + note


def _figures_section(shown: Sequence[Figure]) -> str:
    if not shown:
        return ""
    parts = []
    for place, figure in enumerate(shown):
        kind = ' class="wide"' if figure.wide else ""
        title, caption = escape(figure.title), escape(figure.caption)
        parts.append(
            f"<figure{kind}><h3>{title}</h3>"
            f'<div class="plot" id="plot{place}" role="img" aria-label="{title}. {caption}"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return '<section><h2>Over the run</h2><div class="figures">' + "\n".join(parts) + "</div></section>"


def _validation_table(comparison: Comparison) -> str:
    names = dict.fromkeys(name for setting in comparison.settings for run in setting.runs for name in run.validation)
    rows = []
    for name in names:
        cells = [escape(str(name))]
        for setting in comparison.settings:
            last = [run.validation[name].dropna().iloc[-1] for run in setting.runs if name in run.validation]
            if len(last) > 1:
                cells.append(
                    f"{numbers.plain(sum(last) / len(last))}"
                    f" <span class='quiet'>({numbers.plain(min(last))} to {numbers.plain(max(last))})</span>"
                )
            else:
                cells.append(numbers.plain(last[0]) if last else numbers.UNKNOWN)
        rows.append(cells)
    if not rows:
        return ""
    header = ["", *(_named(place, setting) for place, setting in enumerate(comparison.settings))]
    note = "<p class='quiet'>The last score of each run; of several seeds the mean and the range.</p>"
    return _table(header, rows, header_is_html=True) + note


def _evaluation_table(comparison: Comparison) -> str:
    rows = []
    for name in evaluated_sets(comparison):
        cells = [escape(name)]
        for setting in comparison.settings:
            score = setting_score(setting, name)
            if score is None:
                cells.append(numbers.UNKNOWN)
            else:
                steps = ", ".join(numbers.count(step) for step in score.steps)
                told = f"{escape(score.length_text())}, step {escape(steps)}"
                cells.append(f"{_estimate(score.accuracy, numbers.share)}<br><span class='quiet'>{told}</span>")
        rows.append(cells)
    if not rows:
        return ""
    header = ["", *(_named(place, setting) for place, setting in enumerate(comparison.settings))]
    caveats = "".join(f"<p>{escape(line)}</p>" for line in evaluation_caveats(comparison))
    note = (
        "<p class='quiet'>Accuracy and mean length of the answers of the latest checkpoint that was scored. The"
        " interval of one run is over its answers and says nothing about another seed; of several seeds it is between"
        " them.</p>"
    )
    return _table(header, rows, header_is_html=True) + caveats + note


def _cause_table(comparison: Comparison) -> str:
    counts = []
    for setting in comparison.settings:
        total: dict[str, int] = {}
        for run in setting.runs:
            for cause, count in run.causes.items():
                total[cause] = total.get(cause, 0) + count
        counts.append(total)
    causes = dict.fromkeys(cause for total in counts for cause in total)
    if not causes:
        return ""
    rows = []
    for place, (setting, total) in enumerate(zip(comparison.settings, counts, strict=True)):
        generated = int(sum_counts([one for run in setting.runs for one in (run.right, run.wrong)]).sum())
        per = f"{1000 * sum(total.values()) / generated:.1f}" if generated else numbers.UNKNOWN
        rows.append([_named(place, setting), *(numbers.count(total.get(cause, 0)) for cause in causes), per])
    return _table(["", *(str(cause).replace("_", " ") for cause in causes), "per 1,000 rollouts"], rows)


def _identity_table(comparison: Comparison) -> str:
    header = ["run", "policy", "sizes", "model", "data", "seed", "hardware"]
    rows = []
    for place, setting in enumerate(comparison.settings):
        for run in setting.runs:
            found = summarise(run)
            policy = "read from a log" if found.imported else (found.policy or "unknown")
            if found.policy == "sagc":
                policy += f", {budget_of_summary(found)}, threshold {numbers.plain(found.threshold)}"
            name = run.name if len(setting.runs) > 1 else setting.label
            cells = [policy, " ".join(map(str, found.sizes)) or "-", short_path(found.model), short_path(found.data)]
            cells += [found.seed or "unknown", found.hardware or "unknown"]
            rows.append([_swatch(place) + escape(name), *(escape(cell) for cell in cells)])
    return _table(header, rows, text=True)


def _difference_table(comparison: Comparison) -> str:
    others = [one for one in comparison.differences if not one.kind]
    if not others:
        return ""
    header = ["", *(setting.label for setting in comparison.settings)]
    rows = [[f"<code>{escape(one.key)}</code>", *(escape(value[:120]) for value in one.values)] for one in others[:60]]
    more = f"<p class='quiet'>{len(others) - 60} more are left out.</p>" if len(others) > 60 else ""
    return _table(header, rows, text=True) + more


def _notes(comparison: Comparison) -> str:
    notes = [
        "reward: mean over every rollout generated, filtered ones included, in the last tenth of the steps; veRL's own"
        " mean for runs read from logs.",
        "reward per second: reward of the last tenth less reward of the first tenth, by wall seconds.",
        "Intervals are 95%. Of one run: moving-block bootstrap over its steps, blocks of the cube root of their number,"
        f" {RESAMPLES:,} draws with a fixed seed, widened as Student's t for few blocks; none below {MIN_STEPS} steps."
        " Two runs are compared step by step over the steps that both have. Such an interval says nothing about another"
        " seed, and is too narrow where neighbouring steps resemble each other strongly.",
        "Of several seeds: Student's t over seeds, Welch's for differences. Bands in the plots run from the lowest to"
        " the highest seed.",
        f"A right answer is a rollout with a reward above {comparison.right_above:g}.",
        "Straggler rates depend on the event's definition (threshold, signal, reference) and, for equal lengths, grow"
        " with n.",
    ]
    if any(len(setting.runs[0].steps) > MAX_POINTS for setting in comparison.settings):
        notes.append(
            f"Curves of more than {MAX_POINTS} steps are drawn as means over stretches; the numbers use every step."
        )
    return "<ul class='notes'>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], header_is_html: bool = False, text: bool = False
) -> str:
    """A table; cells are HTML, headers text unless `header_is_html`; numbers to the right unless `text`."""
    heads = "".join(f'<th scope="col">{name if header_is_html else escape(name)}</th>' for name in header)
    lines = []
    for first, *rest in rows:
        lines.append(f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>")
    kind = ' class="text"' if text else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _named(place: int, setting: Setting) -> str:
    return _swatch(place) + escape(setting.label)


def _swatch(place: int) -> str:
    return f'<i class="swatch s{place % SERIES_COLOURS}"></i>'


def _estimate(estimate: Estimate, form: Callable[[float], str]) -> str:
    text = escape(form(estimate.value))
    if not estimate.has_interval:
        return text
    return f"{text}<br><span class='quiet'>({escape(form(estimate.low))} to {escape(form(estimate.high))})</span>"
