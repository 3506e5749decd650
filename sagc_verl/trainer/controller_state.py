"""The controller's state in veRL's checkpoint: `global_step_<k>/sagc_state.json`, written before veRL's own marker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "sagc_state.json"


def write_state(folder: str | os.PathLike[str], state: dict[str, Any]) -> Path:
    """Write the state aside and rename it.

    Raises:
        OSError: the folder cannot be written.
        ValueError: the state holds NaN or infinity.
    """
    target = Path(folder) / FILE_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{FILE_NAME}.{os.getpid()}")
    with open(aside, "w") as file:
        json.dump(state, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, target)
    return target


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state file, or that of a checkpoint folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a state file; the message names it.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        state = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is not a controller state")
    return state
