"""Makes `trainer.v1.trainer_mode=sagc` known to veRL, right after `verl.trainer.ppo.v1` is imported (plugin.py)."""

from __future__ import annotations

import logging
import os

from sagc_verl.trainer.compat import version_fault

logger = logging.getLogger(__name__)


def register_trainers() -> None:
    """Register `sagc`, and on the CPU `cpu_sync`, veRL's own synchronous trainer with the workers a CPU needs.

    Where they cannot be had, `sagc` is registered all the same, as a trainer that stops with the reason: veRL's other
    trainers must go on working, and "unknown trainer 'sagc'" would hide what is wrong.
    """
    from verl.trainer.ppo.v1 import PPOTrainer, register_trainer

    fault = version_fault()
    if fault is None:
        try:
            from sagc_verl.trainer.trainer import AnswersSync, SagcTrainer

            if os.environ.get("VERL_PLATFORM") == "cpu":
                from verl.trainer.ppo.v1 import PPOTrainerSync

                from sagc_verl.cpu.trainer import CpuWorkersMixin

                register_trainer("sagc")(type("CpuSagcTrainer", (SagcTrainer, CpuWorkersMixin), {}))
                register_trainer("cpu_sync")(type("CpuTrainerSync", (AnswersSync, CpuWorkersMixin, PPOTrainerSync), {}))
            else:
                register_trainer("sagc")(SagcTrainer)
            return
        except Exception as error:
            logger.exception("sagc_verl: the trainer could not be loaded")
            fault = f"sagc_verl could not be loaded beside veRL: {error!r}. `sagc-verl doctor` tells more."

    reason = fault
    logger.error(reason)

    @register_trainer("sagc")
    class SagcUnavailable(PPOTrainer):  # pyright: ignore[reportUnusedClass]
        def __init__(self, config) -> None:
            raise RuntimeError(reason)

        def on_step_end(self) -> None: ...

        def on_sample_end(self) -> None: ...
