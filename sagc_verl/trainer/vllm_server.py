"""A vLLM server that also tells how long each request waited for a slot in the engine.

All rollouts of a step are sent to the engine together, so their seconds mix waiting with generating. vLLM knows the two
apart where its statistics are on (`actor_rollout_ref.rollout.disable_log_stats=False`); veRL 0.9.1 does not pass them
on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from sagc_verl.trainer.step_rollouts import QUEUE_FIELD


class QueueStampingServer(vLLMHttpServer):
    """veRL's vLLM server; what it generates is veRL's own."""

    async def run_server(self, args) -> None:
        await super().run_server(args)
        self._queue_s: dict[str, float] = {}
        generate = self.engine.generate

        def stamped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            return self._note_queue(str(kwargs.get("request_id")), generate(*args, **kwargs))

        self.engine.generate = stamped  # pyright: ignore[reportAttributeAccessIssue]

    async def _note_queue(self, request_id: str, outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for output in outputs:
            stats = getattr(output, "metrics", None)
            if output.finished and stats is not None and stats.scheduled_ts and stats.queued_ts:
                self._queue_s[request_id] = stats.scheduled_ts - stats.queued_ts
            yield output

    async def generate(self, prompt_ids, sampling_params, request_id, **kwargs):
        result = await super().generate(
            prompt_ids=prompt_ids, sampling_params=sampling_params, request_id=request_id, **kwargs
        )
        seconds = self._queue_s.pop(str(request_id), None)
        if seconds is not None:
            result.extra_fields[QUEUE_FIELD] = seconds
        return result


def stamp_queues() -> None:
    """From now on replicas of rollout.name=vllm use the server above (in this process, which makes the replicas)."""
    load_base = RolloutReplicaRegistry._registry["vllm"]

    def load() -> type:
        base = load_base()

        class QueueStampingReplica(base):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                # A replica with a server of its own keeps it.
                server: Any = self.server_class
                if server.__ray_metadata__.modified_class.__name__ == vLLMHttpServer.__name__:
                    self.server_class = ray.remote(QueueStampingServer)

        return QueueStampingReplica

    RolloutReplicaRegistry.register("vllm", load)
