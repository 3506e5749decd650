"""`sagc-verl summary`."""

from __future__ import annotations

from typing import Annotated

import typer


def summary(
    run: Annotated[str, typer.Argument(help="A run's directory (or its sagc/ folder).", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every number, unrounded.")] = False,
    right_above: Annotated[
        float, typer.Option(help="A rollout is a right answer where its reward is above this.")
    ] = 0.0,
) -> None:
    """One run, in the terminal: what it was, how fast, how many stragglers and why, what it learnt.

    \b
    Examples:
      sagc-verl summary outputs/my_run
      sagc-verl summary outputs/my_run --json | jq .straggler_rate
    """
    from sagc_verl.cli.terminal import print_json, progress, stdout_console
    from sagc_verl.report.measures import measure_run
    from sagc_verl.report.source import open_run
    from sagc_verl.report.summary import render_summary, summarise

    with progress("reading") as watch:
        found = summarise(measure_run(open_run(run), right_above, watch))
    if as_json:
        print_json(found.as_dict())
    else:
        render_summary(found, stdout_console())
