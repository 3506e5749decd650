"""How fast is a replay? Rollouts a second on one core with the controller in the loop, and memory against steps.

    python scripts/bench_replay.py                    about 40 s, most of it for memory
    python scripts/bench_replay.py --table FILE       also with a table of lengths

Prints a line per workload, and exits with 1 when a target is missed: 2 million rollouts a second, 1,000 steps of 512
prompts x 16
in 5 seconds, memory that does not grow with the number of steps.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from pathlib import Path

from sagc_verl.control import parse_config, resolve_sizes
from sagc_verl.replay.players import sagc_player, static_player
from sagc_verl.replay.source import open_sources
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.whatif import play

PROMPTS, N = 512, 16
RATE, SECONDS = 2e6, 5.0
MEMORY_STEPS = (2000, 6000)
MEMORY_ALLOWED = 1.05


def measure(source: str, steps: int) -> tuple[float, float]:
    """Seconds and rollouts a second of static n=16 (the controller observing every step)."""
    workload = open_sources([source])
    config = parse_config({}, N)
    play(workload, static_player(config, N), StepTime(), steps=20, prompts=PROMPTS, seed=0)
    started = time.perf_counter()
    outcome = play(workload, static_player(config, N), StepTime(), steps=steps, prompts=PROMPTS, seed=0)
    took = time.perf_counter() - started
    return took, outcome.rollouts / took


def peak_bytes(steps: int) -> int:
    """Peak of Python's memory while SAGC is replayed on a small workload."""
    workload = open_sources(["runaways:prompts=256"])
    config = parse_config({}, N)
    player = sagc_player(config, resolve_sizes(config, N).sizes)
    tracemalloc.start()
    play(workload, player, StepTime(), steps=steps, prompts=16, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="append", default=[], help="a table of lengths to replay as well")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    missed = []
    for source in ("lognormal", "runaways", *arguments.table):
        took, rate = measure(source, arguments.steps)
        print(
            f"{Path(source).name}: {arguments.steps} steps of {PROMPTS} x {N} in {took:.2f} s, {rate / 1e6:.2f} "
            f"million rollouts/s"
        )
        if rate < RATE:
            missed.append(f"{source}: {rate / 1e6:.2f} million rollouts/s, target {RATE / 1e6:g}")
        if arguments.steps == 1000 and took > SECONDS:
            missed.append(f"{source}: {took:.2f} s, target {SECONDS:g}")
    peak_bytes(10)  # what is loaded on first use does not count
    few, many = (peak_bytes(steps) for steps in MEMORY_STEPS)
    print(f"peak memory: {few / 1e6:.2f} MB at {MEMORY_STEPS[0]} steps, {many / 1e6:.2f} MB at {MEMORY_STEPS[1]} steps")
    if many > few * MEMORY_ALLOWED:
        missed.append(f"memory grows: {few} to {many} bytes")
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
