"""Fixtures that several files of end-to-end tests share; other tests pay nothing for them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_logger() -> None:
    """Each test begins with loggers as they are at first, whatever a trainer or veRL's imports have done to them."""
    logging.disable(logging.NOTSET)
    logging.root.setLevel(logging.WARNING)
    for handler in logging.root.handlers:
        handler.setLevel(logging.NOTSET)
    for name in ("sagc_verl", *(name for name in logging.root.manager.loggerDict if name.startswith("sagc_verl."))):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate, logger.disabled = [], True, False
        logger.setLevel(logging.NOTSET)


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
