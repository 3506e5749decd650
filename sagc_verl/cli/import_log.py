"""`sagc-verl import-log`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd


def import_log(
    logs: Annotated[
        list[str],
        typer.Argument(help="Log files or folders of logs of one run, oldest first; .gz too.", metavar="LOG..."),
    ],
    out: Annotated[
        str,
        typer.Option(
            help="A .parquet, .csv or .jsonl file, - for csv on stdout, or a new directory to make a run.",
            metavar="FILE|DIR",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="The run's name, where a directory is made.")] = None,
) -> None:
    """A veRL log as a steps table, so that runs made without SAGC can be read and compared.

    Reads console logs (colours, Ray prefixes, progress bars, restarts), the
    `file` logger's json lines, and folders of trainer.rollout_data_dir.
    A directory as --out becomes a run that every other command opens.

    \b
    Examples:
      sagc-verl import-log train.log --out frame.parquet
      sagc-verl import-log train.log.gz resumed.log --out outputs/old_run
      sagc-verl compare outputs/old_run outputs/sagc
    """
    from sagc_verl.records.importlog import import_log as read_log
    from sagc_verl.records.importlog import write_imported_run

    paths = [Path(log) for log in logs]
    steps = read_log(paths)
    if out != "-" and not Path(out).suffix:
        written = write_imported_run(steps, out, _rollouts(paths), name).parent
    else:
        written = out
        _write_table(steps, out)
    if out != "-":
        first, last = int(steps["step"].min()), int(steps["step"].max())
        superseded = steps.attrs.get("superseded")
        again = f", {superseded} superseded by a resume" if superseded else ""
        print(f"{written}: {len(steps):,} steps ({first} to {last}){again}, {steps.shape[1]} columns", file=sys.stderr)


def _rollouts(paths: list[Path]) -> pd.DataFrame | None:
    """The rollouts, where there are dumps of them among the logs."""
    from sagc_verl.records.errors import ImportLogError
    from sagc_verl.records.importlog import import_rollouts

    if not any(path.is_dir() or ".jsonl" in path.name for path in paths):
        return None
    try:
        return import_rollouts(paths)
    except ImportLogError:
        return None


def _write_table(steps: pd.DataFrame, out: str) -> None:
    from sagc_verl.report.export import pick_format
    from sagc_verl.report.output import binary_output

    chosen = pick_format(out, None)
    with binary_output(out) as file:
        if chosen == "parquet":
            steps.to_parquet(file)
        elif chosen == "csv":
            steps.to_csv(file, index=False)
        else:
            steps.to_json(file, orient="records", lines=True, double_precision=15)
