"""What bench_overhead.py puts into both trainings alike, through veRL's key `trainer.checkpoint_callback_class`.

The same pause between two looks into the replay buffer (stock veRL has no setting for it), and the moment at which each
step has been logged: one line in the file named by SAGC_BENCH_TIMES, `step seconds phases cpu`, phases being the
seconds that veRL itself gives to generating, training and the like, cpu what this machine's processes have used so far.
"""

from __future__ import annotations

import functools
import os
import time

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tracking import Tracking

from sagc_verl.report.measures import PHASES


def cpu_seconds() -> float:
    """CPU seconds of all processes since the machine was started, niced ones and the kernel's part included."""
    with open("/proc/stat") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


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
                phases = sum(float(data.get(f"timing_s/{phase}", 0.0)) for phase in PHASES)
                file.write(f"{step} {time.monotonic():.6f} {phases:.6f} {cpu_seconds():.2f}\n")

        Tracking.log = stamped

    def on_save(self, *args, **kwargs) -> None:
        pass
