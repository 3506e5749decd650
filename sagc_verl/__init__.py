"""SAGC for veRL: straggler-aware group sizing for synchronous GRPO and DAPO.

`sagc_verl.load_run("outputs/my_run")` opens the records of a run (see `sagc_verl.records.reader`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagc_verl.records.reader import load_run

__version__ = "0.1.0"
__all__ = ["__version__", "load_run"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the package is imported in every process of a veRL run, and pandas is slow to import.
    if name == "load_run":
        from sagc_verl.records.reader import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
