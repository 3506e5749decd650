"""What bench_overhead.py puts into both trainings alike, through veRL's key `trainer.checkpoint_callback_class`.

The same pause between two looks into the replay buffer (stock veRL has no setting for it); the turns (see there); and
one line of JSON per step in the file named by SAGC_BENCH_STEPS: `step`, `begin` and `end` (monotonic seconds), `phases`
(the seconds that veRL itself gives to generating, training and the like) and `cpu` (CPU seconds of the training's
processes between begin and end, by kind).
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import time
from collections import Counter
from pathlib import Path

import ray
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tracking import Tracking

from sagc_verl.report.measures import PHASES

# Our classes under the names of those of veRL that they stand for.
STANDS_FOR = {"StampingRolloutWorker": "AgentLoopWorkerTQ", "QueueStampingServer": "vLLMHttpServer"}
WAIT_SECONDS = 0.05


def kind(command: str) -> str:
    """What a process is for, by its command line: the class of a Ray actor, vLLM's engine, or Ray's own parts."""
    actor = re.match(r"ray::(\w+)", command)
    if actor and actor[1] != "IDLE":
        return STANDS_FOR.get(actor[1], actor[1])
    # The engine has vLLM's title where setproctitle is installed; of the forks without a title only it works.
    if command.startswith("VLLM::") or "sagc_verl.cpu.warm" in command:
        return "vLLM engine"
    return "Ray"


def cpu_seconds(outputs: tuple[str, ...]) -> Counter[str]:
    """CPU seconds so far by kind, of the processes whose standard output is a file in one of the folders."""
    used: Counter[str] = Counter()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if not os.readlink(process / "fd" / "1").startswith(outputs):
                continue
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            spent = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            continue  # it has just ended
        used[kind(command)] += sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")
    return used


class Probe(CheckpointCallback):
    def __init__(self, config=None) -> None:
        super().__init__(config)
        # veRL makes the callback before it makes the replay buffer.
        interval = float(os.environ["SAGC_BENCH_POLL"])
        ReplayBuffer.__init__ = functools.partialmethod(ReplayBuffer.__init__, poll_interval=interval)
        steps = Path(os.environ["SAGC_BENCH_STEPS"])
        session = ray._private.worker.global_worker.node.get_session_dir_path()
        outputs = (os.path.realpath(session), str(steps.parent))
        log = Tracking.log
        begin, cpu = math.nan, Counter[str]()

        def stamped(self, data, step, backend=None) -> None:
            nonlocal begin, cpu
            log(self, data, step, backend)
            used = cpu_seconds(outputs)
            end = time.monotonic()
            phases = sum(float(data.get(f"timing_s/{phase}", 0.0)) for phase in PHASES)
            spent = {name: round(used[name] - cpu[name], 3) for name in used}
            line = {"step": step, "begin": begin, "end": end, "phases": phases, "cpu": spent}
            with steps.open("a") as file:
                file.write(json.dumps(line) + "\n")
            _wait_for_turn(steps, step)
            begin, cpu = time.monotonic(), cpu_seconds(outputs)

        Tracking.log = stamped

    def on_save(self, *args, **kwargs) -> None:
        pass


def _wait_for_turn(steps: Path, step: int) -> None:
    """At the end of a turn, wait until the other training has played its own."""
    length = int(os.environ["SAGC_BENCH_TURN"])
    turn, rest = divmod(step, length)
    if rest:
        return
    (steps.parent / f"turn{turn}").touch()
    # The first of the pair waits for the other's turn of the same number, the second for the next turn of the first.
    awaited = turn + int(os.environ["SAGC_BENCH_SECOND"])
    if awaited > int(os.environ["SAGC_BENCH_LAST"]) // length:
        return
    while not (Path(os.environ["SAGC_BENCH_OTHER"]) / f"turn{awaited}").exists():
        time.sleep(WAIT_SECONDS)
