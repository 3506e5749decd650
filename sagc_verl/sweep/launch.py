"""Running one training script as a child: its own process group, a log file, and an orderly end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from sagc_verl.sweep.plan import PlannedRun

LOG_FILE = "train.log"
GRACE = ((signal.SIGINT, 20.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))  # what is sent, seconds until the next
POLL_SECONDS = 0.2
TAIL_BYTES = 2**20  # a step of DAPO with refills may write 100 kB

_STEP = re.compile(r"\bstep:(\d+) - ")


def run_script(run: PlannedRun, cwd: str, progress: Callable[[float, int | None], None], every: float = 60.0) -> int:
    """Runs the script to its end; output goes to the run's log, after what earlier attempts wrote.

    Args:
        progress: called every `every` seconds with the seconds passed and the last step that veRL's log shows.

    Returns:
        The exit code, negative for a signal.

    Raises:
        KeyboardInterrupt: passed on after the whole process group has been ended.
    """
    run.directory.mkdir(parents=True, exist_ok=True)
    log = run.directory / LOG_FILE
    with log.open("ab") as output:
        output.write(f"\n# {time.strftime('%Y-%m-%d %H:%M:%S')} {run.shell_line()}\n".encode())
        output.flush()
        child = _start(run, cwd, output)
        begin = time.monotonic()
        due = every
        try:
            while (code := child.poll()) is None:
                time.sleep(POLL_SECONDS)
                passed = time.monotonic() - begin
                if passed >= due:
                    due += every
                    progress(passed, last_step(log))
            return code
        finally:
            end_group(child)


def _start(run: PlannedRun, cwd: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        run.argv,
        cwd=cwd,
        env={**os.environ, **run.env},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end_group(child: subprocess.Popen[bytes], grace: tuple[tuple[signal.Signals, float], ...] = GRACE) -> None:
    """Ends whatever is left of the child's process group, gently first: Ray stops its workers on an interrupt.

    A second interrupt in the meantime ends it at once.
    """
    try:
        for what, seconds in grace:
            if not _send(child.pid, what) or _gone_within(child, seconds):
                break
    except KeyboardInterrupt:
        _send(child.pid, signal.SIGKILL)
        raise
    finally:
        child.poll()


def _gone_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        child.poll()  # a child that nobody has waited for stays in its group
        if not _send(child.pid, 0):
            return True
        time.sleep(0.05)
    return False


def _send(group: int, what: int) -> bool:
    try:
        os.killpg(group, what)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def last_step(log: Path) -> int | None:
    """The last step that veRL's console logger has written, None where there is none yet."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL_BYTES))
            found = _STEP.findall(handle.read().decode(errors="replace"))
    except OSError:
        return None
    return int(found[-1]) if found else None


def last_lines(log: Path, count: int = 15) -> list[str]:
    """The end of a log, for a run that failed."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL_BYTES))
            return handle.read().decode(errors="replace").rstrip().splitlines()[-count:]
    except OSError:
        return []
