"""Looks into a running trainer, from inside: veRL loads `Probe` by its key `trainer.checkpoint_callback_class`.

Before each actor update it writes one line of what is about to be trained on to the file named by `SAGC_PROBE`.
"""

from __future__ import annotations

import collections
import json
import os

import numpy as np
import transfer_queue as tq
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import PPOTrainer


class Probe(CheckpointCallback):
    def on_save(self, *args, **kwargs) -> None:
        pass


def _grpo_error(keys: list[str], scores: np.ndarray, advantages: np.ndarray) -> float:
    """Largest difference to GRPO's advantages, computed here per uid."""
    rows = collections.defaultdict(list)
    for row, key in enumerate(keys):
        rows[key.rsplit("_", 2)[0]].append(row)
    worst = 0.0
    for uid, group in rows.items():
        if uid.startswith("pad"):
            continue
        own = scores[group]
        expected = (own - own.mean()) / (own.std(ddof=1) + 1e-6)
        worst = max(worst, float(np.abs(expected - advantages[group]).max()))
    return worst


_update_actor = PPOTrainer._update_actor


def _probed(self, batch, metrics):
    fields = ["uid", "rm_scores", "advantages", "response_mask", "responses"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    scores = np.array([float(score.sum()) for score in data["rm_scores"].unbind()])
    advantages = np.array([float(advantage[0]) for advantage in data["advantages"].unbind()])
    result = _update_actor(self, batch, metrics)
    padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
    real = [key for key, padded in zip(batch.keys, padding, strict=True) if not padded]
    line = {
        "step": self.global_steps,
        "rows": len(batch.keys),
        "padding_rows": sum(padding),
        "group_sizes": sorted(collections.Counter(key.rsplit("_", 2)[0] for key in real).values()),
        "advantage_error": _grpo_error(batch.keys, scores, advantages),
        "mini_batch_size": batch.extra_info["mini_batch_size"],
        "global_batch_size": batch.extra_info["global_batch_size"],
        "responses": sorted(
            response.tolist()
            for response, padded in zip(data["responses"].unbind(), padding, strict=True)
            if not padded
        ),
        "scores": float(scores.sum()),
    }
    with open(os.environ["SAGC_PROBE"], "a") as file:
        file.write(json.dumps(line) + "\n")
    return result


PPOTrainer._update_actor = _probed
