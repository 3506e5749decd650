"""veRL's training workers on the CPU."""

from __future__ import annotations

from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker


class CpuTrainingWorker(TrainingWorker):
    """Makes the process group first: veRL asks for "cpu:gloo,<device>:<backend>", which on a CPU names "cpu" twice."""

    def __init__(self, config) -> None:
        initialize_global_process_group_ray(backend="cpu:gloo")
        super().__init__(config)


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):
    """The hybrid worker with the training worker above."""

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker
