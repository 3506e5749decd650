"""Which group sizes veRL can split over its workers, and what changes with n beside the group.

The trainer sets `actor_rollout_ref.rollout.n` on the driver for the step, so that updates per step, padding and loss
scale are veRL's own at that n (veRL 0.9.1, trainer_base.py: `_get_required_batch_multiple`, `_update_actor`,
`_update_critic`). What veRL would only assert in the middle of a run is asked here, for every size, before any worker
starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class Model:
    """The numbers of one model (actor, reference or critic) that a group size must fit.

    Attributes:
        key: configuration key, for messages.
        data_parallel: ranks that split the rows.
        mini_batch_prompts: `ppo_mini_batch_size`, in prompts; None for a model that scores and is not trained.
        micro_batch_rows: fixed rows per rank and micro-batch in training; None with dynamic batch size.
        infer_micro_batch_rows: the same for log-probs or values; None with dynamic batch size.
        dynamic_key: the configuration key that turns dynamic batch size on, for messages.
    """

    key: str
    data_parallel: int
    mini_batch_prompts: int | None
    micro_batch_rows: int | None = None
    infer_micro_batch_rows: int | None = None
    dynamic_key: str = ""


@dataclass(frozen=True)
class BatchShape:
    """What decides whether veRL can train on groups of n.

    Attributes:
        train_batch_prompts: `data.train_batch_size`.
        models: the actor first, then the others.
        actor_waits: whether the first steps do not train the actor (`trainer.critic_warmup`).
    """

    train_batch_prompts: int
    models: tuple[Model, ...]
    actor_waits: bool = False

    def rows(self, n: int, actor_waits: bool = False) -> int:
        """Rows of a step at size n, padding included; `actor_waits`: in the critic's warm-up."""
        actor, *others = self.models
        trained = others if actor_waits else self.models
        mini_batches = [model.mini_batch_prompts * n for model in trained if model.mini_batch_prompts]
        multiple = math.lcm(actor.data_parallel, *mini_batches)
        return math.ceil(self.train_batch_prompts * n / multiple) * multiple

    def updates(self, n: int) -> int:
        """Optimizer updates per step and epoch of the actor at size n: the same for every legal n."""
        return self.rows(n) // ((self.models[0].mini_batch_prompts or 1) * n)

    def why_not(self, n: int) -> str | None:
        """Why veRL cannot run groups of n, in one line; None when it can."""
        for model in self.models:
            reason = self._no_mini_batches(model, n) if model.mini_batch_prompts else None
            reason = reason or self._no_scoring(model, self.rows(n))
            if reason is None and self.actor_waits:
                reason = self._no_scoring(model, self.rows(n, actor_waits=True))
            if reason is not None:
                return reason
        return None

    @staticmethod
    def _no_mini_batches(model: Model, n: int) -> str | None:
        prompts = model.mini_batch_prompts or 1
        rows, rest = divmod(prompts * n, model.data_parallel)
        if rest:
            return (
                f"{model.key}.ppo_mini_batch_size * n = {prompts} * {n} = {prompts * n} rows do not split over "
                f"{model.data_parallel} data-parallel workers"
            )
        if model.micro_batch_rows and rows % model.micro_batch_rows:
            return (
                f"{rows} rows per worker and mini-batch do not split into {model.key}'s micro-batches of "
                f"{model.micro_batch_rows}; set {model.dynamic_key}=True"
            )
        return None

    @staticmethod
    def _no_scoring(model: Model, step_rows: int) -> str | None:
        if not model.infer_micro_batch_rows:
            return None
        rows, rest = divmod(step_rows, model.data_parallel)
        if rest:
            return f"{step_rows} rows per step do not split over the {model.data_parallel} workers of {model.key}"
        if rows % model.infer_micro_batch_rows:
            return (
                f"{rows} rows per worker do not split into micro-batches of {model.infer_micro_batch_rows} when "
                f"{model.key} scores them; set {model.dynamic_key}=True"
            )
        return None


