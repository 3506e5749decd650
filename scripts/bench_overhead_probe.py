"""What bench_overhead.py puts into both trainings alike, through veRL's key `trainer.checkpoint_callback_class`.

The same pause between two looks into the replay buffer (stock veRL has no setting for it), and the moment at which each
step has been logged, one line of `step seconds` in the file named by SAGC_BENCH_TIMES.
"""

from __future__ import annotations

import functools
import os
import time

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tracking import Tracking


class Probe(CheckpointCallback):
    def __init__(self, config=None) -> None:
        super().__init__(config)
        # veRL makes the callback before it makes the replay buffer.
        interval = float(os.environ["SAGC_BENCH_POLL"])
        ReplayBuffer.__init__ = functools.partialmethod(ReplayBuffer.__init__, poll_interval=interval)
        log = Tracking.log

        def stamped(self, data, step, backend=None) -> None:
            log(self, data, step, backend)
            with open(os.environ["SAGC_BENCH_TIMES"], "a") as file:
                file.write(f"{step} {time.monotonic():.6f}\n")

        Tracking.log = stamped

    def on_save(self, *args, **kwargs) -> None:
        pass
