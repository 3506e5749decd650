#!/usr/bin/env python3
"""What the plug-in costs: policy=static against stock veRL on the quickstart's task, and what it adds to a start.

    python scripts/bench_overhead.py                 # about 40 minutes on two idle cores
    python scripts/bench_overhead.py --same          # stock against stock: what such a comparison can tell at all

The two trainings of a pair have the same group size, prompts, poll interval and seeded rollouts, and a learning rate of
0, so that they generate the same texts at every step. Both are started at once and then take turns of a few steps, so
that a machine that slows down or speeds up does so for both; which comes first alternates from pair to pair. A step
lasts from one line of veRL's logger to the next, so that everything SAGC does is in it. Left out are the first turn,
which both spend starting, and the first step of every turn, in which the other's background threads may still be
writing (those of one's own fall into the next step, as in any training). Given are:

- the median over all steps of static / stock, step by step, and a 95% bootstrap interval that draws pairs, then steps
  within: of seconds, of the CPU seconds of all processes of a training, and of those of all but vLLM's engine;
- what is left of a step beside veRL's own phases (generating, training and so on): the driver's time, in which SAGC
  drains, observes and records;
- the CPU seconds of a step by kind of process;
- the seconds that the plug-in adds to the import of veRL.

Measure on an idle machine: a dozen processes share its cores, Ray's at a low priority, and a shell command beside them
shows in the step times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "examples" / "quickstart"
STEPS_FILE = "steps.jsonl"
ENGINE = "vLLM engine"  # nothing of SAGC runs in it, and its work depends on which requests happen to meet in it
STOCK = ["trainer.v1.trainer_mode=cpu_sync"]
STATIC = ["+sagc.policy=static"]
TURN = 4
RESAMPLES = 4000
POLL_SECONDS = 1.0
LIMIT = 60.0
"""Seconds a step may take, on average, before a pair counts as stuck."""


@dataclass
class Steps:
    """The steps of one training that count; every array has one entry per step.

    Attributes:
        seconds: from one line of veRL's logger to the next.
        outside: those of them in none of veRL's phases.
        cpu: CPU seconds by kind of process (bench_overhead_probe.py).
    """

    seconds: np.ndarray
    outside: np.ndarray
    cpu: dict[str, np.ndarray]

    @property
    def total_cpu(self) -> np.ndarray:
        return np.sum(list(self.cpu.values()), axis=0)


def read_steps(path: Path) -> Steps:
    """Read what the probe wrote, less the first turn and the first step of each."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line for line in lines if line["step"] > TURN and line["step"] % TURN != 1]
    seconds = np.array([line["end"] - line["begin"] for line in lines])
    kinds = sorted(set().union(*(line["cpu"] for line in lines)))
    return Steps(
        seconds,
        outside=seconds - np.array([line["phases"] for line in lines]),
        cpu={kind: np.array([line["cpu"].get(kind, 0.0) for line in lines]) for kind in kinds},
    )


def start(
    overrides: list[str], folder: Path, other: Path, second: bool, task: Path, steps: int, poll: float
) -> subprocess.Popen[bytes]:
    """Start one training of a pair."""
    tests = ROOT / "tests"
    command = [
        *(str(QUICKSTART / "train.sh"), folder.name),
        *overrides,
        f"sagc.poll_interval={poll}",  # stock veRL reads nothing of this section
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder}",
        "trainer.checkpoint_callback_class=bench_overhead_probe.Probe",
        "actor_rollout_ref.actor.optim.lr=0",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tests / 'e2e_agent.yaml'}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=seeded_agent",
        "data.seed=1",
    ]
    environment = {
        **os.environ,
        "TASK": str(task),
        "OUT": str(folder.parent),
        "PYTHON": os.environ.get("SAGC_CPU_PYTHON", sys.executable),
        "PYTHONPATH": f"{tests}{os.pathsep}{ROOT / 'scripts'}",
        "SAGC_BENCH_POLL": str(poll),
        "SAGC_BENCH_STEPS": str(folder / STEPS_FILE),
        "SAGC_BENCH_OTHER": str(other),
        "SAGC_BENCH_SECOND": str(int(second)),
        "SAGC_BENCH_TURN": str(TURN),
        "SAGC_BENCH_LAST": str(steps),
    }
    with (folder / "train.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def train_pair(
    variants: list[list[str]], folders: list[Path], first: int, task: Path, steps: int, poll: float
) -> list[Steps]:
    """Train both variants in turns; returns their steps.

    Raises:
        SystemExit: one failed, or took too long; the end of its log is shown.
    """
    for folder in folders:
        folder.mkdir(parents=True)
    runs = [
        start(variants[i], folders[i], folders[1 - i], second=i != first, task=task, steps=steps, poll=poll)
        for i in range(2)
    ]
    until = time.monotonic() + LIMIT * 2 * steps
    try:
        while any(run.poll() is None for run in runs):
            late = time.monotonic() > until
            for run, folder in zip(runs, folders, strict=True):
                if run.poll() or late:
                    print((folder / "train.log").read_text(errors="replace")[-3000:], file=sys.stderr)
                    sys.exit(f"the run in {folder} " + ("is stuck" if late else f"ended with exit code {run.poll()}"))
            time.sleep(POLL_SECONDS)
    finally:
        for run in runs:
            run.terminate()
    return [read_steps(folder / STEPS_FILE) for folder in folders]


