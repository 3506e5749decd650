#!/usr/bin/env python3
"""What the controller does on lengths that real models produced.

    python scripts/table_controller.py --data DIR        (default: $SAGC_SHARED_DATA, else ../shared/data)

600 steps of 64 groups a run, threshold 2.5, dwell 10; the groups of a step are prompts of a recorded table, each with a
random subset of its recorded responses. Columns:

    rate       long-run share of groups with an event, to be compared with the budget
    excess     largest value that sum(s_t - budget) reached on the way, in steps
    forgiven   what the queue's cap cut off, in steps
    gained     mean size, as a share of the best that hindsight allows: in each phase the mix of sizes with the largest
               mean whose rate meets the budget, by rates measured beforehand (the smallest size where none does)
    moves      per 100 steps
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sagc_verl.control import RULES, Controller, EventModel, GroupBatch, SagcConfig, ladder, parse_config
from sagc_verl.control.rules import DriftPenalty

STEPS, GROUPS = 600, 64
MADE_UP_SIZES = (2, 3, 4, 8, 16, 32)
FILES = {
    "R1-distill": "r1distill15b_aime1983_2009_n8",
    "RL step 400": "rg_llama3b_step400_aime2024_n50",
    "RL step 800": "rg_llama3b_step800_aime2024_n50",
}


class Unscaled(DriftPenalty):
    """The textbook form, queue in steps: V U(n) - Q p(n), Q <- clip(Q + s - b, 0, 6), V 1. A trap for small budgets."""

    def __init__(self, config: SagcConfig):
        super().__init__(config)
        self.gain, self.cap, self.unit = 1.0, 6.0, 1.0

    def choose(self, sizes: np.ndarray, risk: np.ndarray) -> int:
        score = self.gain * self.utility(sizes.astype(float), int(sizes[-1]), self.rho) - self.queue * risk
        return len(sizes) - 1 - int(np.argmax(score[::-1]))

    def update(self, cost: float) -> float:
        wanted = self.queue + cost - self.budget
        self.queue = float(np.clip(wanted, 0.0, self.cap))
        return max(0.0, wanted - self.cap)


@dataclass(frozen=True)
class Case:
    phases: tuple[str, ...]
    sizes: tuple[int, ...]
    budget: float
    rule: str


def cases() -> list[Case]:
    small, wide = ladder(3, 8), ladder(4, 16)
    return [
        Case(("R1-distill",), small, 0.05, "feasible"),
        Case(("R1-distill",), small, 0.05, "drift_penalty"),
        Case(("R1-distill",), (2, 4, 8), 0.05, "feasible"),
        Case(("R1-distill",), (2, 4, 8), 0.05, "drift_penalty"),
        Case(("R1-distill",), (2, 4, 8), 0.05, "unscaled"),
        Case(("RL step 800",), wide, 0.2, "feasible"),
        Case(("RL step 800",), wide, 0.2, "drift_penalty"),
        Case(("RL step 400", "RL step 800"), wide, 0.3, "feasible"),
        Case(("RL step 400", "RL step 800"), wide, 0.3, "drift_penalty"),
        Case(("RL step 800", "RL step 400"), wide, 0.5, "feasible"),
        Case(("RL step 800", "RL step 400"), wide, 0.5, "drift_penalty"),
        Case(("RL step 400", "RL step 800"), wide, 0.2, "feasible"),
        Case(("RL step 400", "RL step 800"), wide, 0.2, "drift_penalty"),
    ]


def read_lengths(path: Path) -> dict[str, np.ndarray]:
    """Prompt -> lengths of its recorded responses."""
    lengths: dict[str, list[float]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            lengths.setdefault(row["prompt_id"], []).append(float(row["length"]))
    return {prompt: np.array(values) for prompt, values in lengths.items()}


def draw(table: dict[str, np.ndarray], n: int, rng: np.random.Generator, keys: bool) -> GroupBatch:
    """A step: random prompts, without repeats while there are enough of them, and n of each one's responses."""
    prompts = list(table)
    chosen = rng.choice(len(prompts), GROUPS, replace=len(prompts) < GROUPS)
    lengths = np.concatenate([rng.permutation(table[prompts[i]])[:n] for i in chosen])
    names = np.repeat(np.array([prompts[i] for i in chosen], dtype=object), n) if keys else None
    return GroupBatch.from_rows(np.repeat(np.arange(GROUPS), n), lengths, prompts=names)


