"""Trains the quickstart's model twice on the CPU, with a static group size and with SAGC, and compares the two.

Called by scripts/quickstart.sh, which installs what it needs. Everything is real: unmodified veRL, Ray, vLLM, FSDP.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from options import Model, parse_options
from rich.console import Console

from sagc_verl.cpu import warm, warm_python
from sagc_verl.plugin import COMMAND

HERE = Path(__file__).resolve().parent
STEP_LINE = re.compile(r"step:(\d+) - (.*)")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LONGEST_SILENCE = 300.0
"""Seconds without a line in the log after which a run is given up."""

console = Console(highlight=False)


def metrics_of(line: str) -> tuple[int, dict[str, float]] | None:
    """Step and metrics of a line of veRL's console logger, None for other lines."""
    found = STEP_LINE.search(line)
    if not found:
        return None
    metrics = {}
    for item in found.group(2).split(" - "):
        name, _, value = item.rpartition(":")
        with contextlib.suppress(ValueError):
            metrics[name] = float(value)
    return int(found.group(1)), metrics


def train(name: str, command: list[str], environment: dict[str, str], out: Path, steps: int) -> None:
    """Run one training, one line per step.

    Raises:
        SystemExit: the training failed; its last words are shown.
    """
    log = out / name / "train.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(command[0])
    shown = relative if relative[0] == "." else f"./{relative}"
    console.print(f"\n[bold]{name}[/bold]   {shown} {shlex.join(command[1:])}")
    console.print(f"         log: {os.path.relpath(log)}")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, COMMAND: shlex.join(command)},
            start_new_session=True,
        )
    try:
        with console.status("starting veRL, Ray and vLLM ...") as status, open(log, errors="replace") as lines:
            heard, rest = time.monotonic(), ""
            while True:
                ended = process.poll() is not None
                text = lines.read()
                if text:
                    heard, rest = time.monotonic(), rest + text
                    *whole, rest = rest.split("\n")
                    for line in whole:
                        if (step := metrics_of(line)) is not None:
                            status.update("training ...")
                            show(*step, steps)
                elif ended:
                    break
                elif time.monotonic() - heard > LONGEST_SILENCE:
                    stop(process)
                    fail(name, log, f"said nothing for {LONGEST_SILENCE:.0f} s and was ended")
                else:
                    time.sleep(0.2)
    except KeyboardInterrupt:
        stop(process)
        raise
    if process.returncode:
        fail(name, log, f"ended with exit code {process.returncode}")


def show(step: int, metrics: dict[str, float], steps: int) -> None:
    """One line of progress."""
    seconds = metrics.get("timing_s/step", float("nan"))
    console.print(
        f"  step {step:3d}/{steps}   n {metrics.get('sagc/size', 0):2.0f}   "
        f"stragglers {metrics.get('sagc/straggler_rate', float('nan')):4.0%} of groups   "
        f"reward {metrics.get('critic/rewards/mean', float('nan')):.2f}   {seconds:5.1f} s"
    )


def fail(name: str, log: Path, what: str) -> None:
    last = [line for line in log.read_text(errors="replace").splitlines() if "rror" in line][-5:]
    console.print("\n".join(last), style="red", markup=False)
    sys.exit(f"The {name} run {what}; see {log}.")


def stop(process: subprocess.Popen) -> None:
    """End a run the gentle way, so that Ray takes its cluster down."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


def end_all() -> None:
    """End every process that came from this one, whoever its parent is now."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them
    for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        left = psutil.Process().children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(sign)
        _, left = psutil.wait_procs(left, timeout=patience)
        if not left:
            return


def make_task(model: Model, folder: Path) -> None:
    """Make the model and its data, unless they are there."""
    command = [sys.executable, str(HERE / model.make), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{model.make} failed:\n{done.stderr}")
    console.print("  " + done.stdout.strip().splitlines()[-1])


def main() -> None:
    options = parse_options()
    model, out = options.model, options.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"--out {options.out}: {error.strerror}")

    # Orphans of a killed driver become ours, so that end_all() finds them.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)
    os.environ["VERL_PLATFORM"] = "cpu"
    threads = len(os.sched_getaffinity(0)) if model.all_cores else 1
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a dozen processes share the cores: idle threads must not spin
    foreign = os.environ.get(warm_python.SERVER)
    runs = {"static": ["+sagc.policy=static"], "sagc": list(model.sagc)}
    try:
        python = warm.start(log=out / "warm.log")
        console.print("Making a small model and its task ...")
        make_task(model, out / "task")
        environment = {**os.environ, "PYTHON": python, "TASK": str(out / "task"), "OUT": str(out)}
        common = [f"trainer.total_training_steps={options.steps}", f"data.seed={options.seed}"]
        for name, overrides in runs.items():
            train(name, [str(HERE / model.train), name, *overrides, *common], environment, out, options.steps)
    except KeyboardInterrupt:
        console.print("\nStopping ...")
        sys.exit(130)
    finally:
        end_all()
        server = os.environ.get(warm_python.SERVER)
        if server and server != foreign:  # ended, it cannot take its folder away itself
            shutil.rmtree(Path(server).parent, ignore_errors=True)
    report(out, list(runs))


def report(out: Path, names: list[str]) -> None:
    from sagc_verl.report.compare import compare_runs, render_table
    from sagc_verl.report.html import write_html

    comparison = compare_runs([out / name for name in names])
    console.print()
    render_table(comparison, console)
    write_html(comparison, out / "report.html")
    here = os.path.relpath(out)
    console.print(f"\nReport: {here}/report.html")
    console.print(f"More:   sagc-verl summary {here}/sagc")
    console.print(f"        sagc-verl trace {here}/sagc --step 5 --out step5.json   (open in ui.perfetto.dev)")


if __name__ == "__main__":
    main()
