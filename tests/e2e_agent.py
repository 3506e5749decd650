"""Single-turn agent loops that seed every rollout: two runs generate the same text, whatever the order of arrival."""

from __future__ import annotations

import os
import zlib

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededAgentLoop(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        name = f"{kwargs['global_steps']}:{kwargs['index']}:{kwargs['session_id']}"
        return await super().run({**sampling_params, "seed": zlib.crc32(name.encode())}, **kwargs)


class FailingAgentLoop(SeededAgentLoop):
    """In the step that SAGC_FAIL_IN_STEP names, the first rollout of each prompt with an even index fails."""

    async def run(self, sampling_params, **kwargs):
        doomed = kwargs["session_id"] == 0 and int(kwargs["index"]) % 2 == 0
        if doomed and str(kwargs["global_steps"]) == os.environ["SAGC_FAIL_IN_STEP"]:
            raise RuntimeError("the tool did not answer")
        return await super().run(sampling_params, **kwargs)
