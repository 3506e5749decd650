"""`sagc-verl compare`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Run directories, directories of runs, or steps tables from import-log.", metavar="RUN..."),
    ],
    html: Annotated[
        str | None, typer.Option(help="Also write one self-contained HTML report here.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every number with its interval.")] = False,
    right_above: Annotated[
        float, typer.Option(help="A rollout is a right answer where its reward is above this.")
    ] = 0.0,
) -> None:
    """Runs side by side: a table, what it supports, and one HTML report.

    Runs that differ in nothing but their seed become one line. Fair company
    for a SAGC run: static at its largest size and static at both whole sizes
    around its mean. The command says which of them are missing.

    \b
    Examples:
      sagc-verl compare outputs/static outputs/sagc
      sagc-verl compare static8 static5 static6 sagc --html report.html
      sagc-verl compare outputs/sweep --json > comparison.json
    """
    from sagc_verl.cli.terminal import print_json, progress, stdout_console
    from sagc_verl.report.compare import compare_runs, render_table

    with progress("reading") as watch:
        found = compare_runs(runs, right_above, watch)
    if html is not None:
        from sagc_verl.report.html import write_html

        write_html(found, html)
        print(f"report: {html}", file=sys.stderr)
    if as_json:
        print_json(found.as_dict())
    elif html != "-":
        render_table(found, stdout_console())
