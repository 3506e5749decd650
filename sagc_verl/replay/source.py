"""What the user named -> a workload: a run, a table of lengths, a veRL log, or a named synthetic workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.recorded import LogWorkload, is_steps_frame, read_log, read_run, run_workload
from sagc_verl.replay.steptime import StepTime, seconds_model
from sagc_verl.replay.synthetic import NAMED, is_named, named_workload
from sagc_verl.replay.tables import TABLE_ENDINGS, read_frame, table_from_frame
from sagc_verl.replay.timefit import Fit, fit_step_time
from sagc_verl.replay.workloads import Mixture, Succession, TableWorkload, Workload


def open_source(
    text: str, *, unit: str | None = None, cap: float | None = None, n: int | None = None, keyed: bool = True
) -> Workload:
    """The workload behind one SOURCE.

    Args:
        text: a run directory, a csv or parquet file, a veRL log, or the name of a synthetic workload.
        unit: tokens, characters or seconds, where the source does not say; a run's generation times with "seconds".
        cap: the largest length possible, where the source does not say.
        n: rollouts per prompt that a log was made with.
        keyed: the prompts of a table are recognised when they come back.

    Raises:
        SourceError: it is none of these, or cannot be used.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        run = read_run(path)
        if run.has_rollouts():
            return run_workload(run.run, signal="seconds" if unit == "seconds" else "tokens", cap=cap)
        return LogWorkload(run.steps(), run.run.name, n=n, cap=cap)
    if path.is_file():
        frame = read_frame(path) if path.name.endswith(TABLE_ENDINGS) else read_log(path)
        if is_steps_frame(frame):
            return LogWorkload(frame, path.name, n=n, cap=cap)
        table, stated, notes = table_from_frame(frame, path.name, unit, cap, keyed)
        return TableWorkload(path.name.partition(".")[0], table, stated, notes)
    if is_named(text):
        return named_workload(text)
    raise SourceError(f"{text}: no such file or run, nor a named workload (named: {', '.join(NAMED)})")


def open_sources(
    texts: Sequence[str],
    then: str | None = None,
    *,
    at: int = 200,
    ramp: int = 0,
    unit: str | None = None,
    cap: float | None = None,
    n: int | None = None,
    keyed: bool = True,
    labelled: bool = True,
) -> Workload:
    """Several sources are mixed in every batch; ``then`` replaces them from step ``at`` on. Raises SourceError."""
    parts = [open_source(text, unit=unit, cap=cap, n=n, keyed=keyed) for text in texts]
    if not parts:
        raise SourceError("no source: name at least one")
    workload = parts[0] if len(parts) == 1 else Mixture(parts, labelled)
    if then is not None:
        workload = Succession(workload, open_source(then, unit=unit, cap=cap, n=n, keyed=keyed), at, ramp)
    return workload


def step_time_of(text: str, engines: int = 1, slots: int = 0) -> Fit:
    """The step-time model fitted to a run's records or to an imported log. Raises SourceError."""
    path = Path(text).expanduser()
    if path.is_dir():
        run = read_run(path)
        return fit_step_time(run.steps(), run.run.name, engines, slots)
    frame = read_frame(path) if path.name.endswith(TABLE_ENDINGS) else read_log(path)
    return fit_step_time(frame, path.name, engines, slots)


def choose_step_time(
    sources: Sequence[str], time_from: str | None, unit: str, engines: int | None, slots: int | None
) -> tuple[StepTime, list[str]]:
    """The step-time model of a replay (as asked, else fitted to the source, else the defaults) and what to say of it.

    Raises:
        SourceError: a model was asked for that cannot be had.
    """
    lines: list[str] = []
    if time_from is not None and time_from.endswith(".json"):
        model = StepTime.load(time_from)
    elif time_from is not None:
        fit = step_time_of(time_from, engines or 1, slots or 0)
        lines, model = [fit.line(), *fit.notes], fit.model
    elif unit == "seconds":
        model = seconds_model()
    else:
        model = StepTime()
        for text in sources:
            try:
                fit = step_time_of(text, engines or 1, slots or 0)
            except (SourceError, OSError) as error:
                lines += [str(error)] if Path(text).expanduser().is_dir() else []
                continue
            lines, model = [fit.line(), *fit.notes], fit.model
            break
    return model.adjusted(engines=engines, slots=slots), lines
