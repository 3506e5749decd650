"""Real veRL runs on the CPU for the end-to-end tests: one task, one warm interpreter, runs made once and shared."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = REPOSITORY / "examples"
QUICKSTART = EXAMPLES / "quickstart"
TIMEOUT = 420.0
"""Seconds that one run may take; start-up alone is about a minute on two busy cores."""


@dataclass
class TrainingRun:
    """A finished (or ended) training process."""

    folder: Path
    returncode: int
    log: str
    probes: list[dict[str, Any]] = field(default_factory=list)

    def check(self) -> TrainingRun:
        assert self.returncode == 0, f"training failed, see {self.folder}/train.log:\n{self.log[-4000:]}"
        return self

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Step -> metrics, of veRL's own `file` logger."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return {row["step"]: row["data"] for row in map(json.loads, lines)}


def overrides_for_tests(name: str, folder: Path) -> list[str]:
    """What every test run adds to the quickstart's own command: smaller, and observed."""
    return [
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        "data.max_response_length=64",
        "actor_rollout_ref.rollout.max_model_len=96",
        "data.val_max_samples=4",
        "trainer.logger=[console,file]",
        f"trainer.default_local_dir={folder}",
        "trainer.checkpoint_callback_class=e2e_probe.Probe",
    ]


def environment_for_tests(task: Path, folder: Path) -> dict[str, str]:
    """The environment of a test run, and of a Ray cluster that it is to run on."""
    return {
        **os.environ,
        "TASK": str(task),
        "OUT": str(folder.parent),
        "PYTHON": os.environ.get("SAGC_CPU_PYTHON", sys.executable),
        "PYTHONPATH": str(REPOSITORY / "tests"),
        "SAGC_PROBE": str(folder / "probe.jsonl"),
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
    }


def start_training(task: Path, folder: Path, overrides: list[str], environment: dict[str, str] | None = None):
    """Start a run in `folder`; returns the process, whose output goes to `folder`/train.log."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(QUICKSTART / "train.sh"), folder.name, *overrides_for_tests(folder.name, folder), *overrides]
    with open(folder / "train.log", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={
                **environment_for_tests(task, folder),
                "SAGC_COMMAND": shlex.join(command),
                **(environment or {}),
            },
        )


def finish(process: subprocess.Popen, folder: Path, timeout: float = TIMEOUT) -> TrainingRun:
    """Wait for a run; one that takes too long is ended, processes and all."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        end(process)
    probe = folder / "probe.jsonl"
    return TrainingRun(
        folder=folder,
        returncode=process.returncode if process.returncode is not None else -1,
        log=(folder / "train.log").read_text(errors="replace"),
        probes=[json.loads(line) for line in probe.read_text().splitlines()] if probe.exists() else [],
    )


def end(process: subprocess.Popen) -> None:
    """End a run: first as Ctrl-C would, so that Ray takes its cluster down, then for good."""
    for sign, patience in ((signal.SIGINT, 15), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def wait_for(folder: Path, text: str, timeout: float = TIMEOUT) -> None:
    """Wait until the run's log holds `text`."""
    log, deadline = folder / "train.log", time.monotonic() + timeout
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, f"{text!r} has not appeared in {log}"
        time.sleep(0.2)


def ray_processes(title: str, below: int) -> list[psutil.Process]:
    """This machine's processes whose title holds `title` and that were started after the moment `below` (Unix time)."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        if title in " ".join(process.info["cmdline"] or []) and process.info["create_time"] >= below:
            found.append(process)
    return found
