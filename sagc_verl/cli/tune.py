"""`sagc-verl tune`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def tune(
    sources: Annotated[
        list[str], typer.Argument(help="As in replay; several are mixed in every batch.", metavar="SOURCE...")
    ],
    n: Annotated[int | None, typer.Option("--n", help="rollout.n, the largest size.")] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            help="A list of sizes to try; may be given more than once. (default: two lists up to n)", metavar="4,8,16"
        ),
    ] = None,
    thresholds: Annotated[
        str | None, typer.Option(help="Thresholds to try. (default: 1.5,2,2.5,3,4)", metavar="2,2.5,3")
    ] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Straggler budgets to try. (default: 0.05,0.1,0.2,0.3)", metavar="0.1,0.2")
    ] = None,
    waiting: Annotated[
        str | None,
        typer.Option(
            help="Budgets to try with constraint=waiting. (default: 0.3,0.4,0.5; none where only --thresholds or "
            "--budgets are given)",
            metavar="0.3,0.4",
        ),
    ] = None,
    utility: Annotated[str, typer.Option(help="What a group of n is worth: log, snr, mixed or baseline.")] = "snr",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other sagc key, e.g. --set gamma=0.95.", metavar="KEY=VALUE")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps. (default: those on record, else 400)")] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts per step. (default: as recorded; a table: up to 64)")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    then: Annotated[
        str | None, typer.Option(help="Lengths come from this source from step --at on.", metavar="SOURCE")
    ] = None,
    at: Annotated[int, typer.Option(help="Where --then begins.")] = 200,
    ramp: Annotated[int, typer.Option(help="Over how many steps --then takes over; 0: at once.")] = 0,
    unit: Annotated[str | None, typer.Option(help="tokens, characters or seconds.")] = None,
    cap: Annotated[
        float | None, typer.Option(help="The largest length possible, where the source does not say.")
    ] = None,
    time_from: Annotated[
        str | None,
        typer.Option(help="Fit the step time to this run or log (or a saved model, .json).", metavar="SOURCE"),
    ] = None,
    engines: Annotated[int | None, typer.Option(help="Rollout engines.")] = None,
    slots: Annotated[int | None, typer.Option(help="Rollouts an engine runs at once; 0: no limit.")] = None,
    plot: Annotated[
        str | None, typer.Option(help="Also plot into this .html, .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every setting tried.")] = False,
) -> None:
    """Which constraint, threshold, budget and sizes suit this workload: a line to paste, and why.

    A small grid is replayed; shown is its front of rollouts per step, straggler
    rate and step time. Thresholds define different events, so all settings are
    judged by the straggler rate at one threshold, 2.5. It also says when SAGC is
    not worth turning on. The settings of a recorded run are tried beside the others,
    and those that are not tuned are kept.

    \b
    Examples:
      sagc-verl tune outputs/my_run
      sagc-verl tune lengths.csv --n 8 --thresholds 2,3 --budgets 0.1,0.2
      sagc-verl tune a.csv --then b.csv --at 200 --plot front.html
    """
    from sagc_verl.cli.terminal import print_json, progress, stdout_console
    from sagc_verl.control import UTILITIES
    from sagc_verl.replay import request
    from sagc_verl.replay.errors import SourceError
    from sagc_verl.replay.plots import check_plot_path, plot_tuning
    from sagc_verl.replay.show import show_tuning
    from sagc_verl.replay.source import choose_step_time, open_sources
    from sagc_verl.replay.tune import tune_steps, tuning_as_dict

    if plot is not None:
        check_plot_path(plot)
    if utility not in UTILITIES:
        raise SourceError(f"--utility {utility}: must be one of {', '.join(UTILITIES)}")
    recorded = request.recorded_settings(sources)
    unit = unit or ("seconds" if recorded.get("signal") == "seconds" else None)
    workload = open_sources(sources, then, at=at, ramp=ramp, unit=unit, cap=cap, n=n)
    grid = request.tuning_grid(
        workload,
        recorded,
        request.settings(settings or []),
        n=n,
        lists=[request.numbers(text, "--sizes") or [] for text in sizes or []],
        thresholds=request.numbers(thresholds, "--thresholds", float),
        budgets=request.numbers(budgets, "--budgets", float),
        waiting_budgets=request.numbers(waiting, "--waiting", float),
    )
    time, _ = choose_step_time(sources, time_from, workload.unit, engines, slots)
    tuning, iterator, total = tune_steps(
        workload,
        grid.config,
        time,
        rollout_n=grid.rollout_n,
        thresholds=grid.thresholds,
        budgets=grid.budgets,
        waiting_budgets=grid.waiting_budgets,
        lists=grid.lists,
        steps=request.steps_to_replay(workload, steps),
        prompts=prompts if prompts is not None else workload.prompts_per_step,
        seed=seed,
        utility=utility,
    )
    tuning.notes += request.taken_line(recorded, grid.known)
    with progress("tuning") as watch:
        for done, _ in enumerate(iterator, start=1):
            if watch is not None and done % 64 == 0:
                watch(done / total)
    if plot is not None:
        plot_tuning(tuning, plot)
        print(f"plot: {plot}", file=sys.stderr)
    if as_json:
        print_json(tuning_as_dict(tuning))
    else:
        show_tuning(tuning, workload.name, stdout_console())
