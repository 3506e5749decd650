#!/usr/bin/env python3
"""What one step of the controller costs: learn from 1,024 groups of 32 and choose the next size.

    python scripts/bench_controller.py

Prints the median and the 95th percentile in milliseconds over a run whose size moves. Prompts come back after a while
(so that their history is used) and are of two data sources. Building the batch from rows is timed apart: it is the
trainer's, not the controller's.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from sagc_verl.control import CONSTRAINTS, Controller, GroupBatch, parse_config


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one update and one choice of the controller.")
    parser.add_argument("--groups", type=int, default=1024)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--constraint", choices=list(CONSTRAINTS), default="straggler")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    groups, size = args.groups, args.size
    config = parse_config({"policy": "static", "constraint": args.constraint}, rollout_n=size)
    controller = Controller(config, [size // 4, size // 2, size])
    ids = np.repeat(np.arange(groups), size)
    observe_ms, rows_ms = [], []
    for _ in range(args.steps):
        prompt = rng.integers(0, 10 * groups, groups)
        sources = np.where(prompt % 2, "gsm8k", "math").astype(object)
        medians = np.exp(6 + 0.5 * np.sin(prompt))
        lengths = (medians[:, None] * np.exp(rng.normal(0, 0.5, (groups, size)))).ravel()
        prompts = prompt.astype(str).astype(object)
        begin = time.perf_counter()
        batch = GroupBatch.from_rows(
            ids, lengths, prompts=np.repeat(prompts, size), sources=np.repeat(sources, size), cap=8192
        )
        middle = time.perf_counter()
        report = controller.observe(batch)
        controller.sizes_for(groups)
        end = time.perf_counter()
        assert not report.fault, report.fault
        rows_ms.append(1e3 * (middle - begin))
        observe_ms.append(1e3 * (end - middle))

    print(f"{groups} groups of {size}, {args.steps} steps, milliseconds   median    p95")
    for name, taken in (("one update and one choice", observe_ms), ("batch from rows (trainer)", rows_ms)):
        print(f"  {name:44} {np.median(taken):9.2f} {np.percentile(taken, 95):6.2f}")


if __name__ == "__main__":
    main()
