"""`sagc-verl export`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sagc_verl.cli import steps as step_range


def export(
    run: Annotated[str, typer.Argument(help="A run's directory, or a directory of runs.", metavar="RUN")],
    out: Annotated[str, typer.Option(help="The file to write; - for stdout.", metavar="FILE")],
    table: Annotated[str, typer.Option(help="steps, groups or rollouts.")] = "steps",
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="csv, parquet or jsonl; by default what the suffix says, csv on stdout."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns, in this order: step,n,wall_s")] = None,
    steps: Annotated[str | None, typer.Option(help=step_range.HELP)] = None,
) -> None:
    """A table of a run as csv, parquet or json lines. Of a directory of runs: all of them, with a column `run`.

    \b
    Examples:
      sagc-verl export outputs/my_run --table steps --out steps.csv
      sagc-verl export outputs/my_run --table rollouts --steps 10:200 --out rollouts.parquet
      sagc-verl export outputs/my_run --columns step,n,straggler_rate --out - | column -s, -t
      sagc-verl export outputs/my_run --table groups --format jsonl --out - | jq 'select(.straggler)'
    """
    from sagc_verl.report.export import export_table, pick_format
    from sagc_verl.report.source import open_runs

    wanted = [name.strip() for name in columns.split(",") if name.strip()] if columns else None
    chosen = pick_format(out, file_format)
    rows = export_table(open_runs(run), table, out, chosen, wanted, step_range.parse_steps(steps))
    if out != "-":
        print(f"{out}: {rows:,} rows", file=sys.stderr)