def median_ratio(pairs: list[np.ndarray], seed: int = 1) -> tuple[float, float, float]:
    """Median of all steps' ratios, and the 95% interval of a bootstrap over pairs and steps within pairs."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(pairs), size=len(pairs))
        drawn.append(np.median(np.concatenate([rng.choice(pairs[pair], len(pairs[pair])) for pair in chosen])))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(np.concatenate(pairs))), float(low), float(high)


def comparison(pairs: list[list[Steps]], label: str) -> dict[str, object]:
    """Print and return the numbers of the module's docstring, from pairs of (stock, static)."""
    numbers: dict[str, object] = {}
    measures = {
        "step time": attrgetter("seconds"),
        "CPU seconds": attrgetter("total_cpu"),
        f"CPU seconds without the {ENGINE}": lambda run: run.total_cpu - run.cpu[ENGINE],
    }
    for name, measure in measures.items():
        ratios = [measure(second) / measure(first) for first, second in pairs]
        middle, low, high = median_ratio(ratios)
        numbers[name] = {"median": middle, "low": low, "high": high, "ratios": [one.tolist() for one in ratios]}
        print(f"{name}, {label}: {middle:.3f} (95%: {low:.3f} to {high:.3f}), median of {sum(map(len, ratios))} steps")
    outside = float(np.median(np.concatenate([second.outside - first.outside for first, second in pairs])))
    numbers["added outside veRL's phases, s"] = outside
    print(f"added outside veRL's phases: {1000 * outside:+.0f} ms a step")

    print("CPU seconds of a step by process, mean:")
    by_kind: dict[str, tuple[float, float]] = {}
    for kind in sorted(set().union(*(run.cpu for pair in pairs for run in pair))):
        means = [
            np.mean(np.concatenate([pair[i].cpu.get(kind, 0 * pair[i].seconds) for pair in pairs])) for i in range(2)
        ]
        by_kind[kind] = (float(means[0]), float(means[1]))
    for kind, (first, second) in sorted(by_kind.items(), key=lambda item: -item[1][0]):
        print(f"  {kind}: {first:.3f} and {second:.3f} ({second - first:+.3f})")
    numbers["CPU seconds of a step by process"] = by_kind
    return numbers


def import_seconds(module: str, times: int) -> tuple[float, float]:
    """Median wall seconds of `python -c 'import module'` without and with the plug-in, in turns."""
    taken: dict[str, list[float]] = {"none": [], "auto": []}
    for _ in range(times):
        for policy, seconds in taken.items():
            began = time.monotonic()
            environment = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": policy}
            environment.pop("VERL_PLATFORM", None)
            subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True, capture_output=True)
            seconds.append(time.monotonic() - began)
    return statistics.median(taken["none"]), statistics.median(taken["auto"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5, help="pairs of trainings; 0: the start only (default 5)")
    parser.add_argument("--steps", type=int, default=32, help=f"steps of each, in turns of {TURN} (default 32)")
    parser.add_argument("--same", action="store_true", help="stock veRL on both sides")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between two looks for rollouts (default 0.1)")
    parser.add_argument("--starts", type=int, default=5, help="imports of each kind (default 5)")
    parser.add_argument("--out", type=Path, default=Path("outputs/overhead"), help="a new folder for runs and numbers")
    options = parser.parse_args()
    if options.steps % TURN or options.steps < 2 * TURN:
        parser.error(f"--steps {options.steps}: must be a multiple of {TURN} from {2 * TURN} on")
    out = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out {options.out}: is not empty")
    out.mkdir(parents=True, exist_ok=True)

    found: dict[str, object] = {"load_before": os.getloadavg()[0], "cpus": os.cpu_count(), "poll": options.poll}
    for module in ("verl", "verl.trainer.ppo.v1"):
        without, with_plugin = import_seconds(module, options.starts)
        found[f"import {module}"] = {"without": without, "with": with_plugin}
        print(
            f"import {module}: {without:.2f} s, with the plug-in {with_plugin:.2f} s ({with_plugin - without:+.2f} s)"
        )

    if options.pairs:
        from sagc_verl.cpu import warm

        os.environ["VERL_PLATFORM"] = "cpu"
        warm.start(log=out / "warm.log")
        task = out / "task"
        subprocess.run([sys.executable, str(QUICKSTART / "make_task.py"), "--out", str(task)], check=True)
        names, variants = (
            (["stock", "again"], [STOCK, STOCK]) if options.same else (["stock", "static"], [STOCK, STATIC])
        )
        pairs = []
        for pair in range(options.pairs):
            folders = [out / f"{name}{pair}" for name in names]
            steps = train_pair(variants, folders, pair % 2, task, options.steps, options.poll)
            pairs.append(steps)
            print(
                f"pair {pair + 1} of {options.pairs} ({names[pair % 2]} first): median step "
                + " and ".join(f"{np.median(run.seconds):.3f} s {name}" for run, name in zip(steps, names, strict=True))
                + f", ratio {np.median(steps[1].seconds / steps[0].seconds):.3f}; CPU ratio "
                f"{np.median(steps[1].total_cpu / steps[0].total_cpu):.3f}",
                flush=True,
            )
        found.update(comparison(pairs, f"{names[1]} / {names[0]}"))
    (out / "overhead.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