def best_mean_size(rates: dict[int, float], budget: float) -> float:
    """Largest mean size over mixes of two sizes whose rate meets the budget; the smallest size where none does."""
    best = float(min(rates))
    for low, low_rate in rates.items():
        for high, high_rate in rates.items():
            if low_rate <= budget < high_rate:
                best = max(best, low + (high - low) * (budget - low_rate) / (high_rate - low_rate))
        if low_rate <= budget:
            best = max(best, low)
    return best


def run(
    case: Case, tables: dict[str, dict[str, np.ndarray]], rates: Callable[[str, int], float], keys: bool, seed: int
):
    config = parse_config(
        {"budget": case.budget, "rule": case.rule, "sizes": list(case.sizes)}, rollout_n=case.sizes[-1]
    )
    controller, rng = Controller(config, case.sizes), np.random.default_rng(seed)
    reports = []
    for step in range(STEPS):
        phase = case.phases[step * len(case.phases) // STEPS]
        reports.append(controller.observe(draw(tables[phase], controller.size, rng, keys)))
    best = np.mean([best_mean_size({n: rates(phase, n) for n in case.sizes}, case.budget) for phase in case.phases])
    return {
        "rate": reports[-1].straggler_rate_mean,
        "excess": max(0.0, max(report.cumulative_excess for report in reports)),
        "forgiven": reports[-1].debt_forgiven,
        "gained": float(np.mean([report.size for report in reports])) / float(best),
        "moves": 100 * sum(report.size != report.next_size for report in reports) / STEPS,
    }


def against_truth() -> Table:
    """Events by either reference beside those by the true median of each group, log-normal lengths of spread .4."""
    table = Table("made-up lengths, events by", *map(str, MADE_UP_SIZES))
    rows: dict[str, list[float]] = {"the true median": [], "reference=shrunk": [], "reference=max_median": []}
    for n in MADE_UP_SIZES:
        rng = np.random.default_rng(n)
        medians = np.exp(rng.normal(6, 0.4, (20_000, 1)))
        lengths = medians * np.exp(rng.normal(0, 0.4, (20_000, n)))
        batch = GroupBatch.from_rows(np.repeat(np.arange(20_000), n), lengths.ravel())
        rows["the true median"].append(float((lengths > 2.5 * medians).any(axis=1).mean()))
        for reference in ("shrunk", "max_median"):
            rows[f"reference={reference}"].append(EventModel(2.5, reference, False, 0.98).observe(batch).rate)
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in values))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="The controller on recorded lengths.")
    default = os.environ.get("SAGC_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--data", type=Path, default=Path(default), help="directory that holds lengths/*.csv.gz")
    parser.add_argument("--seeds", type=int, default=2, help="runs averaged per row")
    parser.add_argument("--no-prompt-keys", action="store_true", help="hide which groups share a prompt")
    args = parser.parse_args()
    paths = {name: args.data / "lengths" / f"{stem}.csv.gz" for name, stem in FILES.items()}
    for path in paths.values():
        if not path.exists():
            sys.exit(f"{path} is not there: name the data directory with --data or SAGC_SHARED_DATA")
    tables = {name: read_lengths(path) for name, path in paths.items()}
    keys = not args.no_prompt_keys

    measured: dict[tuple[str, int], float] = {}

    def rate_of(phase: str, n: int) -> float:
        if (phase, n) not in measured:
            model, rng = EventModel(2.5, "shrunk", False, 0.98), np.random.default_rng(1)
            steps = [model.observe(draw(tables[phase], n, rng, keys)).rate for _ in range(300)]
            measured[phase, n] = float(np.mean(steps[10:]))
        return measured[phase, n]

    RULES["unscaled"] = Unscaled
    table = Table("world", "sizes", "budget", "rule", "rate", "excess", "forgiven", "gained", "moves")
    for case in cases():
        runs = [run(case, tables, rate_of, keys, seed) for seed in range(args.seeds)]
        row = {name: np.mean([result[name] for result in runs]) for name in runs[0]}
        table.add_row(
            ", then ".join(case.phases),
            " ".join(map(str, case.sizes)),
            f"{case.budget:g}",
            case.rule,
            f"{row['rate']:.3f}",
            *(f"{row[name]:.1f}" for name in ("excess", "forgiven")),
            f"{row['gained']:.2f}",
            f"{row['moves']:.1f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 140)  # a file has no edge at which to wrap
    console.print(table)
    shares = Table("share of groups with an event, by size", *map(str, (2, 3, 4, 6, 8, 11, 16)))
    for phase, lengths in tables.items():
        most = min(len(values) for values in lengths.values())
        shares.add_row(phase, *(f"{rate_of(phase, n):.3f}" if n <= most else "" for n in (2, 3, 4, 6, 8, 11, 16)))
    console.print(shares)
    console.print(against_truth())


if __name__ == "__main__":
    main()
