"""Small runs for the tests of reports and commands, written with the real RecordWriter."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from sagc_verl.records.writer import RecordWriter

CONFIG: dict[str, Any] = {
    "data": {"train_files": "data/gsm8k/train.parquet", "train_batch_size": 8, "max_response_length": 512, "seed": 1},
    "actor_rollout_ref": {
        "model": {"path": "models/tiny"},
        "rollout": {"n": 8, "temperature": 1.0},
        "actor": {"ppo_mini_batch_size": 8, "optim": {"lr": 1e-6}},
    },
    "trainer": {"total_training_steps": 24, "experiment_name": "x"},
    "sagc": {"policy": "sagc", "budget": 0.2, "threshold": 2.5, "sizes": [4, 6, 8]},
}


def config(**changes: Any) -> dict[str, Any]:
    """CONFIG with dotted keys changed (dots written as two underscores)."""
    changed = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        node = changed
        *path, leaf = key.split("__")
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return changed


def write_run(
    directory: Path,
    *,
    policy: str = "static",
    sizes: tuple[int, ...] = (8,),
    steps: int = 24,
    prompts: int = 8,
    seed: int = 1,
    learn: float = 0.5,
    seconds_per_rollout: float = 0.1,
    name: str | None = None,
    data_source: str = "gsm8k",
    budget: float = 0.2,
    info: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Writes a run whose reward rises by `learn`, and whose steps take `seconds_per_rollout` * rollouts plus a tail."""
    rng = np.random.default_rng(seed)
    largest = max(sizes)
    settings = config(
        sagc__policy=policy,
        sagc__sizes=list(sizes),
        actor_rollout_ref__rollout__n=largest,
        data__seed=seed,
        trainer__total_training_steps=steps,
        **changes,
    )
    described = {"config": settings, "host": {"cpu": "test cpu", "cpus": 2, "gpus": []}, **(info or {})}
    if name is not None:
        described["name"] = name
    writer = RecordWriter(directory / "sagc", described)
    for step in range(1, steps + 1):
        n = sizes[(step // 6) % len(sizes)] if policy == "sagc" else largest
        following = sizes[((step + 1) // 6) % len(sizes)] if policy == "sagc" else largest
        writer.write_step(
            step, *_one_step(rng, step, steps, n, following, prompts, learn, seconds_per_rollout, data_source, budget)
        )
    writer.close()
    assert writer.faults == 0
    return directory


def _one_step(rng, step, steps, n, following, prompts, learn, seconds_per_rollout, data_source, budget):
    count = prompts * n
    group = np.repeat(np.arange(prompts), n)
    lengths = np.clip(rng.lognormal(4, 0.5, count), 5, 511).astype(int)
    lengths[rng.random(count) < 0.02] = 512
    reward = (rng.random(count) < 0.2 + learn * step / steps).astype(float)
    start = rng.uniform(0, 0.1, count)
    end = start + lengths * 0.01
    reference = np.array([np.median(lengths[group == g]) for g in range(prompts)])
    exceeds = lengths > 2.5 * reference[group]
    uids = np.array([f"s{step}g{g}" for g in range(prompts)])
    rollouts = {
        "uid": uids[group],
        "prompt_index": group,
        "data_source": data_source,
        "session": np.tile(np.arange(n), prompts),
        "n": n,
        "prompt_tokens": 20,
        "response_tokens": lengths,
        "truncated": lengths >= 512,
        "start_s": start,
        "end_s": end,
        "queue_s": 0.05,
        "generate_s": end - start,
        "reward": reward,
        "exceeds": exceeds,
        "status": "trained",
        "cause": np.where(exceeds, np.where(lengths >= 512, "truncated", "long_response"), ""),
        "preempted": 0,
        "worker": "w0",
    }
    straggler = np.array([exceeds[group == g].any() for g in range(prompts)])
    groups = {
        "uid": uids,
        "prompt_index": np.arange(prompts),
        "data_source": data_source,
        "n": n,
        "max": [lengths[group == g].max() for g in range(prompts)],
        "median": reference,
        "ratio": [lengths[group == g].max() / reference[g] for g in range(prompts)],
        "reference": reference,
        "exceeding": [int(exceeds[group == g].sum()) for g in range(prompts)],
        "straggler": straggler,
        "blind": False,
        "reward_mean": [reward[group == g].mean() for g in range(prompts)],
        "reward_std": [reward[group == g].std() for g in range(prompts)],
        "silent": False,
        "status": "trained",
    }
    generation = float(end.max())
    wall = generation + seconds_per_rollout * count
    row = {
        "n": n,
        "next_n": following,
        "reason": "hold" if n == following else "up",
        "straggler_rate": float(straggler.mean()),
        "waiting_share": float(
            np.mean([1 - lengths[group == g].mean() / lengths[group == g].max() for g in range(prompts)])
        ),
        "budget": budget,
        "tail_s": float(end.max() - np.quantile(end, 0.9)),
        "idle_share": 0.3,
        "tokens": int(lengths.sum()),
        "rollouts": count,
        "wall_s": wall,
        "time": 1.7e9 + step,
        "timing_s/gen": generation,
        "timing_s/update_actor": 0.8 * (wall - generation),
        "timing_s/step": wall,
        "critic/score/mean": float(reward.mean()),
    }
    if step % 6 == 0:
        row["val-core/gsm8k/reward/mean@1"] = 0.2 + learn * step / steps
    return rollouts, groups, row
