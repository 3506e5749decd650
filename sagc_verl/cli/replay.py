"""`sagc-verl replay`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def replay(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="A run's directory, a table of lengths (csv, parquet), a veRL log, or lognormal, calm, runaways, "
            "drift, shift, two_sources. Several are mixed in every batch.",
            metavar="SOURCE...",
        ),
    ],
    sizes: Annotated[str | None, typer.Option(help="Sizes to choose from.", metavar="4,8,16")] = None,
    n: Annotated[
        int | None, typer.Option("--n", help="rollout.n, the largest size; for a log, what it was made with.")
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(help="What the budget limits: straggler (groups) or waiting (slot time). (default: straggler)"),
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Share of it allowed. (default: 0.2; with waiting: 0.4)")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="A straggler is this many times longer than usual. (default: 2.5)")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="feasible or drift_penalty. (default: feasible)")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other sagc key, e.g. --set gamma=0.95.", metavar="KEY=VALUE")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps. (default: those on record, else 400)")] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts per step. (default: as recorded; a table: up to 64)")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same replay to the bit.")] = 0,
    then: Annotated[
        str | None, typer.Option(help="Lengths come from this source from step --at on.", metavar="SOURCE")
    ] = None,
    at: Annotated[int, typer.Option(help="Where --then begins.")] = 200,
    ramp: Annotated[int, typer.Option(help="Over how many steps --then takes over; 0: at once.")] = 0,
    labelled: Annotated[bool, typer.Option(help="Mixed sources are told apart by the controller.")] = True,
    keyed: Annotated[bool, typer.Option(help="Prompts of a table are recognised when they come back.")] = True,
    unit: Annotated[
        str | None, typer.Option(help="tokens, characters or seconds; for a run: tokens or seconds.")
    ] = None,
    cap: Annotated[
        float | None, typer.Option(help="The largest length possible, where the source does not say.")
    ] = None,
    time_from: Annotated[
        str | None,
        typer.Option(help="Fit the step time to this run or log (or read a saved model, .json).", metavar="SOURCE"),
    ] = None,
    engines: Annotated[int | None, typer.Option(help="Rollout engines.")] = None,
    slots: Annotated[int | None, typer.Option(help="Rollouts an engine runs at once; 0: no limit.")] = None,
    baselines: Annotated[
        bool, typer.Option(help="Also an oracle, dynamic sampling, over-sampling and longest-first order.")
    ] = True,
    oversampling: Annotated[float, typer.Option(help="Rollouts started per rollout kept, in over-sampling.")] = 1.25,
    plot: Annotated[
        str | None, typer.Option(help="Also plot into this .html, .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every number, unrounded.")] = False,
) -> None:
    """What would SAGC have done? Lengths on record, played to the very controller.

    Beside it: static sizes, an oracle that knows the true risk, dynamic
    sampling, over-sampling that keeps the first finishers, and
    longest-predicted-first order. Groups of up to as many rollouts as there
    are samples of a prompt are drawn without assuming a law; larger ones say so.
    A recorded run is replayed with its own settings unless options say otherwise.

    \b
    Examples:
      sagc-verl replay outputs/my_run --sizes 4,8,16 --budget 0.2
      sagc-verl replay lengths.csv --threshold 3 --plot replay.html
      sagc-verl replay lengths.csv --constraint waiting --budget 0.5
      sagc-verl replay step400.csv --then step800.csv --at 300 --ramp 200
      sagc-verl replay train.log --n 5
      sagc-verl replay runaways:runaway=0.05 --prompts 512 --slots 256
    """
    from sagc_verl.cli.terminal import print_json, progress, stdout_console
    from sagc_verl.replay import request
    from sagc_verl.replay.comparison import Plan, compare_steps
    from sagc_verl.replay.plots import check_plot_path, plot_comparison
    from sagc_verl.replay.show import show_comparison
    from sagc_verl.replay.source import choose_step_time, open_sources

    if plot is not None:
        check_plot_path(plot)
    recorded = request.recorded_settings(sources)
    unit = unit or ("seconds" if recorded.get("signal") == "seconds" else None)
    workload = open_sources(sources, then, at=at, ramp=ramp, unit=unit, cap=cap, n=n, keyed=keyed, labelled=labelled)
    asked = request.numbers(sizes, "--sizes")
    flags = {"sizes": asked, "constraint": constraint, "budget": budget, "threshold": threshold, "rule": rule}
    wanted = {**request.settings(settings or []), **{key: value for key, value in flags.items() if value is not None}}
    raw = request.over_recorded(recorded, wanted, n)
    config, size_plan = request.controller_settings(raw, request.rollout_n(workload, n, raw.get("sizes")))
    plan = Plan(
        config,
        size_plan.sizes,
        size_plan.start,
        steps=request.steps_to_replay(workload, steps),
        prompts=prompts if prompts is not None else workload.prompts_per_step,
        seed=seed,
        baselines=baselines,
        oversampling=oversampling,
    )
    time, time_lines = choose_step_time(sources, time_from, workload.unit, engines, slots)
    comparison, iterator, total = compare_steps(workload, plan, time)
    comparison.notes += [*size_plan.messages, *request.taken_line(recorded, raw)]
    with progress("replaying") as watch:
        for done, _ in enumerate(iterator, start=1):
            if watch is not None and done % 64 == 0:
                watch(done / total)
    if plot is not None:
        plot_comparison(comparison, plot)
        print(f"plot: {plot}", file=sys.stderr)
    if as_json:
        print_json(comparison.as_dict())
    else:
        show_comparison(comparison, time_lines, stdout_console())
