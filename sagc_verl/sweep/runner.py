"""A sweep as a whole: what is left to do, and doing it here or handing it to a cluster."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sagc_verl.sweep.launch import LOG_FILE, last_lines, run_script
from sagc_verl.sweep.plan import PlannedRun, planned_runs, setting_labels, waiting_settings
from sagc_verl.sweep.spec import Setting, SweepError, SweepSpec, spec_data
from sagc_verl.sweep.state import (
    RunState,
    ended,
    mean_size,
    read_means,
    read_state,
    run_lock,
    started,
    write_means,
    write_state,
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """Where a sweep stands.

    Attributes:
        runs: every run that can be named now, with its state, in the order of running.
        waiting: settings whose sizes are not known yet.
        means: mean group size per setting that another one is around, as far as known.
    """

    runs: list[tuple[PlannedRun, RunState]]
    waiting: list[Setting]
    means: dict[str, float]

    def count(self, status: str) -> int:
        """How many runs have this status."""
        return sum(state.status == status for _, state in self.runs)

    def complete(self) -> bool:
        """Whether every run of the sweep has finished."""
        return not self.waiting and self.count("finished") == len(self.runs)


def progress_of(spec: SweepSpec) -> Progress:
    """Where the sweep stands, from the state files and records under its folder.

    Raises:
        SweepError: two runs of one name, a damaged state file, or finished runs without the records that a setting
            `around` them needs.
    """
    means = read_means(Path(spec.out))
    states = {run.name: read_state(run) for run in planned_runs(spec, means)}
    for name in {str(setting.around) for setting in waiting_settings(spec, means)}:
        awaited = [run for run in planned_runs(spec, means) if run.setting in _labels(spec, name)]
        if all(states[run.name].status == "finished" for run in awaited):
            means[name] = mean_size(awaited)
    runs = [(run, states.get(run.name) or read_state(run)) for run in planned_runs(spec, means)]
    return Progress(runs, waiting_settings(spec, means), means)


def _labels(spec: SweepSpec, setting_name: str) -> list[str]:
    return next(setting_labels(setting) for setting in spec.settings if setting.name == setting_name)


def changed_runs(progress: Progress) -> list[PlannedRun]:
    """Finished runs that were trained by another command than the sweep now has for them."""
    return [
        run
        for run, state in progress.runs
        if state.status == "finished" and state.attempts and state.command not in ("", run.shell_line())
    ]


def save_spec(spec: SweepSpec) -> Path:
    """Writes the sweep as understood into its folder: what jobs on a cluster read, and what a later reader wants.

    The file is named after its content: a job in the queue finds the sweep that it was submitted with.
    """
    import yaml

    text = yaml.safe_dump(spec_data(spec), sort_keys=False)
    path = Path(spec.out) / f"sweep_{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
    return path


def to_run(progress: Progress, only: Collection[str], retry: bool) -> list[tuple[PlannedRun, RunState]]:
    """The runs that are left: pending and interrupted ones; with `retry`, or when named, failed and submitted ones too.

    Raises:
        SweepError: `only` names a run that is not there.
    """
    names = {run.name for run, _ in progress.runs}
    for name in only:
        if name not in names:
            raise SweepError(f"--only {name}: no such run; there are {', '.join(sorted(names))}")
    statuses = {"pending", "interrupted"}
    if retry or only:
        statuses |= {"failed", "submitted"}
    return [(run, state) for run, state in progress.runs if state.status in statuses and (not only or run.name in only)]


def run_here(spec: SweepSpec, only: Collection[str], retry: bool, say: Say, every: float = 60.0) -> Progress:
    """Runs what is left, one after another, then what that makes possible (sizes around a mean).

    A failing run does not stop the others. Interrupting ends the child and leaves a state that a later call resumes.

    Raises:
        KeyboardInterrupt: after the run in hand has been ended and marked as interrupted.
    """
    done: set[str] = set()
    while True:
        progress = progress_of(spec)
        write_means(Path(spec.out), progress.means)
        left = [item for item in to_run(progress, only, retry) if item[0].name not in done]
        if not left:
            return progress
        run, state = left[0]
        done.add(run.name)
        position = 1 + next(index for index, (other, _) in enumerate(progress.runs) if other.name == run.name)
        total = f"{len(progress.runs)}{'+' if progress.waiting else ''}"
        _run_one(run, state, spec.cwd, f"[{position}/{total}] {run.name}", say, every)


def _run_one(run: PlannedRun, before: RunState, cwd: str, label: str, say: Say, every: float) -> None:
    with run_lock(run) as mine:
        if not mine:
            say(f"{label}: another process is running it, left alone")
            return
        state = started(run, before)
        write_state(run, state)
        again = "" if before.attempts == 0 else f", attempt {state.attempts}, from the last checkpoint"
        say(f"{label}: started{again}, log {run.directory / LOG_FILE}")

        def tell(seconds: float, step: int | None) -> None:
            say(f"{label}: {_duration(seconds)}" + (f", step {step}" if step is not None else ""))

        try:
            code = run_script(run, cwd, tell, every)
        except KeyboardInterrupt:
            write_state(run, ended(state, "interrupted", None))
            say(f"{label}: interrupted, call again to go on from its last checkpoint")
            raise
        except OSError as error:
            write_state(run, ended(state, "failed", None))
            say(f"{label}: could not be started: {error}")
            return
        state = ended(state, "finished" if code == 0 else "failed", code)
        write_state(run, state)
        say(f"{label}: {state.status} after {_duration(state.seconds() or 0.0)}")
        if code != 0:
            say(f"{label}: exit code {code}; the end of {run.directory / LOG_FILE}:")
            for line in last_lines(run.directory / LOG_FILE):
                say(f"    {line}")


def job_command(spec_file: Path, run: PlannedRun) -> str:
    """What a cluster job is to call for one run: no shell operators in it, so that any launcher takes it."""
    return shlex.join(["sagc-verl", "sweep", str(spec_file), "--only", run.name])


def submit(spec: SweepSpec, template: str, only: Collection[str], retry: bool, say: Say) -> Progress:
    """Hands every run that is left to a cluster: the template, filled in, is called once per run.

    Args:
        template: a shell command with {cmd} (the job's command), and maybe {name} and {dir} (the run's).

    Raises:
        SweepError: no {cmd} in the template, or the submission failed; what was submitted before stays so marked.
    """
    if "{cmd}" not in template:
        raise SweepError(
            f"--submit {template}: must hold {{cmd}}, e.g. 'sbatch --job-name {{name}} --wrap \"{{cmd}}\"'"
        )
    progress = progress_of(spec)
    spec_file = save_spec(spec)
    write_means(Path(spec.out), progress.means)
    for run, state in to_run(progress, only, retry):
        line = template.replace("{cmd}", job_command(spec_file, run))
        line = line.replace("{name}", run.name).replace("{dir}", shlex.quote(str(run.directory)))
        run.directory.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(line, shell=True, cwd=spec.cwd, capture_output=True, text=True)
        answer = " ".join((done.stdout + " " + done.stderr).split())
        if done.returncode != 0:
            raise SweepError(f"{run.name}: submitting failed with exit code {done.returncode}: {answer or line}")
        write_state(run, RunState(status="submitted", attempts=state.attempts, command=line))
        say(f"{run.name}: submitted{': ' + answer if answer else ''}")
    return progress_of(spec)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
