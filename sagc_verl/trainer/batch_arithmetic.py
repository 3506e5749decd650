"""Which group sizes veRL can split over its workers, and what changes with n beside the group.

The trainer sets `actor_rollout_ref.rollout.n` on the driver for the step, so that updates per step, padding and loss scale are
veRL's own at that n (veRL 0.9.1, trainer_base.py: `_get_required_batch_multiple`, `_update_actor`, `_update_critic`). What
veRL would only assert in the middle of a run is asked here, for every size, before any worker starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class TrainedModel:
    """The numbers of one trained model (actor or critic) that a group size must fit.

    Attributes:
        key: configuration key, for messages.
        data_parallel: ranks that split the rows.
        mini_batch_prompts: `ppo_mini_batch_size`, in prompts.
        micro_batch_rows: fixed rows per rank and micro-batch in training; None with dynamic batch size.
        infer_micro_batch_rows: the same for log-probs or values; None with dynamic batch size.
    """

    key: str
    data_parallel: int
    mini_batch_prompts: int
    micro_batch_rows: int | None = None
    infer_micro_batch_rows: int | None = None


@dataclass(frozen=True)
class BatchShape:
    """What decides whether veRL can train on groups of n."""

    train_batch_prompts: int
    models: tuple[TrainedModel, ...]

    def rows(self, n: int) -> int:
        """Rows trained per step at size n, padding included."""
        multiple = math.lcm(*(math.lcm(m.data_parallel, m.mini_batch_prompts * n) for m in self.models))
        return math.ceil(self.train_batch_prompts * n / multiple) * multiple

    def updates(self, n: int) -> int:
        """Optimizer updates per step and epoch of the actor at size n: the same for every legal n."""
        return self.rows(n) // (self.models[0].mini_batch_prompts * n)

    def why_not(self, n: int) -> str | None:
        """Why veRL cannot run groups of n, in one line; None when it can."""
        for model in self.models:
            mini_batch = model.mini_batch_prompts * n
            if mini_batch % model.data_parallel:
                return (
                    f"{model.key}.ppo_mini_batch_size * n = {model.mini_batch_prompts} * {n} = {mini_batch} rows do not "
                    f"split over {model.data_parallel} data-parallel workers"
                )
            rows = mini_batch // model.data_parallel
            if model.micro_batch_rows and rows % model.micro_batch_rows:
                return (
                    f"{rows} rows per worker and mini-batch do not split into micro-batches of {model.micro_batch_rows} "
                    f"({model.key}.ppo_micro_batch_size_per_gpu); set {model.key}.use_dynamic_bsz=True"
                )
            rows = self.rows(n) // model.data_parallel
            if model.infer_micro_batch_rows and rows % model.infer_micro_batch_rows:
                return (
                    f"{rows} rows per worker do not split into micro-batches of {model.infer_micro_batch_rows} when "
                    f"{model.key} scores them; set {model.key}.use_dynamic_bsz=True"
                )
        return None


def _data_parallel(section: Any, workers: int) -> int:
    if section.strategy == "megatron":
        megatron = section.megatron
        split = (
            megatron.tensor_model_parallel_size * megatron.pipeline_model_parallel_size * megatron.context_parallel_size
        )
    else:
        engine = section.get("fsdp_config") or section.get("model", {}).get("fsdp_config") or {}
        split = max(
            section.get("ulysses_sequence_parallel_size") or 1, engine.get("ulysses_sequence_parallel_size") or 1
        )
    return max(1, workers // split)


def batch_shape(config: DictConfig, use_critic: bool, use_reference_policy: bool) -> BatchShape:
    """Read the batch shape from veRL's configuration."""
    workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    models = [
        TrainedModel(
            key="actor_rollout_ref.actor",
            data_parallel=_data_parallel(actor, workers),
            mini_batch_prompts=actor.ppo_mini_batch_size,
            micro_batch_rows=None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
            infer_micro_batch_rows=None
            if rollout.log_prob_use_dynamic_bsz
            else rollout.log_prob_micro_batch_size_per_gpu,
        )
    ]
    if use_reference_policy:
        ref = config.actor_rollout_ref.ref
        if not ref.log_prob_use_dynamic_bsz:
            models.append(
                TrainedModel(
                    key="actor_rollout_ref.ref",
                    data_parallel=models[0].data_parallel,
                    mini_batch_prompts=models[0].mini_batch_prompts,
                    infer_micro_batch_rows=ref.log_prob_micro_batch_size_per_gpu,
                )
            )
    if use_critic:
        critic = config.critic
        models.append(
            TrainedModel(
                key="critic",
                data_parallel=_data_parallel(critic, workers),
                mini_batch_prompts=critic.ppo_mini_batch_size,
                micro_batch_rows=None if critic.use_dynamic_bsz else critic.ppo_micro_batch_size_per_gpu,
                infer_micro_batch_rows=None if critic.use_dynamic_bsz else critic.forward_micro_batch_size_per_gpu,
            )
        )
    return BatchShape(train_batch_prompts=config.data.train_batch_size, models=tuple(models))
