"""The part of a trainer that puts the CPU's training workers in place."""

from __future__ import annotations

import ray
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainer

from sagc_verl.cpu.workers import CpuActorRolloutRefWorker, CpuTrainingWorker


class CpuWorkersMixin(PPOTrainer):
    """For a trainer: the same roles, played by the CPU workers."""

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            worker = CpuTrainingWorker if role == Role.Critic else CpuActorRolloutRefWorker
            self.role_worker_mapping[role] = ray.remote(worker)
