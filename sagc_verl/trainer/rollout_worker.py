"""The rollout worker that stamps start and end of every trajectory, and its manager.

veRL keeps neither (veRL 0.9.1, trainer/ppo/v1/agent_loop_tq.py). The stamps stay in the worker until the trainer drains
them once per step, so that groups which veRL discards (DAPO filtering, surplus, failures) are on record too and nothing
is added to the path of a rollout but two readings of a monotonic clock.
"""

from __future__ import annotations

import contextvars
import logging
import math
import time
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import ray
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

from sagc_verl.trainer.step_rollouts import QUEUE_FIELD

logger = logging.getLogger(__name__)


@dataclass
class Trajectory:
    """One session of one prompt, as its worker saw it. Times are seconds of the worker's monotonic clock."""

    uid: str
    session: int
    worker: str
    prompt_index: str | None
    data_source: str | None
    start: float
    end: float = math.nan
    prompt_tokens: int = 0
    response_tokens: int = 0
    truncated: bool = False
    generate_s: float = math.nan
    queue_s: float = math.nan
    tool_s: float = math.nan
    reward_s: float = math.nan
    turns: int = 0
    preempted: int = -1
    reward: float = math.nan
    filter_value: float = math.nan
    failed: bool = True


TRAJECTORY_FIELDS = tuple(field.name for field in fields(Trajectory))
_as_row = attrgetter(*TRAJECTORY_FIELDS)  # dataclasses.astuple copies every value
# Each session runs in an asyncio task of its own, so a context variable tells which trajectory an output belongs to.
_current: contextvars.ContextVar[Trajectory | None] = contextvars.ContextVar("sagc_trajectory", default=None)
_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # pyright: ignore[reportAttributeAccessIssue]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


class StampingRolloutWorker(_VerlWorker):
    """veRL's rollout worker; what it generates and stores is veRL's own."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._finished: list[tuple] = []
        self._name = str(ray.get_runtime_context().get_actor_id())[:8]
        eos: set[int] = set()
        for source in (self.tokenizer, getattr(self.model_config, "generation_config", None)):
            ids = getattr(source, "eos_token_id", None)
            eos.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
        self._eos = eos
        filtering = self.config.algorithm.get("filter_groups") or {}
        self._filter_metric = filtering.get("metric") if filtering.get("enable") else None

    async def _run_agent_loop(self, sampling_params, trajectory, *, agent_name, trace=True, **kwargs):
        if trajectory["validate"]:
            return await super()._run_agent_loop(
                sampling_params, trajectory, agent_name=agent_name, trace=trace, **kwargs
            )
        stamp = Trajectory(
            uid=str(kwargs["uid"]),
            session=int(kwargs["session_id"]),
            worker=self._name,
            prompt_index=_text(kwargs.get("index")),
            data_source=_text(kwargs.get("data_source")),
            start=time.monotonic(),
        )
        _current.set(stamp)
        try:
            return await super()._run_agent_loop(
                sampling_params, trajectory, agent_name=agent_name, trace=trace, **kwargs
            )
        finally:
            stamp.end = time.monotonic()
            self._finished.append(_as_row(stamp))

    async def _agent_loop_postprocess(self, output, validate, **kwargs):
        result = await super()._agent_loop_postprocess(output, validate, **kwargs)
        stamp = _current.get()
        if stamp is not None:
            try:
                self._note(stamp, output if isinstance(output, list) else [output])
            except Exception:  # a rollout is worth more than its record
                logger.exception("sagc_verl: a trajectory could not be recorded")
        return result

    def _note(self, stamp: Trajectory, outputs: list) -> None:
        if not outputs:
            return  # nothing came back: stays a failed trajectory
        last = outputs[-1]
        # A session with several outputs is one rollout: its lengths add up.
        stamp.prompt_tokens = len(outputs[0].prompt_ids)
        stamp.response_tokens = sum(len(output.response_ids) for output in outputs)
        stamp.truncated = self._is_truncated(last)
        stamp.generate_s = sum(output.metrics.generate_sequences for output in outputs)
        stamp.tool_s = sum(output.metrics.tool_calls for output in outputs)
        stamp.reward_s = last.metrics.compute_score
        stamp.turns = last.num_turns
        stamp.preempted = max(output.metrics.num_preempted for output in outputs)
        queued = [output.extra_fields.get(QUEUE_FIELD) for output in outputs]
        if all(seconds is not None for seconds in queued):
            stamp.queue_s = sum(queued)
        if last.reward_score is not None:
            stamp.reward = float(last.reward_score)
        stamp.failed = False
        if self._filter_metric == "reward":  # as the replay buffer looks it up: any other name is the reward function's
            stamp.filter_value = stamp.reward
        elif self._filter_metric is not None:
            stamp.filter_value = float(last.extra_fields["reward_extra_info"][self._filter_metric])

    def _is_truncated(self, output: Any) -> bool:
        if not output.response_ids or output.response_ids[-1] in self._eos:
            return False
        length = len(output.response_ids)
        limit = self.rollout_config.max_model_len or math.inf
        return length >= self.rollout_config.response_length or length + len(output.prompt_ids) >= limit

    async def drain_trajectories(self) -> tuple[float, list[tuple]]:
        """Reading of this worker's clock, and the trajectories finished since the last call (`TRAJECTORY_FIELDS`)."""
        rows, self._finished = self._finished, []
        return time.monotonic(), rows


class SagcAgentLoopManager(AgentLoopManagerTQ):
    """veRL's manager with the worker above. The trainer names it in the configuration where the user named none."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(StampingRolloutWorker)
