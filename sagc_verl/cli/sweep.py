"""`sagc-verl sweep`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sagc_verl.sweep.runner import Progress
    from sagc_verl.sweep.spec import SweepSpec

INTERRUPTED = 130


def sweep(
    spec_file: Annotated[
        str | None, typer.Argument(help="A YAML file; the options below change it, or stand in for it.", metavar="SPEC")
    ] = None,
    script: Annotated[str | None, typer.Option(help="The training script.", metavar="FILE")] = None,
    out: Annotated[str | None, typer.Option(help="The sweep's folder: one folder per run.", metavar="DIR")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated; each setting once per seed.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Add a setting; again for more.", metavar="NAME:OVERRIDE,OVERRIDE")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(help="A Hydra override for every run; again for more.", metavar="KEY=VALUE")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this run; again for more.", metavar="RUN")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Also run failed ones, and submit again what hangs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and stop.")] = False,
    print_jobs: Annotated[bool, typer.Option("--print", help="Print one command per run, for a cluster.")] = False,
    submit: Annotated[
        str | None,
        typer.Option(help="Call this once per run; {cmd} is the job's command, {name} and {dir} the run's."),
    ] = None,
    progress_seconds: Annotated[float, typer.Option(help="How often to say how far a run is.")] = 60.0,
) -> None:
    """The same training under several settings and seeds, here or on a cluster.

    Calling again goes on where it stopped: finished runs are skipped, an
    interrupted one resumes from its last checkpoint, failed ones are reported
    and run again with --retry. The records of each run land in DIR/RUN/sagc,
    so that `sagc-verl compare DIR` reads them all.

    A setting is a list of overrides. sizes=[4,8] makes it fixed group sizes,
    around=sagc the whole sizes around the mean that the setting sagc played,
    once its runs have finished.

    Exit code: 0 all runs finished (or jobs handed over), 1 some did not,
    2 a wrong request, 130 interrupted.

    \b
    Examples:
      sagc-verl sweep examples/grpo/sweep_qwen3_8b.yaml --dry-run
      sagc-verl sweep examples/grpo/sweep_qwen3_8b.yaml
      sagc-verl sweep sweep.yaml --submit 'sbatch --wrap "{cmd}"'
      sagc-verl sweep --script train.sh --out outputs/sweep --seeds 1,2,3 \\
          --setting sagc:trainer.v1.trainer_mode=sagc \\
          --setting static:sizes=[4,8,16] --setting mean:around=sagc
    """
    from sagc_verl.sweep.runner import progress_of, run_here, save_spec
    from sagc_verl.sweep.runner import submit as submit_runs

    if sum([dry_run, print_jobs, submit is not None]) > 1:
        raise ValueError("--dry-run, --print and --submit exclude each other")
    sweep_spec = _spec(spec_file, script, out, seeds, setting or [], override or [])
    chosen = only or []
    if dry_run:
        _show(sweep_spec, progress_of(sweep_spec))
    elif print_jobs:
        _print_jobs(sweep_spec, chosen, retry)
    elif submit is not None:
        _say_waiting(submit_runs(sweep_spec, submit, chosen, retry, _say))
    else:
        _on_termination_interrupt()
        save_spec(sweep_spec)
        try:
            progress = run_here(sweep_spec, chosen, retry, _say, progress_seconds)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        raise typer.Exit(_report(sweep_spec, progress, chosen))


def _spec(
    spec_file: str | None,
    script: str | None,
    out: str | None,
    seeds: str | None,
    settings: list[str],
    overrides: list[str],
) -> SweepSpec:
    from sagc_verl.sweep.spec import SweepError, parse_spec, read_spec, setting_from_flag, spec_data

    raw: dict[str, Any] = {"settings": {}, "overrides": []}
    if spec_file is not None:
        raw = spec_data(read_spec(Path(spec_file).expanduser()))
    if script is not None:
        raw["script"] = str(Path(script).expanduser().absolute())
    if out is not None:
        raw["out"] = str(Path(out).expanduser().absolute())
    if seeds is not None:
        parts = [part.strip() for part in seeds.split(",")]
        if not all(part.isdigit() for part in parts):
            raise SweepError(f"--seeds {seeds}: must be whole numbers, e.g. 1,2,3")
        raw["seeds"] = [int(part) for part in parts]
    for text in settings:
        name, body = setting_from_flag(text)
        raw["settings"][name] = body
    raw["overrides"] = [*raw["overrides"], *overrides]
    for key in ("script", "out", "settings"):
        if not raw.get(key):
            raise SweepError(f"give a SPEC file, or --script, --out and at least one --setting ({key} is missing)")
    return parse_spec(raw)


def _on_termination_interrupt() -> None:
    """A cluster's SIGTERM ends a run as Ctrl-C does, so that it can be resumed."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)  # shells start background jobs with SIGINT ignored


def _show(spec: SweepSpec, progress: Progress) -> None:
    for run, state in progress.runs:
        print(f"{run.name}  ({state.status})\n    {run.shell_line()}")
    for setting in progress.waiting:
        print(f"{setting.name}  (waits for the mean group size of {setting.around})")
    print(f"{len(progress.runs)} runs in {spec.out}, {progress.count('finished')} finished")


def _print_jobs(spec: SweepSpec, only: list[str], retry: bool) -> None:
    from sagc_verl.sweep.runner import job_command, progress_of, save_spec, to_run

    progress = progress_of(spec)
    spec_file = save_spec(spec)
    for run, _ in to_run(progress, only, retry):
        print(job_command(spec_file, run))
    _say_waiting(progress)


def _say_waiting(progress: Progress) -> None:
    for setting in progress.waiting:
        _say(f"{setting.name}: waits for the runs of {setting.around}; call again when they have finished")


def _report(spec: SweepSpec, progress: Progress, only: list[str]) -> int:
    from sagc_verl.sweep.runner import changed_runs

    wanted = [(run, state) for run, state in progress.runs if not only or run.name in only]
    unfinished = [(run, state) for run, state in wanted if state.status != "finished"]
    for run, state in unfinished:
        how = f", exit code {state.code}" if state.code is not None else ""
        hint = "; --retry runs it again" if state.status == "failed" else ""
        _say(f"{run.name}: {state.status}{how}{hint}")
    for run in changed_runs(progress):
        _say(
            f"{run.name}: finished under another command than this sweep has for it; remove {run.directory} to redo it"
        )
    if not only:
        _say_waiting(progress)
    _say(f"{len(wanted) - len(unfinished)} of {len(wanted)} runs finished; look: sagc-verl compare {spec.out}")
    return 0 if not unfinished and (only or not progress.waiting) else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
