"""The trainer `sagc`: veRL's synchronous trainer with a group size chosen each step.

One step (veRL 0.9.1, trainer_base.py, `fit`):

    on_step_begin             n of the step: into the driver's configuration, so that updates, padding and loss scale
                              are veRL's own at that n
    _next_train_batch         n to the rollout workers, per prompt (`__rollout_n__`), first submission and refills alike
    step                      veRL samples, trains; afterwards the rollouts are drained, observed, the next n decided
    _save_checkpoint          controller state into the step's folder, before veRL's own marker
    on_step_end               weight sync, within a time limit
    _compute_metrics          the step's record, with every metric veRL logs
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from sagc_verl.control.config import ConfigError, SagcConfig, parse_config
from sagc_verl.control.sizes import resolve_sizes
from sagc_verl.plugin import COMMAND
from sagc_verl.trainer.announcement import OUR_MANAGER, announcement, warnings_of
from sagc_verl.trainer.batch_arithmetic import batch_shape
from sagc_verl.trainer.session import SagcSession
from sagc_verl.trainer.step_rollouts import StepRollouts, from_tags, from_workers
from sagc_verl.trainer.watch import WorkerWatch, within

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""How long the workers may take to hand over their stamps; past that the step goes without them."""

HANG_SECONDS = 1800.0
HANG_SECONDS_CPU = 120.0
"""Limits of a weight sync where sagc.hang_timeout is not set; large models on slow links take minutes."""


class AnswersSync:
    """Answers "sync" where veRL's base code asks for the mode (a dozen places), whatever name the user trains under."""

    @property
    def trainer_mode(self) -> str:
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None:
        """veRL sets it from the configuration, which loggers record and which keeps the user's own word."""


