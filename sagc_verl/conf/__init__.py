"""Presets for Hydra: `+machine=cpu` (veRL without a GPU) and `+sagc=default` (every key of SAGC spelled out)."""

from __future__ import annotations

import os
from pathlib import Path


def register_presets() -> None:
    """Put the presets into Hydra's ConfigStore, where `main_ppo` finds them without a search path of its own."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from sagc_verl.control.config import default_settings
    from sagc_verl.cpu.warm import CLIENT

    cpu = OmegaConf.load(Path(__file__).with_name("cpu.yaml"))
    if os.environ.get(CLIENT):
        # Not as an interpolation in the file: veRL hands this part to Ray unresolved.
        OmegaConf.update(cpu, "ray_kwargs.ray_init.runtime_env.py_executable", os.environ[CLIENT], force_add=True)
    store = ConfigStore.instance()
    store.store(group="machine", name="cpu", node=cpu, package="_global_")
    store.store(group="sagc", name="default", node=default_settings())
