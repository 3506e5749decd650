#!/usr/bin/env python3
"""Speed and size of the records, against what is asked of them.

python scripts/bench_records.py                      # one million rows to read, about half a minute
python scripts/bench_records.py --rows 10000000      # the size of a long run, a few minutes and about 4 GB of memory
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sagc_verl.records import layout, runinfo
from sagc_verl.records.causes import classify
from sagc_verl.records.parquet import table_of_rows, write_file
from sagc_verl.records.reader import Run
from sagc_verl.records.timeline import step_columns
from sagc_verl.records.writer import RecordWriter

ROLLOUTS, GROUP_SIZE, STEPS_PER_FILE = 8192, 8, 100


def step_rollouts(rng: np.random.Generator, rollouts: int = ROLLOUTS, n: int = GROUP_SIZE) -> dict[str, np.ndarray]:
    """A step with every column filled and nothing constant that could be otherwise: the worst case for size."""
    groups = rollouts // n
    difficulty = np.repeat(rng.lognormal(6.0, 0.7, groups), n)
    tokens = np.minimum(difficulty * rng.lognormal(0, 0.5, rollouts), 8192).astype(np.int64)
    queue = rng.exponential(5.0, rollouts)
    generate = tokens * rng.normal(0.02, 0.002, rollouts)
    tool, reward_s = rng.exponential(0.5, rollouts), rng.exponential(0.02, rollouts)
    start = rng.random(rollouts) * 0.2
    rows = {
        "uid": np.repeat([str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(groups)], n).astype(object),
        "prompt_index": np.repeat(rng.integers(0, 100_000, groups).astype(str), n).astype(object),
        "data_source": np.repeat(rng.choice(np.array(["gsm8k", "math"], dtype=object), groups), n),
        "session": np.tile(np.arange(n), groups),
        "n": np.full(rollouts, n),
        "prompt_tokens": np.repeat(rng.integers(50, 1000, groups), n),
        "response_tokens": tokens,
        "truncated": tokens >= 8192,
        "start_s": start,
        "end_s": start + queue + generate + tool + reward_s,
        "queue_s": queue,
        "generate_s": generate,
        "tool_s": tool,
        "reward_s": reward_s,
        "turns": rng.integers(1, 6, rollouts),
        "preempted": (rng.random(rollouts) < 0.02).astype(np.int64),
        "reward": rng.random(rollouts).round(1),
        "exceeds": rng.random(rollouts) < 0.02,
        "status": np.full(rollouts, "trained", dtype=object),
        "worker": rng.choice(np.array([f"{i:08x}" for i in range(64)], dtype=object), rollouts),
    }
    rows["cause"] = classify(rows)
    return rows


def step_groups(rollouts: dict[str, np.ndarray], n: int = GROUP_SIZE) -> dict[str, np.ndarray]:
    tokens = rollouts["response_tokens"].reshape(-1, n).astype(float)
    rewards = rollouts["reward"].reshape(-1, n)
    groups = {name: rollouts[name][::n] for name in ("uid", "prompt_index", "data_source", "n", "status")}
    median = np.median(tokens, axis=1)
    exceeding = rollouts["exceeds"].reshape(-1, n).sum(axis=1)
    return groups | {
        "max": tokens.max(axis=1),
        "median": median,
        "ratio": tokens.max(axis=1) / median,
        "reference": median * 1.01,
        "exceeding": exceeding,
        "straggler": exceeding > 0,
        "blind": median > 3000,
        "reward_mean": rewards.mean(axis=1),
        "reward_std": rewards.std(axis=1),
        "silent": rewards.std(axis=1) == 0,
    }


def best(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Least wall time of each call, seconds; they take turns, so that other work on the machine meets all alike."""
    least = [float("inf")] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            result = call()
            least[place] = min(least[place], time.perf_counter() - start)
            del result
    return least


def line(what: str, value: str, demand: str = "", good: bool = True) -> None:
    print(f"{what:<66} {value:>14}   {demand}{'' if good else '   MISSED'}")


def bench_writer(folder: Path, steps: int = 30) -> None:
    rng = np.random.default_rng(0)
    ready = [step_rollouts(rng) for _ in range(4)]
    groups = [step_groups(rows) for rows in ready]
    metrics = {f"actor/metric_{i}": float(i) for i in range(120)}

    (derive,) = best(5, lambda: (classify(ready[0]), step_columns(ready[0])))
    line(f"causes and timeline of {ROLLOUTS} rollouts (training thread)", f"{derive * 1e3:.2f} ms")

    writer = RecordWriter(folder / "writer" / "sagc", {"config": {}})
    calls = []
    spent = time.process_time()
    for step in range(1, steps + 1):
        start = time.perf_counter()
        writer.write_step(step, ready[step % 4], groups[step % 4], metrics)
        calls.append(time.perf_counter() - start)
        while writer.pending:
            time.sleep(0.001)
    spent = (time.process_time() - spent) / steps
    writer.close()
    call = float(np.median(calls))
    line("handing a step over (training thread), median", f"{call * 1e3:.2f} ms")
    line("CPU of the background thread per step, with or without Python's lock", f"{(spent - call) * 1e3:.2f} ms")
    line(
        f"most that a step of {ROLLOUTS} rollouts can cost: both", f"{spent * 1e3:.2f} ms", "under 20 ms", spent < 0.02
    )
    line("faults", str(writer.faults), "0", not writer.faults)
    sizes = [file.path.stat().st_size for file in layout.list_files(folder / "writer" / "sagc" / "rollouts")[0]]
    per_row = float(np.mean(sizes)) / ROLLOUTS
    line("rollouts on disk, one step a file", f"{per_row:.1f} B a row", "at most 40", per_row <= 40)


