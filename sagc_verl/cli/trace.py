"""`sagc-verl trace`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sagc_verl.cli import steps as step_range


def trace(
    run: Annotated[str, typer.Argument(help="A run's directory.", metavar="RUN")],
    out: Annotated[str, typer.Option(help="The JSON file to write; - for stdout.", metavar="FILE")],
    step: Annotated[
        int | None, typer.Option(help="The step to show; the last one if neither this nor --steps is given.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help=f"Several steps. {step_range.HELP}")] = None,
) -> None:
    """A step's rollouts on a timeline: one lane per engine slot, groups coloured, stragglers marked.

    Open the file at ui.perfetto.dev (nothing is uploaded) or chrome://tracing.
    Search there for "straggler" to go from one straggler to the next.

    \b
    Examples:
      sagc-verl trace outputs/my_run --step 12 --out step12.json
      sagc-verl trace outputs/my_run --steps 10:14 --out steps.json
      sagc-verl trace outputs/my_run --out - | gzip > last_step.json.gz
    """
    import json

    from sagc_verl.cli.errors import UserError
    from sagc_verl.report.output import STDOUT, binary_output
    from sagc_verl.report.source import open_run
    from sagc_verl.report.trace import build_trace

    if step is not None and steps is not None:
        raise UserError("give --step or --steps, not both")
    found = open_run(run)
    first, last = (step, step) if step is not None else step_range.parse_steps(steps)
    if step is None and steps is None:
        there = found.table("steps", columns=["step"])["step"]
        first = last = int(there.max()) if len(there) else None
    built = build_trace(found, first, last)
    with binary_output(out) as file:
        file.write(json.dumps(built.as_dict(found.name), separators=(",", ":"), allow_nan=False).encode())
    if built.untimed:
        print(f"{built.untimed} rollouts left out: their start or end is not on record", file=sys.stderr)
    if out != STDOUT:
        print(f"{out}: {built.rollouts:,} rollouts of {len(built.steps)} steps", file=sys.stderr)