def _engine(section: Any) -> tuple[str, Any]:
    """Name and content of the part of a model's section that configures its engine (veRL 0.9.1, workers/config)."""
    if section.strategy in section:
        return section.strategy, section[section.strategy]
    name = "fsdp_config" if "fsdp_config" in section else "fsdp"  # actor and reference; critic
    return name, section.get(name) or {}


def _data_parallel(section: Any, workers: int) -> int:
    """Ranks that split the rows: `get_data_parallel_size` of the engines in veRL 0.9.1, workers/engine."""
    engine = _engine(section)[1]
    if section.strategy == "megatron":
        if engine.get("dynamic_context_parallel"):
            return 1
        split = engine.tensor_model_parallel_size * engine.pipeline_model_parallel_size * engine.context_parallel_size
    elif section.strategy == "torchtitan":
        return engine.data_parallel_shard_size * engine.data_parallel_replicate_size
    elif section.strategy == "veomni":
        split = engine.ulysses_parallel_size
    else:
        split = engine.get("ulysses_sequence_parallel_size") or 1
        older = section.get("ulysses_sequence_parallel_size") or 1
        if "fsdp_config" in section and older > 1:  # wins in the actor's section, is read by nobody in the critic's
            split = older
    return max(1, workers // split)


def _reference_is_the_actor(model: Any) -> bool:
    """With LoRA the actor without its adapter is the reference."""
    rank = (model.get("lora") or {}).get("rank") or 0
    return (rank if rank > 0 else model.get("lora_rank") or 0) > 0 or model.get("lora_adapter_path") is not None


def batch_shape(config: DictConfig, use_critic: bool, use_reference_policy: bool) -> BatchShape:
    """Read the batch shape from veRL's configuration."""
    workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    lora = _reference_is_the_actor(config.actor_rollout_ref.get("model") or {})
    bypass = (config.algorithm.get("rollout_correction") or {}).get("bypass_mode")
    scores = not bypass or (use_reference_policy and lora)
    fixed = not actor.use_dynamic_bsz  # of training and scoring alike: veRL asserts that both settings agree
    models = [
        Model(
            key="actor_rollout_ref.actor",
            data_parallel=_data_parallel(actor, workers),
            mini_batch_prompts=actor.ppo_mini_batch_size,
            micro_batch_rows=actor.ppo_micro_batch_size_per_gpu if fixed else None,
            infer_micro_batch_rows=rollout.log_prob_micro_batch_size_per_gpu if fixed and scores else None,
            dynamic_key="actor_rollout_ref.actor.use_dynamic_bsz",
        )
    ]
    if use_reference_policy and not lora:
        ref = config.actor_rollout_ref.ref
        fixed = not ref.log_prob_use_dynamic_bsz
        models.append(
            Model(
                key="actor_rollout_ref.ref",
                data_parallel=_data_parallel(ref, workers),
                mini_batch_prompts=None,
                infer_micro_batch_rows=ref.log_prob_micro_batch_size_per_gpu if fixed else None,
                dynamic_key="actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
            )
        )
    if use_critic:
        critic = config.critic
        # Nobody reads the critic's own use_dynamic_bsz and micro-batch sizes: its engine's count, dynamic if unset.
        name, engine = _engine(critic)
        fixed = not engine.get("use_dynamic_bsz", True)
        models.append(
            Model(
                key="critic",
                data_parallel=_data_parallel(critic, workers),
                mini_batch_prompts=critic.ppo_mini_batch_size,
                micro_batch_rows=engine.get("micro_batch_size_per_gpu") if fixed else None,
                infer_micro_batch_rows=engine.get("infer_micro_batch_size_per_gpu") if fixed else None,
                dynamic_key=f"critic.{name}.use_dynamic_bsz",
            )
        )
    return BatchShape(
        train_batch_prompts=config.data.train_batch_size,
        models=tuple(models),
        actor_waits=(config.trainer.get("critic_warmup") or 0) > 1,  # steps count from 1
    )
