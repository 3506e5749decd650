"""A device platform "cpu" for veRL's PlatformRegistry (veRL 0.9.1, verl/plugin/platform): `VERL_PLATFORM=cpu`."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Set where the user has not said otherwise. They hold for the driver and, by inheritance, for every process Ray starts.
ENVIRONMENT = {
    "VERL_ENGINE_DEVICE": "cuda",  # veRL's FSDP engine is registered for "cuda"; it runs on the CPU as it is
    "OMP_NUM_THREADS": "1",  # a dozen processes share a few cores
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",  # vLLM compiles one small function even in eager mode, with a C++ compiler
    "TQ_NUM_THREADS": "1",  # TransferQueue sets torch's threads at every rollout, and warns where they exceed the cores
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "HF_HUB_OFFLINE": "1",  # models and data are local paths: a look-up would only wait for a time-out
}


def _device_module() -> types.ModuleType:
    """`torch.cpu` with the names that veRL calls on a device module and `torch.cpu` lacks."""
    import torch

    class CpuDevice(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(torch.cpu, name)

    module = CpuDevice("sagc_verl.cpu.device")
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *args, **kwargs: 0)
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
        setattr(module, name, lambda *args, **kwargs: None)
    named: dict[str, Any] = {
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        # Without these a resumed run fails: veRL's checkpoints hold the device's random state.
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "mem_get_info": lambda *args, **kwargs: (0, 0),
        "get_device_name": lambda *args, **kwargs: "CPU",
        "is_available": lambda: True,
    }
    for name, value in named.items():
        setattr(module, name, value)
    return module


def register_platform() -> None:
    """Register "cpu" with veRL and set the environment that a CPU run needs."""
    import torch
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    device = _device_module()

    @PlatformRegistry.register(platform="cpu")
    class CpuPlatform(PlatformBase):  # pyright: ignore[reportUnusedClass]
        device_name = "cpu"  # pyright: ignore[reportAssignmentType]
        vendor_name = "cpu"  # pyright: ignore[reportAssignmentType]
        device_module = device  # pyright: ignore[reportAssignmentType]

        def is_available(self) -> bool:
            return True

        def current_device(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return "cpu"  # veRL hands it to tensor.to()

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            pass

        def synchronize(self, device_index: int | None = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None:
            pass

        def empty_cache(self) -> None:
            pass

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return (None, None)

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        def ray_resource_name(self) -> str:
            return "GPU"  # logical ones (conf/cpu.yaml): veRL's pool check knows GPU and NPU only

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False  # weights go to vLLM through shared memory

        def rollout_env_vars(self) -> dict[str, str]:
            return {name: os.environ[name] for name in ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")}

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            pass

        def profiler_stop(self) -> None:
            pass

        def cudart(self) -> None:
            return None