def make_run(folder: Path, rows: int) -> Path:
    """A run of about `rows` rollouts in compacted files, and its steps."""
    records = folder / f"run_{rows}" / "sagc"
    rng = np.random.default_rng(1)
    ready = [step_rollouts(rng) for _ in range(16)]
    steps = max(rows // ROLLOUTS, 1)
    runinfo.write_run_info(records, runinfo.next_run_info({}, {"config": {}}, 1, 0))
    for first in range(1, steps + 1, STEPS_PER_FILE):
        last = min(first + STEPS_PER_FILE, steps + 1) - 1
        tables = []
        for step in range(first, last + 1):
            rollouts = dict(ready[step % 16])
            rollouts["uid"] = np.char.add(rollouts["uid"].astype(str), f"{step:06x}")
            tables.append(table_of_rows("rollouts", rollouts, step, 1, print))
        joined = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        write_file(records / "rollouts" / layout.file_name(first, last, 1), joined.schema, [joined])
    return records.parent


def bench_reader(folder: Path, rows: int) -> None:
    path = make_run(folder, rows)
    files = [file.path for file in layout.list_files(path / "sagc" / "rollouts")[0]]
    size = sum(file.stat().st_size for file in files)
    count = sum(pq.read_metadata(file).num_rows for file in files)
    line(
        f"rollouts on disk, compacted: {count:,} rows in {len(files)} files",
        f"{size / count:.1f} B a row",
        "at most 40",
    )
    repeats = 10 if rows <= 2_000_000 else 4
    few = ["step", "uid", "response_tokens", "end_s", "reward"]
    for what, arrow, ours in (
        ("all columns, Arrow", lambda: pq.read_table(files), lambda: Run(path / "sagc").arrow("rollouts")),
        ("all columns, pandas", lambda: pq.read_table(files).to_pandas(), lambda: Run(path / "sagc").rollouts),
        (
            "5 columns, pandas",
            lambda: pq.read_table(files, columns=few).to_pandas(),
            lambda: Run(path / "sagc").table("rollouts", few),
        ),
    ):
        theirs, mine = best(repeats, arrow, ours)
        line(
            f"load, {what}: pyarrow {theirs:.2f} s, ours {mine:.2f} s",
            f"{mine / theirs:.2f} x",
            "1.3",
            mine <= 1.3 * theirs,
        )
    script = "import sys; sys.path.insert(0, sys.argv[3]); import bench_records as b; "
    script += "b.summarise(sys.argv[1], int(sys.argv[2]))"
    peaks = []
    for part in (10, 1):
        steps = str(max(count // ROLLOUTS // part, 1) + 1)
        command = [sys.executable, "-c", script, str(path), steps, str(Path(__file__).resolve().parent)]
        start = time.perf_counter()
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        took = time.perf_counter() - start
        line(
            f"scan and summarise {count // part:,} rows ({took:.1f} s with imports): peak memory",
            f"{peaks[-1] / 1024:.0f} MB",
        )
    line("peak memory, ten times the rows", f"{peaks[1] / peaks[0]:.2f} x", "constant", peaks[1] < 1.25 * peaks[0])


def summarise(path: str, stop: int) -> None:
    """Mean length and reward per data source, from batches; prints the peak memory of the process in kB."""
    run, sums = Run(Path(path) / "sagc"), {}
    for batch in run.scan("rollouts", ["data_source", "response_tokens", "reward"], steps=slice(1, stop)):
        table = pa.Table.from_batches([batch])
        found = table.group_by("data_source").aggregate(
            [("response_tokens", "sum"), ("reward", "sum"), ("reward", "count")]
        )
        for row in found.to_pylist():
            tokens, reward, rows = sums.get(row["data_source"], (0, 0.0, 0))
            sums[row["data_source"]] = (
                tokens + row["response_tokens_sum"],
                reward + row["reward_sum"],
                rows + row["reward_count"],
            )
    print(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rollouts of the run that is read (default 1,000,000)"
    )
    parser.add_argument("--dir", help="where to write (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        bench_writer(Path(folder))
        bench_reader(Path(folder), arguments.rows)


if __name__ == "__main__":
    main()
