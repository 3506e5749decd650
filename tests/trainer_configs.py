"""The part of veRL's configuration that the trainer's checks read, for tests that need no Hydra."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

CONFIG: dict[str, Any] = {
    "data": {"train_batch_size": 8, "max_response_length": 100},
    "algorithm": {
        "adv_estimator": "grpo",
        "norm_adv_by_std_in_grpo": True,
        "use_kl_in_reward": False,
        "kl_ctrl": {"type": "fixed"},
        "filter_groups": {"enable": False, "metric": "reward"},
        "rollout_correction": {"bypass_mode": False},
    },
    "actor_rollout_ref": {
        "hybrid_engine": True,
        "model": {"lora_rank": 0, "lora_adapter_path": None, "lora": {"rank": 0}},
        "actor": {
            "strategy": "fsdp2",
            "ulysses_sequence_parallel_size": 1,
            "fsdp_config": {"ulysses_sequence_parallel_size": 1},
            "ppo_mini_batch_size": 8,
            "use_dynamic_bsz": True,
            "ppo_micro_batch_size_per_gpu": None,
            "ppo_epochs": 1,
            "shuffle": False,
            "data_loader_seed": 42,
            "calculate_entropy": False,
            "entropy_coeff": 0.0,
            "loss_agg_mode": "token-mean",
            "loss_scale_factor": None,
            "use_kl_loss": False,
        },
        "ref": {
            "strategy": "fsdp2",
            "fsdp_config": {"ulysses_sequence_parallel_size": 1},
            "log_prob_use_dynamic_bsz": True,
            "log_prob_micro_batch_size_per_gpu": None,
        },
        "rollout": {
            "n": 8,
            "temperature": 1.0,
            "log_prob_use_dynamic_bsz": True,
            "log_prob_micro_batch_size_per_gpu": None,
            "agent": {},
        },
    },
    "critic": {
        "strategy": "fsdp",
        "enable": None,
        "ulysses_sequence_parallel_size": 1,
        "fsdp": {"ulysses_sequence_parallel_size": 1},
        "ppo_mini_batch_size": 8,
        "ppo_epochs": 1,
        "shuffle": False,
        "data_loader_seed": 42,
    },
    "trainer": {
        "n_gpus_per_node": 1,
        "nnodes": 1,
        "critic_warmup": 0,
        "v1": {"trainer_mode": "sagc"},
        "default_local_dir": "checkpoints",
        "project_name": "project",
        "experiment_name": "run",
    },
}


def verl_config(changes: dict[str, Any] | None = None) -> DictConfig:
    """CONFIG with dotted keys changed."""
    config = OmegaConf.create(CONFIG)
    for key, value in (changes or {}).items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    return config  # pyright: ignore[reportReturnType]
