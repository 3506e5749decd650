"""A single-turn agent loop that seeds every rollout: two runs generate the same text, whatever the order of arrival."""

from __future__ import annotations

import zlib

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededAgentLoop(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        name = f"{kwargs['global_steps']}:{kwargs['index']}:{kwargs['session_id']}"
        return await super().run({**sampling_params, "seed": zlib.crc32(name.encode())}, **kwargs)
