"""Fixtures that several files of end-to-end tests share; other tests pay nothing for them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    """A trainer takes the package's logger away from the root logger: give it back to the tests that follow."""
    logger = logging.getLogger("sagc_verl")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, with a warm interpreter that ends with this process."""
    from sagc_verl.cpu import warm

    folder = tmp_path_factory.mktemp("runs")
    warm.start(log=folder / "warm.log")
    return folder


@pytest.fixture(scope="session")
def task(runs: Path) -> Path:
    """The quickstart's task with a briefly taught model: it wanders, which is all that is asked of it here."""
    from e2e_runs import QUICKSTART

    folder = runs / "task"
    command = [sys.executable, str(QUICKSTART / "make_task.py"), "--out", str(folder), "--steps", "80"]
    subprocess.run(command, check=True, capture_output=True)
    return folder
