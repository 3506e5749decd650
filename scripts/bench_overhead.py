#!/usr/bin/env python3
"""What the plug-in costs: policy=static against stock veRL on the quickstart's task, and what it adds to a start.

    python scripts/bench_overhead.py --pairs 5 --steps 12        # about 10 minutes on two idle cores

Both trainings of a pair have the same group size, prompts, poll interval and seeded rollouts, and a learning rate of 0,
so that they generate the same texts at every step; which comes first alternates. A step lasts from one line of veRL's
logger to the next, so that everything SAGC does is in it. The first two steps of a run are left out. Given are the
median over all steps of static / stock, step by step, and a 95% bootstrap interval that draws pairs, then steps within;
the same of the CPU seconds that a step costs; and what is left of a step beside veRL's own phases (generating, training
and so on): the driver's time, in which SAGC drains, observes and records.

Measure on an idle machine. A dozen processes share its cores, Ray's at a low priority: a shell command beside them
shows in the step times. CPU seconds vary less from run to run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "examples" / "quickstart"
VARIANTS = {"stock": ["trainer.v1.trainer_mode=cpu_sync"], "static": ["+sagc.policy=static"]}
SKIPPED_STEPS = 2
RESAMPLES = 4000
TIMEOUT = 600.0


def train(variant: str, folder: Path, task: Path, steps: int, poll: float) -> dict[int, tuple[float, float, float]]:
    """One training; returns step -> its seconds, those of them outside veRL's phases, its CPU seconds; not the first.

    Raises:
        SystemExit: it failed; the end of its log is shown.
    """
    folder.mkdir(parents=True)
    tests = ROOT / "tests"
    overrides = [
        *VARIANTS[variant],
        f"sagc.poll_interval={poll}",  # stock veRL reads nothing of this section
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder}",
        "trainer.checkpoint_callback_class=bench_overhead_probe.Probe",
        "actor_rollout_ref.actor.optim.lr=0",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tests / 'e2e_agent.yaml'}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=seeded_agent",
        "data.seed=1",
    ]
    times = folder / "times.txt"
    environment = {
        **os.environ,
        "TASK": str(task),
        "OUT": str(folder.parent),
        "PYTHON": os.environ.get("SAGC_CPU_PYTHON", sys.executable),
        "PYTHONPATH": f"{tests}{os.pathsep}{ROOT / 'scripts'}",
        "SAGC_BENCH_POLL": str(poll),
        "SAGC_BENCH_TIMES": str(times),
    }
    log = folder / "train.log"
    with log.open("wb") as output:
        code = subprocess.run(
            [str(QUICKSTART / "train.sh"), folder.name, *overrides],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
        ).returncode
    if code:
        print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
        sys.exit(f"the {variant} run ended with exit code {code}; see {log}")
    stamps = [tuple(map(float, line.split())) for line in times.read_text().splitlines()]
    return {
        int(step): (at - before, at - before - phases, cpu - cpu_before)
        for (_, before, _, cpu_before), (step, at, phases, cpu) in itertools.pairwise(stamps)
        if step > SKIPPED_STEPS
    }


def median_ratio(pairs: list[np.ndarray], seed: int = 1) -> tuple[float, float, float]:
    """Median of all steps' ratios, and the 95% interval of a bootstrap over pairs and steps within pairs."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(pairs), size=len(pairs))
        drawn.append(np.median(np.concatenate([rng.choice(pairs[pair], len(pairs[pair])) for pair in chosen])))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(np.concatenate(pairs))), float(low), float(high)


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
    parser.add_argument("--steps", type=int, default=12, help=f"steps of each, more than {SKIPPED_STEPS} (default 12)")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between two looks for rollouts (default 0.1)")
    parser.add_argument("--starts", type=int, default=5, help="imports of each kind (default 5)")
    parser.add_argument("--out", type=Path, default=Path("outputs/overhead"), help="a new folder for runs and numbers")
    options = parser.parse_args()
    if options.steps <= SKIPPED_STEPS:
        parser.error(f"--steps {options.steps}: must be more than {SKIPPED_STEPS}")
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
        ratios, added, outside, cpu = [], [], [], []
        for pair in range(options.pairs):
            order = list(VARIANTS) if pair % 2 == 0 else list(VARIANTS)[::-1]
            seconds = {
                variant: train(variant, out / f"{variant}{pair}", task, options.steps, options.poll)
                for variant in order
            }
            steps = sorted(seconds["stock"].keys() & seconds["static"].keys())
            stock, static = (np.array([seconds[variant][step] for step in steps]) for variant in VARIANTS)
            ratios.append(static[:, 0] / stock[:, 0])
            added.append(static[:, 0] - stock[:, 0])
            outside.append(static[:, 1] - stock[:, 1])
            cpu.append(static[:, 2] / stock[:, 2])
            print(
                f"pair {pair + 1} of {options.pairs} ({order[0]} first): median step {np.median(stock[:, 0]):.3f} s "
                f"stock, {np.median(static[:, 0]):.3f} s static, ratio {np.median(ratios[-1]):.3f}; outside veRL's "
                f"phases {np.median(stock[:, 1]):.3f} s and {np.median(static[:, 1]):.3f} s; "
                f"CPU {np.median(stock[:, 2]):.2f} s and {np.median(static[:, 2]):.2f} s, "
                f"ratio {np.median(cpu[-1]):.3f}",
                flush=True,
            )
        ratio, low, high = median_ratio(ratios)
        cpu_ratio, cpu_low, cpu_high = median_ratio(cpu)
        milliseconds, ours = (1000 * float(np.median(np.concatenate(one))) for one in (added, outside))
        found["step time"] = {
            "ratio": ratio,
            "low": low,
            "high": high,
            "median added ms": milliseconds,
            "median added ms outside veRL's phases": ours,
            "ratios": [list(map(float, one)) for one in ratios],
            "cpu ratio": cpu_ratio,
            "cpu low": cpu_low,
            "cpu high": cpu_high,
            "cpu ratios": [list(map(float, one)) for one in cpu],
        }
        print(
            f"static / stock: {ratio:.3f} (95%: {low:.3f} to {high:.3f}), median of {sum(map(len, ratios))} steps in "
            f"{options.pairs} pairs; {milliseconds:+.0f} ms a step, {ours:+.0f} ms outside veRL's phases\n"
            f"CPU seconds, static / stock: {cpu_ratio:.3f} (95%: {cpu_low:.3f} to {cpu_high:.3f})"
        )
    (out / "overhead.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
