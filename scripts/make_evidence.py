#!/usr/bin/env python3
"""The recorded evidence: real trainings on this machine's CPU, and docs/evidence.md made from their records.

    python scripts/make_evidence.py                   # train what is missing, score it, write the document
    python scripts/make_evidence.py --part dapo       # one of the two
    python scripts/make_evidence.py --report-only     # from what is there

The trainings are the sweeps in examples/evidence: real veRL, Ray, vLLM and FSDP on the quickstart's task, one after
another; about an hour each on two cores. Calling it again goes on where it stopped. Measure on an idle machine. Every
trained model is then scored by examples/eval on the task's validation prompts.

The document keeps what is written by hand above its mark; all below is made here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sagc_verl.report import numbers
from sagc_verl.report.compare import compare_runs
from sagc_verl.report.comparison import Comparison, Setting
from sagc_verl.report.evals import evaluated_sets, setting_score
from sagc_verl.report.measures import RunMeasures
from sagc_verl.report.metrics import BY_KEY, REACH_COSTS, reach
from sagc_verl.report.statistics import Estimate, trailing_mean
from sagc_verl.sweep.runner import progress_of
from sagc_verl.sweep.spec import read_spec

ROOT = Path(__file__).resolve().parents[1]
SPECS = ROOT / "examples" / "evidence"
PARTS = {"grpo": "GRPO", "dapo": "DAPO"}
MARK = "<!-- made by scripts/make_evidence.py from here on -->"
PACKAGES = ("verl", "torch", "vllm", "ray", "transformers", "TransferQueue")
ROWS = (
    "straggler_rate", "mean_n", "step_seconds", "tail_seconds", "idle_share", "rollouts", "tokens",
    "thrown_away_share", "refills", "silent_share", "reward", "reward_mean", "reward_per_second",
    "reward_per_1000_rollouts", "length_mean", "truncated_share",
)  # fmt: skip


# ---- training and scoring


def train(part: str, task: Path, python: str) -> None:
    """Run what is left of a part's sweep.

    Raises:
        SystemExit: a run failed, or it was interrupted.
    """
    command = [str(Path(sys.executable).parent / "sagc-verl"), "sweep", str(SPECS / f"{part}.yaml")]
    code = subprocess.run(command, cwd=ROOT, env={**os.environ, "TASK": str(task), "PYTHON": python}).returncode
    if code:
        sys.exit(code)


def score(runs: Sequence[Path], task: Path) -> None:
    """Score each run's last checkpoint, unless that is done."""
    for run in runs:
        checkpoint = max(run.glob("global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))
        if list((run / "sagc" / "eval").glob("step_*.json")):
            continue
        print(f"scoring {run.name}", flush=True)
        knobs = {"CKPT": str(checkpoint), "TASK": str(task), "BIN": str(Path(sys.executable).parent)}
        log = run / "eval.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [str(SPECS / "eval.sh")], cwd=ROOT, env={**os.environ, **knobs}, stdout=output, stderr=output
            )
        if done.returncode:
            sys.exit(f"scoring {run.name} ended with exit code {done.returncode}; see {log}")


def finished_runs(part: str) -> list[Path]:
    """The folders of a part's runs.

    Raises:
        SystemExit: some have not finished.
    """
    spec = read_spec(SPECS / f"{part}.yaml")
    progress = progress_of(spec)
    if not progress.complete():
        sys.exit(f"{part}: {progress.count('finished')} of {len(progress.runs)} runs have finished under {spec.out}")
    return [run.directory for run, _ in progress.runs]


# ---- the document


def report(part: str, runs: Sequence[Path]) -> tuple[str, Comparison]:
    """A part's section."""
    comparison = compare_runs(runs)
    spec = SPECS.relative_to(ROOT) / f"{part}.yaml"
    minutes = sum(float(np.nansum(run.column("wall_s"))) for one in comparison.settings for run in one.runs) / 60
    lines = [
        f"## {PARTS[part]}",
        "",
        f"`python scripts/make_evidence.py --part {part}`: {len(runs)} trainings of {spec}, {minutes:.0f} minutes of"
        " steps in all. Mean over seeds, below it the 95% interval between them (Student's t).",
        "",
        _table(comparison),
        "",
        f"The highest reward that every run reaches (mean of {comparison.window} steps) is"
        f" {numbers.plain(comparison.target)}. To get there it took (mean, and each seed):",
        "",
        _reached(comparison),
        "",
        "What `sagc-verl compare` says of it:",
        "",
        *(f"- {sentence}" for sentence in (*comparison.missing, *comparison.incomparable, *comparison.sentences)),
        "",
        "Sizes that the controller played, with the number of steps:",
        "",
        *(f"- {run.name.rpartition('/')[2]}: {_played(run)}" for run in _controlled(comparison)),
        "",
        f"![sizes, straggler rate and reward, {PARTS[part]}](evidence_{part}.png)",
    ]
    return "\n".join(lines), comparison


def _in_order(comparison: Comparison) -> list[Setting]:
    """Fixed sizes, smallest first, then SAGC."""
    return sorted(comparison.settings, key=lambda one: (one.policy == "sagc", one.static_size or 0))


def _table(comparison: Comparison) -> str:
    settings = _in_order(comparison)
    rows = [["", *(_name(setting) for setting in settings)]]
    for key in ROWS:
        values = [setting.values[key] for setting in settings]
        if key in ("thrown_away_share", "refills") and not any(value.value > 0 for value in values):
            continue
        metric = BY_KEY[key]
        budget = f" (budget {numbers.share(settings[-1].budget)})" if key == "straggler_rate" else ""
        rows.append([metric.label + budget, *(_cell(value, metric.form) for value in values)])
    for name in evaluated_sets(comparison):
        scores = [setting_score(setting, name) for setting in settings]
        rows.append(["right on validation", *(_cell(one.accuracy, numbers.share) if one else "-" for one in scores)])
        rows.append(["its response length", *(_cell(one.length, numbers.plain) if one else "-" for one in scores)])
    return _markdown(rows)


def _reached(comparison: Comparison) -> str:
    """With three seeds, the three values say more than an interval."""
    settings = _in_order(comparison)
    rows = [["", *(_name(setting) for setting in settings)]]
    for cost, _ in REACH_COSTS:
        cells = []
        for setting in settings:
            each = [getattr(reach(run, comparison.target, comparison.window), cost).value for run in setting.runs]
            cells.append(f"{numbers.count(float(np.mean(each)))}<br>({', '.join(map(numbers.count, each))})")
        rows.append([cost, *cells])
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *body))


