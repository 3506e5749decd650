"""A vLLM server that also tells how long each request waited for a slot in the engine.

All rollouts of a step are sent to the engine together, so their seconds mix waiting with generating. vLLM knows the two
apart where its statistics are on (`actor_rollout_ref.rollout.disable_log_stats=False`); veRL 0.9.1 does not pass them
on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from sagc_verl.trainer.step_rollouts import QUEUE_FIELD


class _Outputs:
    """An engine's outputs of one request, passed on as they are, one per token.

    All of them share one object of statistics, so only the first is looked at, and the others cost next to nothing.
    """

    def __init__(self, outputs: AsyncIterator[Any], note: Callable[[Any], None]) -> None:
        self._next = outputs.__anext__
        self._note: Callable[[Any], None] | None = note

    def __aiter__(self) -> _Outputs:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._next() if self._note is None else self._first(self._note)

    async def _first(self, note: Callable[[Any], None]) -> Any:
        output = await self._next()
        self._note = None
        note(getattr(output, "metrics", None))
        return output


class QueueStampingServer(vLLMHttpServer):
    """veRL's vLLM server; what it generates is veRL's own."""

    async def run_server(self, args) -> None:
        await super().run_server(args)
        self._statistics: dict[str, Any] = {}
        generate = self.engine.generate

        def stamped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            note = partial(self._statistics.__setitem__, str(kwargs.get("request_id")))
            return _Outputs(generate(*args, **kwargs), note)

        self.engine.generate = stamped  # pyright: ignore[reportAttributeAccessIssue]

    async def generate(self, prompt_ids, sampling_params, request_id, **kwargs):
        try:
            result = await super().generate(
                prompt_ids=prompt_ids, sampling_params=sampling_params, request_id=request_id, **kwargs
            )
        finally:
            statistics = self._statistics.pop(str(request_id), None)
        queued, scheduled = (getattr(statistics, name, None) for name in ("queued_ts", "scheduled_ts"))
        if queued and scheduled:
            result.extra_fields[QUEUE_FIELD] = scheduled - queued
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