class SagcTrainer(AnswersSync, PPOTrainerSync):
    """veRL's synchronous PPO trainer under a group-size controller."""

    def __init__(self, config: DictConfig) -> None:
        self.session, self._sagc = _start_session(config)
        self._step_start = time.monotonic()
        self._submitted = 0
        self._watch: WorkerWatch | None = None
        rollout = config.actor_rollout_ref.rollout
        if not rollout.agent.get("agent_loop_manager_class"):
            with open_dict(config):
                rollout.agent.agent_loop_manager_class = OUR_MANAGER
        if rollout.name == "vllm" and not rollout.disable_log_stats:
            from sagc_verl.trainer.vllm_server import stamp_queues

            stamp_queues()
        super().__init__(config)  # pyright: ignore[reportCallIssue]  (without veRL at hand)
        if self._sagc.poll_interval is not None:
            self.replay_buffer.poll_interval = self._sagc.poll_interval
        self._watch_polls()

    def fit(self, agent_loop_manager) -> None:
        self._watch = WorkerWatch(self._actors_of_a_rollout(agent_loop_manager))
        self.session.open_records(resume_step=self.global_steps)
        try:
            super().fit(agent_loop_manager)
        finally:
            self.session.close()

    # ---- one step, in order

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self._step_start = time.monotonic()
        self._submitted = 0
        self.config.actor_rollout_ref.rollout.n = self.session.size

    def _next_train_batch(self, num_prompts: int | None = None):
        batch = super()._next_train_batch(num_prompts)
        tu.assign_non_tensor_stack(batch, "__rollout_n__", self.session.sizes_for(len(batch)))
        self._submitted += len(batch)
        return batch

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        limit = self._sagc.max_refills * self.config.data.train_batch_size
        if self._refills + num_prompts > limit:
            raise RuntimeError(
                _no_group_passes(self.config, self.global_steps, self._submitted, self._sagc.max_refills)
            )
        return super()._add_prompts_to_generate(num_prompts)

    @property
    def _refills(self) -> int:
        """Prompts submitted in this step beyond the first batch."""
        return max(0, self._submitted - self.config.data.train_batch_size)

    def step(self, metrics: dict, timing_raw: dict):
        batch = super().step(metrics, timing_raw)
        padding = sum(bool(tag.get("is_padding", False)) for tag in batch.tags)
        trained = {
            key.rsplit("_", 2)[0]
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if not tag.get("is_padding", False)
        }
        self.session.observe(self._collect(batch), trained, padding, self._refills, metrics)
        return batch

    def _save_checkpoint(self) -> None:
        self.session.save(os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"))
        super()._save_checkpoint()

    def on_step_end(self) -> None:
        self._within_limit("the weight sync", super().on_step_end)

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        self.session.record(global_steps, metrics, wall_s=time.monotonic() - self._step_start)

    # ---- start and resume

    def on_init_end(self) -> None:
        self._within_limit("the first weight sync", super().on_init_end)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps > 0:
            self.session.restore(self._checkpoint_folder(), self.global_steps)

    def _checkpoint_folder(self) -> str:
        if self.config.trainer.resume_mode == "resume_path":
            return os.path.abspath(self.config.trainer.resume_from_path)
        return os.path.abspath(os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"))

    # ---- rollouts and hangs

    def _collect(self, batch) -> StepRollouts | None:
        """Every rollout of the step; from veRL's tags where the workers are not ours or do not answer."""
        try:
            drains = [worker.drain_trajectories for worker in _workers_of(self.agent_loop_manager)]
        except AttributeError:
            drains = []
        try:
            if drains:
                asked = time.monotonic()
                answers = ray.get([drain.remote() for drain in drains], timeout=DRAIN_SECONDS)
                half_way = (asked + time.monotonic()) / 2
                rollouts = from_workers([(clock, rows, half_way) for clock, rows in answers], self._step_start)
                if len(rollouts):
                    return rollouts
            return from_tags(batch.keys, batch.tags, cap=self.config.data.max_response_length)
        except Exception as error:
            self.session.fault("collect", f"the step's rollouts could not be collected: {error!r}")
            return None

    def _actors_of_a_rollout(self, agent_loop_manager) -> list[tuple[str, Any]]:
        """Every actor that a rollout needs, with a name for messages."""
        servers = [server for replica in self.llm_server_manager.get_replicas() for server in replica.servers]
        rewards = self.reward_loop_manager.reward_loop_worker_handles or []
        kinds = {
            "rollout worker": _workers_of(agent_loop_manager),
            "rollout server": servers,
            "reward worker": rewards,
        }
        return [(f"{kind} {i}", actor) for kind, actors in kinds.items() for i, actor in enumerate(actors)]

    def _watch_polls(self) -> None:
        """Look after the rollout workers whenever the replay buffer waits: veRL would wait for a dead one for ever."""
        wait = getattr(self.replay_buffer, "_wait_for_next_poll", None)
        if wait is None:
            return  # a custom sampler that polls in its own way

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._watch is not None:
                self._watch.check()
            return wait(*args, **kwargs)

        self.replay_buffer._wait_for_next_poll = watched

    def _within_limit(self, what: str, action: Any) -> None:
        limit = self._sagc.hang_timeout
        if limit is None:
            limit = HANG_SECONDS_CPU if self.config.trainer.device == "cpu" else HANG_SECONDS
        within(limit, what, action, kill=self.actor_rollout_wg.workers)


def _no_group_passes(config: DictConfig, step: int, submitted: int, max_refills: int) -> str:
    filtering = config.algorithm.get("filter_groups") or {}
    why = (
        f"algorithm.filter_groups (metric {filtering.get('metric')}) drops groups whose rollouts all get the same "
        "value: the task is too easy or too hard for the model, the reward is constant, or "
        f"n={config.actor_rollout_ref.rollout.n} is too small"
        if filtering.get("enable")
        else "failed groups are refilled (trainer.v1.sampler.sync_refill_failed_groups): look for the rollouts' errors "
        "above"
    )
    return (
        f"sagc_verl: step {step} has generated {submitted} prompts and still has not the "
        f"{config.data.train_batch_size} groups to train on; veRL would go on for ever. {why}. The limit is "
        f"sagc.max_refills={max_refills} times the batch."
    )


def _workers_of(agent_loop_manager: Any) -> list[Any]:
    return list(getattr(agent_loop_manager, "agent_loop_workers", None) or [])


def _configure_logging() -> None:
    """Our log lines look like veRL's and are seen like them, whatever a library does to the root logger.

    veRL does the same for its own (verl/utils/logging_utils.py), in the process that trains.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    ours = logging.getLogger("sagc_verl")
    ours.handlers = [handler]
    ours.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))
    ours.propagate = False


def _start_session(config: DictConfig) -> tuple[SagcSession, SagcConfig]:
    """Check everything that can be checked before a worker starts, say what will happen, open the session.

    Raises:
        ConfigError: names the key, the value and what is legal.
    """
    _configure_logging()
    rollout = config.actor_rollout_ref.rollout
    raw = OmegaConf.to_container(config.sagc, resolve=True) if config.get("sagc") else {}
    sagc = parse_config(raw, rollout.n)  # pyright: ignore[reportArgumentType]
    if not config.actor_rollout_ref.get("hybrid_engine", True):
        raise ConfigError(
            "actor_rollout_ref.hybrid_engine=False: rollouts on GPUs of their own are an asynchronous setting; "
            "trainer_mode=sagc is synchronous; legal: True"
        )
    parallel_sync = config.trainer.v1.get("sync", {}).get("parameter_sync_step", 1)
    if parallel_sync != 1:
        raise ConfigError(
            f"trainer.v1.sync.parameter_sync_step={parallel_sync}: one weight sync per step is what keeps training "
            "on-policy; legal: 1"
        )
    shape = batch_shape(config, need_critic(config), need_reference_policy(config))
    plan = resolve_sizes(sagc, rollout.n, shape.why_not)
    records_dir = None
    if sagc.records is True:
        records_dir = Path(config.trainer.default_local_dir) / "sagc"
    elif sagc.records:
        records_dir = Path(sagc.records)
    warnings = warnings_of(config, sagc, plan, shape)
    print(announcement(sagc, plan, shape, records_dir, warnings), flush=True)
    run_info = {
        "name": f"{config.trainer.project_name}/{config.trainer.experiment_name}",
        "config": OmegaConf.to_container(config, resolve=True),
        "command": os.environ.get(COMMAND),
        "sizes": list(plan.sizes),
    }
    return SagcSession(sagc, plan, config.data.max_response_length, records_dir, run_info), sagc