def _name(setting: Setting) -> str:
    return "SAGC" if setting.policy == "sagc" else f"static n={setting.static_size}"


def _cell(value: Estimate, form: Any) -> str:
    text = form(value.value)
    if not value.has_interval or value.low == value.high:
        return text
    return f"{text}<br>({form(value.low)} to {form(value.high)})"


def _controlled(comparison: Comparison) -> list[RunMeasures]:
    return [run for setting in comparison.settings if setting.policy == "sagc" for run in setting.runs]


def _played(run: RunMeasures) -> str:
    stretches = [(int(n), len(list(steps))) for n, steps in itertools.groupby(run.column("n"))]
    return ", ".join(f"{n} x {steps}" for n, steps in stretches)


def machine() -> str:
    """What the trainings ran on."""
    first = finished_runs(next(iter(PARTS)))[0]
    host = json.loads((first / "sagc" / "run.json").read_text()).get("host", {})
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"Hardware: {host.get('cpus', os.cpu_count())} cores of {host.get('cpu', 'an unnamed CPU')}, {memory:.0f} GiB,"
        f" no GPU, nothing else running. Python {sys.version.split()[0]}, {packages}."
    )


def plot(comparison: Comparison, file: Path, title: str) -> None:
    """Size, straggler rate so far, and reward against seconds; one line per setting, its seeds averaged or thin."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (sizes, rates, rewards) = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    settings = _in_order(comparison)
    colours = pyplot.get_cmap("viridis")(np.linspace(0.15, 0.85, max(len(settings) - 1, 1)))
    for number, setting in enumerate(settings):
        controlled = setting.policy == "sagc"
        colour, width = ("crimson", 2.0) if controlled else (colours[number], 1.2)
        name = _name(setting)
        for place, run in enumerate(setting.runs):
            label = name if place == 0 else None
            sizes.plot(run.column("step"), run.column("n"), color=colour, lw=width, alpha=0.8, label=label)
            smooth = trailing_mean(run.column("reward"), comparison.window)
            rewards.plot(run.column("seconds_done"), smooth, color=colour, lw=width * 0.7, alpha=0.8, label=label)
        table = pd.DataFrame({place: run.column("straggler_rate") for place, run in enumerate(setting.runs)})
        so_far = table.expanding().mean().mean(axis=1)
        rates.plot(np.arange(1, len(so_far) + 1), so_far, color=colour, lw=width, label=name)
    budget = next((one.budget for one in settings if one.policy == "sagc"), float("nan"))
    rates.axhline(budget, color="grey", ls=":", label="budget")
    sizes.set(xlabel="step", ylabel="group size n", title="size of each seed")
    rates.set(xlabel="step", ylabel="share of groups", title="straggler rate so far, mean over seeds", ylim=(0, None))
    rewards.set(xlabel="seconds of steps", ylabel="reward", title="reward of each seed, smoothed")
    rates.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def write_document(file: Path, made: str) -> None:
    """Replace what is below the mark."""
    before = file.read_text(encoding="utf-8").partition(MARK)[0] if file.exists() else "# Evidence\n\n"
    aside = file.with_name(f".{file.name}.tmp")
    aside.write_text(f"{before}{MARK}\n\n{made}\n", encoding="utf-8")
    os.replace(aside, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="train only this part (default: both)")
    parser.add_argument("--report-only", action="store_true", help="train and score nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence.md", help="the document to write")
    options = parser.parse_args()
    chosen = options.part or list(PARTS)
    if not options.report_only:
        from sagc_verl.cpu import warm

        os.environ["VERL_PLATFORM"] = "cpu"
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        place = ROOT / "outputs" / "evidence"
        place.mkdir(parents=True, exist_ok=True)
        python = warm.start(log=place / "warm.log")
        task = place / "task"
        make = [sys.executable, str(ROOT / "examples" / "quickstart" / "make_task.py"), "--out", str(task)]
        subprocess.run(make, check=True)
        for part in chosen:
            train(part, task, python)
            score(finished_runs(part), task)
        if chosen != list(PARTS):
            return
    sections = [machine()]
    for part in PARTS:
        section, comparison = report(part, finished_runs(part))
        sections.append(section)
        plot(comparison, options.out.parent / f"evidence_{part}.png", f"{PARTS[part]} on the quickstart's task, CPU")
    write_document(options.out, "\n\n".join(sections))
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
