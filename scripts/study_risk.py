"""How well the controller does on real lengths: calibration, budgets kept, and life without a hand-set threshold.

    python scripts/study_risk.py --data FOLDER --out docs/study.md --plots docs    everything, about 4 minutes
    python scripts/study_risk.py --data FOLDER --part calibration                  one part, on the terminal

The real tables are not part of the project; without them (--data, or SAGC_SHARED_DATA/lengths) only synthetic worlds
are played. --out keeps what the file says above its line of MARK and replaces the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sagc_verl.control import RISKS, Controller, EventModel, GroupBatch, SagcConfig, StepReport, parse_config
from sagc_verl.control.waiting import WaitingShare
from sagc_verl.replay.advice import worth
from sagc_verl.replay.costs import Blended, cost_player, spread_player
from sagc_verl.replay.players import Plain, Player, oracle_player, sagc_player, static_player
from sagc_verl.replay.source import open_sources
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.truth import true_risk
from sagc_verl.replay.whatif import Outcome, play_steps
from sagc_verl.replay.workloads import Workload

MARK = "<!-- made by scripts/study_risk.py from here on -->"
PROMPTS = 64
SEED = 1
THRESHOLD = 2.5
WORTHS = ("snr", "baseline")
TABLES = {
    "R1": "r1distill15b_aime1983_2009_n8.csv.gz",
    "RL400": "rg_llama3b_step400_aime2024_n50.csv.gz",
    "RL800": "rg_llama3b_step800_aime2024_n50.csv.gz",
}


@dataclass(frozen=True)
class World:
    """A workload and what may be played in it."""

    name: str
    workload: Workload
    sizes: tuple[int, ...]
    shift: int | None = None
    """Step of an abrupt change."""


def worlds(data: Path | None, keyed: bool = False, at: int = 500) -> dict[str, World]:
    """Abrupt changes happen at step ``at``, the slow one in the middle three fifths of twice that."""
    found: dict[str, World] = {}

    def add(name: str, sources: Sequence[str], sizes: tuple[int, ...], shift: int | None = None, **how: object) -> None:
        found[name] = World(name, open_sources(sources, keyed=keyed, **how), sizes, shift)  # type: ignore[arg-type]

    ladder16, ladder8 = (4, 6, 8, 11, 16), (3, 4, 6, 8)
    if data is not None:
        path = {name: str(data / file) for name, file in TABLES.items()}
        add("R1", [path["R1"]], ladder8)
        add("RL400", [path["RL400"]], ladder16)
        add("RL800", [path["RL800"]], ladder16)
        add("RL400 -> RL800", [path["RL400"]], ladder16, at, then=path["RL800"], at=at)
        add("RL800 -> RL400", [path["RL800"]], ladder16, at, then=path["RL400"], at=at)
        add("RL400 ~> RL800", [path["RL400"]], ladder16, None, then=path["RL800"], at=2 * at // 5, ramp=6 * at // 5)
        add("R1 + RL400, labelled", [path["R1"], path["RL400"]], ladder8)
        add("R1 + RL400, unlabelled", [path["R1"], path["RL400"]], ladder8, labelled=False)
    add("runaways", ["runaways"], ladder16)
    add("lognormal", ["lognormal:within=.5"], ladder16)
    add("shift", [f"shift:at={at},back=0"], ladder16, at)
    return found


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)]) + "\n"


# ---- calibration


class PerSize:
    """A Beta(1, 1) posterior for each size on its own, fading as the others do."""

    def __init__(self, gamma: float):
        self.gamma = gamma
        self.own: dict[int, np.ndarray] = {}

    def update(self, exceeding: np.ndarray, sizes: np.ndarray) -> None:
        for entry in self.own.values():
            entry *= self.gamma
        entry = self.own.setdefault(int(sizes[0]), np.zeros(2))
        entry += [np.count_nonzero(exceeding), np.count_nonzero(exceeding == 0)]

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        own = np.array([self.own.get(int(n), np.zeros(2)) for n in sizes])
        return (own[:, 0] + 1) / (own.sum(axis=1) + 2)


def models(gamma: float) -> dict[str, object]:
    return {
        "beta-binomial": RISKS["beta_binomial"](gamma),
        "hazard": RISKS["hazard"](gamma),
        "per size": PerSize(gamma),
        "blended": Blended(gamma),
    }


def calibration(data: Path | None) -> str:
    """Prediction against truth after 150 steps, sizes played in turn for 10 steps each."""
    rows, detail = [], []
    for keyed in (False, True):
        for world in worlds(data, keyed).values():
            if world.shift is not None or "->" in world.name or "~>" in world.name:
                continue
            wide = (3, 4, 6, 8) if "R1" in world.name else (2, 3, 4, 6, 8, 11, 16, 24, 32)
            played = (4, 8)
            config = parse_config({"threshold": THRESHOLD}, max(wide))
            _, truth = true_risk(world.workload, config, wide, 1000, PROMPTS, SEED)
            learnt = models(config.gamma)
            events = EventModel(config.threshold, config.reference, False, config.gamma)
            predictions: dict[str, list[np.ndarray]] = {name: [] for name in learnt}
            for step in range(1, 201):
                n = played[step // 10 % 2]
                found = events.observe(world.workload.draw(step, PROMPTS, n, SEED).batch())
                for name, model in learnt.items():
                    model.update(found.exceeding, found.usable)  # type: ignore[attr-defined]
                    if step > 150 and step % 10 == 0:
                        predictions[name].append(model.predict(np.array(wide)))  # type: ignore[attr-defined]
            where = {
                "played": np.isin(wide, played),
                "between, below": ~np.isin(wide, played) & (np.array(wide) < max(played)),
                "above": np.array(wide) > max(played),
            }
            for name, values in predictions.items():
                error = np.mean(values, axis=0) - truth[0]
                row: list[object] = [world.name, "yes" if keyed else "no", name]
                for mask in where.values():
                    row.append(f"{np.abs(error[mask]).mean():.3f} ({error[mask].mean():+.3f})" if mask.any() else "-")
                rows.append(row)
            if not keyed and world.name in ("RL400", "RL800", "runaways"):
                names = ("beta-binomial", "hazard", "blended")
                for i, n in enumerate(wide):
                    detail.append(
                        [world.name, n, float(truth[0, i]), *(float(np.mean(predictions[m], axis=0)[i]) for m in names)]
                    )
    heads = ("world", "prompts known", "model", "4 and 8 (played)", "between and below", "above 8")
    text = "Mean absolute error of P(straggler | n) (and mean error, + is over-cautious), sizes 4 and 8 played:\n\n"
    text += table(heads, rows)
    text += "\nThe same, size by size, prompts not known:\n\n"
    return text + table(("world", "n", "truth", "beta-binomial", "hazard", "blended"), detail)


def tracking(data: Path | None) -> str:
    """Error of the predicted risk at the size played and twice that, after an abrupt change at step 500."""
    rows = []
    for world in worlds(data).values():
        if world.shift is None:
            continue
        config = parse_config({"threshold": THRESHOLD}, 16)
        wide = (4, 8, 16)
        breaks, truth = true_risk(world.workload, config, wide, 1000, PROMPTS, SEED)
        learnt = models(config.gamma)
        events = EventModel(config.threshold, config.reference, False, config.gamma)
        at = {world.shift + lag: lag for lag in (-1, 10, 30, 60, 120)}
        errors: dict[str, list[object]] = {name: [] for name in learnt}
        for step in range(300, world.shift + 121):
            found = events.observe(world.workload.draw(step, PROMPTS, 8, SEED).batch())
            for name, model in learnt.items():
                model.update(found.exceeding, found.usable)  # type: ignore[attr-defined]
                if step in at:
                    spell = int(np.searchsorted(breaks, step, side="right")) - 1
                    error = model.predict(np.array(wide)) - truth[spell]  # type: ignore[attr-defined]
                    errors[name].append(" ".join(f"{value:+.3f}" for value in error))
        rows += [[world.name, name, *values] for name, values in errors.items() if name != "per size"]
    heads = ("world", "model", "before", "10 steps after", "30", "60", "120")
    return "Error of the predicted risk at n = 4, 8 and 16, only 8 played, around the change:\n\n" + table(heads, rows)


def memory(data: Path | None) -> str:
    """How much a rate depends on the first groups of prompts that come back at every step."""
    rows = []
    for keyed in (False, True):
        for name, world in worlds(data, keyed).items():
            if name not in ("RL400", "RL800", "R1"):
                continue
            for n in (4, 8):
                rates = []
                for seed in range(1, 7):
                    events = EventModel(THRESHOLD, "shrunk", False, 0.98)
                    found = [
                        events.observe(world.workload.draw(s, PROMPTS, n, seed).batch()).rate for s in range(1, 121)
                    ]
                    rates.append(float(np.mean(found[60:])))
                rows.append([name, "yes" if keyed else "no", n, float(np.mean(rates)), f"{np.std(rates):.4f}"])
    text = "Straggler rate of steps 61 to 120 over 6 seeds (pure chance alone gives a spread of .003 to .008):\n\n"
    return text + table(("world", "prompts known", "n", "mean rate", "spread over seeds"), rows)


# ---- budgets


class Aimd(Controller):
    """Additive increase, multiplicative decrease: a step up the list after 10 steps within the budget, half of n after
    10 over it."""

    WINDOW = 10

    def __init__(self, config: SagcConfig, sizes: Sequence[int]):
        super().__init__(replace(config, policy="static"), sizes)
        self._rates: list[float] = []

    def observe(self, batch: GroupBatch | None) -> StepReport:
        played = self.size
        report = super().observe(batch)
        self._rates.append(report.straggler_rate)
        if len(self._rates) == self.WINDOW:
            here = self.sizes.index(self.size)
            if np.mean(self._rates) > self.config.budget:
                below = [size for size in self.sizes if size <= self.size / 2]
                self.size = below[-1] if below else self.sizes[0]
            else:
                self.size = self.sizes[min(here + 1, len(self.sizes) - 1)]
            self._rates = []
        return replace(report, size=played, next_size=self.size)


class Watched(Outcome):
    """An outcome that keeps the cost of every step: a study is short."""

    def __init__(self, player: Player):
        super().__init__(player.name, player.kind, player.controller.config.budget)
        self.rates: list[float] = []
        self.played: list[int] = []

    def take(self, report: StepReport, *rest: object) -> None:
        self.rates.append(report.cost)
        self.played.append(report.size)
        super().take(report, *rest)  # type: ignore[arg-type]


def watch(world: World, player: Player, steps: int, yardstick: EventModel | None = None) -> Watched:
    outcome = Watched(player)
    for _ in play_steps(
        world.workload, player, StepTime(), outcome, steps=steps, prompts=PROMPTS, seed=SEED, yardstick=yardstick
    ):
        pass
    return outcome


def recovery(outcome: Watched, shift: int | None, budget: float) -> str:
    """Steps after the change until the mean rate of 20 steps is within the budget (+.02)."""
    if shift is None:
        return ""
    rates = np.array(outcome.rates[shift - 1 :])
    means = np.convolve(rates, np.ones(20) / 20, mode="valid")
    fine = np.flatnonzero(means <= budget + 0.02)
    return str(int(fine[0])) if fine.size else "never"


def budgets(data: Path | None, every: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5)) -> str:
    """Worlds and budgets where there is something to decide: n_max is not always fine, n_min is not always too much."""
    rows, steps = [], 1000
    summary: dict[str, list[float]] = {}
    for world in worlds(data).values():
        base = parse_config({"threshold": THRESHOLD}, max(world.sizes))
        first, risk = true_risk(world.workload, base, world.sizes, steps, PROMPTS, SEED, groups=1024)
        mean_risk = np.diff([*first, steps + 1]) @ risk / steps
        static: dict[int, Watched] = {}
        for budget in every:
            if risk[:, -1].max() <= budget or risk[:, 0].min() > budget:
                continue
            feasible = bool(risk[:, 0].max() <= budget)
            config = replace(base, budget=budget)
            players: list[Player] = [
                sagc_player(config, world.sizes, name="feasible"),
                sagc_player(replace(config, rule="drift_penalty"), world.sizes, name="drift_penalty"),
                Player("AIMD", "sagc", Aimd(config, world.sizes), Plain()),
                oracle_player(config, world.sizes, None, first, risk),
            ]
            outcomes = [watch(world, player, steps) for player in players]
            oracle = outcomes[-1]
            fits = [n for n, mean in zip(world.sizes, mean_risk, strict=True) if mean <= budget]
            n = fits[-1] if fits else world.sizes[0]
            if n not in static:
                static[n] = watch(world, static_player(base, n), steps)
            for outcome in [*outcomes, static[n]]:
                hindsight = outcome is static[n]
                excess = max(0.0, float(np.cumsum(np.array(outcome.rates) - budget).max()))
                share, moves = outcome.mean_n / oracle.mean_n, outcome.moves / steps * 100
                mark = " *" if outcome.rate > budget + 0.01 else ""
                rows.append(
                    [
                        world.name,
                        f"{budget:g}" + ("" if feasible else " (infeasible at times)"),
                        f"static {n}, best in hindsight" if hindsight else outcome.name,
                        f"{outcome.rate:.3f}{mark}",
                        f"{excess:.1f}",
                        f"{outcome.mean_n:.1f}",
                        f"{share:.2f}",
                        f"{moves:.1f}",
                        recovery(outcome, world.shift, budget),
                    ]
                )
                if feasible:
                    kind = "best static in hindsight" if hindsight else outcome.name
                    summary.setdefault(kind, []).append(0)
                    over = float(outcome.rate > budget + 0.01)
                    for key, value in (("over", over), ("excess", excess), ("share", share), ("moves", moves)):
                        summary.setdefault(f"{kind}/{key}", []).append(value)
    kinds = [name for name in summary if "/" not in name]
    short = [
        [
            kind,
            len(summary[kind]),
            int(sum(summary[f"{kind}/over"])),
            f"{np.mean(summary[f'{kind}/excess']):.2f}",
            f"{np.max(summary[f'{kind}/excess']):.1f}",
            f"{np.mean(summary[f'{kind}/share']):.3f}",
            f"{np.mean(summary[f'{kind}/moves']):.1f}",
        ]
        for kind in kinds
    ]
    heads = (
        "player",
        "worlds x budgets",
        "over budget by .01",
        "mean of largest excess",
        "its maximum",
        "n, of the oracle's",
        "moves per 100 steps",
    )
    text = "Where some size is within the budget at every time, 1,000 steps each:\n\n" + table(heads, short)
    text += (
        "\nEach world (* over the budget by more than .01; excess in steps; recovery: steps from the change until 20 "
    )
    text += "steps in a row keep the budget on average):\n\n"
    heads = (
        "world",
        "budget",
        "player",
        "rate",
        "largest excess",
        "mean n",
        "n, of the oracle's",
        "moves per 100",
        "recovery",
    )
    return text + table(heads, rows)


# ---- without a threshold


def thresholds(data: Path | None) -> str:
    """One setting for every world: what size does it lead to, is its own budget kept, how far from the best static
    size."""
    steps = 300
    makers: dict[str, Callable[[SagcConfig, Sequence[int]], Player]] = {
        "threshold 2.5, budget .2": lambda config, sizes: sagc_player(config, sizes),
        "threshold 2.5, budget .3": lambda config, sizes: sagc_player(replace(config, budget=0.3), sizes),
        "threshold 4, budget .2": lambda config, sizes: sagc_player(replace(config, threshold=4.0), sizes),
    }
    for k in (2.5, 3.0):
        makers[f"threshold auto, k={k:g}, budget .2"] = lambda config, sizes, k=k: spread_player(k, config, sizes)
    for level in (0.3, 0.4, 0.5):
        makers[f"waiting share, budget {level:g}"] = lambda config, sizes, level=level: sagc_player(
            replace(config, constraint="waiting", budget=level), sizes
        )
    for cost, levels in (("stall", (0.2, 0.3)), ("overrun", (0.4, 0.5))):
        for level in levels:
            makers[f"{cost} share, budget {level:g}"] = lambda config, sizes, cost=cost, level=level: cost_player(
                cost, replace(config, budget=level), sizes
            )
    every = worlds(data, at=steps // 2)
    rows: dict[str, list[object]] = {name: [] for name in makers}
    losses: dict[str, list[list[float]]] = {name: [[], []] for name in makers}
    statics: list[list[object]] = []
    for world in every.values():
        base = parse_config({"threshold": THRESHOLD}, max(world.sizes))
        static = {n: watch(world, static_player(base, n), steps) for n in world.sizes}
        values = [{n: worth(outcome, max(world.sizes), u) for n, outcome in static.items()} for u in WORTHS]
        for n, outcome in static.items():
            saved = 1 - outcome.seconds_per_step / static[max(world.sizes)].seconds_per_step
            costs = [mean_cost(world, base, cost, n) for cost in ("stall", "overrun")]
            relative = [f"{value[n] / max(value.values()) - 1:+.1%}" for value in values]
            shares = [outcome.rate, outcome.mean("waiting"), *costs]
            statics.append([world.name, n, *shares, f"{saved:.1%}", *relative])
        for name, make in makers.items():
            outcome = watch(world, make(base, world.sizes), steps)
            over = " *" if outcome.cost > outcome.budget + 0.01 else ""
            rows[name].append(f"{outcome.mean_n:.1f}{over}")
            for i, utility in enumerate(WORTHS):
                losses[name][i].append(1 - worth(outcome, max(world.sizes), utility) / max(values[i].values()))
    text = "Mean n that one setting leads to (* its own budget is not kept). Loss: worth of groups per second against "
    text += "the best static size of each world, mean and largest over the worlds, for two worths of a group, "
    text += "(n-1)/(n+3) and 1-1/n; default step time:\n\n"
    shown = [
        [name, *values, *(f"{np.mean(part):.1%}, {np.max(part):.1%}" for part in losses[name])]
        for name, values in rows.items()
    ]
    text += table(("setting", *every, "loss, (n-1)/(n+3)", "loss, 1-1/n"), shown)
    text += (
        "\nWhat the costs are at each static size (stall and overrun: of the first 40 steps; stall falls as n grows: "
    )
    text += "smaller groups cannot keep it):\n\n"
    heads = (
        "world",
        "n",
        "straggler rate",
        "waiting share",
        "stall share",
        "overrun share",
        "step time saved",
        "(n-1)/(n+3) per s",
        "1-1/n per s",
    )
    return text + table(heads, statics)


def mean_cost(world: World, base: SagcConfig, cost: str, n: int) -> float:
    """Mean of a cost at a static size."""
    player = cost_player(cost, replace(base, policy="static"), [n])
    return float(np.mean(watch(world, player, 40).rates[10:]))


# ---- the waiting share


def waiting(data: Path | None, every: Sequence[float] = (0.3, 0.4, 0.5)) -> str:
    """Is it foreseen, and is its budget kept?"""
    errors, kept, steps = [], [], 600
    for world in worlds(data, at=steps // 2).values():
        base = replace(parse_config({"constraint": "waiting"}, max(world.sizes)), budget=0.4)
        first, truth = true_risk(world.workload, base, world.sizes, steps, PROMPTS, SEED, groups=1024)
        if len(truth) == 1:
            events = EventModel(base.threshold, base.reference, False, base.gamma)
            model, found = WaitingShare(base.gamma), []
            for step in range(1, 151):
                batch = world.workload.draw(step, PROMPTS, (4, 8)[step // 10 % 2], SEED).batch()
                model.learn(batch, events.observe(batch))
                if step > 100 and step % 10 == 0:
                    found.append(model.predict(np.array(world.sizes)))
            predicted = np.mean(found, axis=0)
            errors += [
                [world.name, n, float(value), float(told), f"{told - value:+.3f}"]
                for n, value, told in zip(world.sizes, truth[0], predicted, strict=True)
            ]
        for budget in every:
            if truth[:, -1].max() <= budget or truth[:, 0].max() > budget:
                continue
            config = replace(base, budget=budget)
            players = [
                sagc_player(config, world.sizes, name="feasible"),
                sagc_player(replace(config, rule="drift_penalty"), world.sizes, name="drift_penalty"),
                oracle_player(config, world.sizes, None, first, truth),
            ]
            outcomes = [watch(world, player, steps) for player in players]
            for outcome in outcomes:
                mark = " *" if outcome.cost > budget + 0.01 else ""
                numbers = [f"{outcome.cost:.3f}{mark}", f"{outcome.largest_excess:.1f}", f"{outcome.mean_n:.1f}"]
                numbers += [f"{outcome.mean_n / outcomes[-1].mean_n:.2f}", f"{100 * outcome.moves / steps:.1f}"]
                kept.append([world.name, f"{budget:g}", outcome.name, *numbers])
    text = "Mean waiting share of groups of each size, and its prediction with sizes 4 and 8 played:\n\n"
    text += table(("world", "n", "truth", "predicted", "error"), errors)
    text += (
        "\nWhere some size is within the budget at every time and not all are, 600 steps each (* over the budget by "
    )
    text += "more than .01; excess in steps):\n\n"
    heads = (
        "world",
        "budget",
        "player",
        "waiting share",
        "largest excess",
        "mean n",
        "n, of the oracle's",
        "moves per 100",
    )
    return text + table(heads, kept)


# ---- output

PARTS: dict[str, tuple[str, Callable[[Path | None], str]]] = {
    "calibration": ("Is P(straggler | n) right?", calibration),
    "tracking": ("Does it follow a change?", tracking),
    "memory": ("Does a remembered reference settle?", memory),
    "budgets": ("Is the budget kept?", budgets),
    "thresholds": ("Without a hand-set threshold", thresholds),
    "waiting": ("Is a budget for waiting kept?", waiting),
}


def plot_budgets(data: Path | None, folder: Path) -> list[str]:
    """Sizes and running rates through a shift, for both rules, AIMD and the oracle. Returns file names."""
    from matplotlib.figure import Figure

    every = worlds(data)
    made = []
    for name in ("RL800 -> RL400", "shift"):
        if name not in every:
            continue
        world, steps, budget = every[name], 1000, 0.3
        config = parse_config({"threshold": THRESHOLD, "budget": budget}, max(world.sizes))
        first, risk = true_risk(world.workload, config, world.sizes, steps, PROMPTS, SEED, groups=2048)
        players = [
            sagc_player(config, world.sizes, name="feasible"),
            sagc_player(replace(config, rule="drift_penalty"), world.sizes, name="drift_penalty"),
            Player("AIMD", "sagc", Aimd(config, world.sizes), Plain()),
            oracle_player(config, world.sizes, None, first, risk),
        ]
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for player in players:
            outcome = watch(world, player, steps)
            upper.plot(np.convolve(outcome.played, np.ones(10) / 10, mode="valid"), label=player.name, linewidth=1)
            lower.plot(np.cumsum(outcome.rates) / np.arange(1, steps + 1), label=player.name, linewidth=1)
        lower.axhline(budget, linestyle="--", color="gray", label="budget")
        upper.set_ylabel("group size (10-step mean)")
        lower.set_ylabel("straggler rate so far")
        lower.set_xlabel("step")
        upper.legend(fontsize=8)
        figure.suptitle(f"{name}, threshold {THRESHOLD}, budget {budget}")
        file = "study_" + "".join(c if c.isalnum() else "_" for c in name).replace("____", "_") + ".png"
        figure.savefig(folder / file, dpi=100, metadata={"Software": None})
        made.append(file)
    return made


def data_folder(asked: str | None) -> Path | None:
    if asked is not None:
        folder = Path(asked)
    elif "SAGC_SHARED_DATA" in os.environ:
        folder = Path(os.environ["SAGC_SHARED_DATA"]) / "lengths"
    else:
        folder = Path(__file__).resolve().parents[2] / "shared" / "data" / "lengths"
    missing = [file for file in TABLES.values() if not (folder / file).is_file()]
    if missing:
        print(f"study: no {', '.join(missing)} in {folder}: synthetic worlds only", file=sys.stderr)
        return None
    return folder


def write_parts(path: Path, texts: dict[str, str]) -> None:
    """Replace these parts below MARK; other parts and everything above stay."""
    old = path.read_text(encoding="utf-8") if path.is_file() else "# What the study shows\n\n"
    above, _, below = old.partition(MARK)
    kept = {}
    for block in below.split("\n## ")[1:]:
        name = next((name for name, (title, _) in PARTS.items() if block.startswith(title)), None)
        if name is not None:
            kept[name] = "## " + block
    kept.update(texts)
    body = "\n\n".join(kept[name].strip() for name in PARTS if name in kept)
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(f"{above}{MARK}\n\n{body}\n", encoding="utf-8")
    os.replace(aside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the three length tables")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part (may be given more than once)")
    parser.add_argument("--out", help="write the tables into this Markdown file")
    parser.add_argument("--plots", help="folder for the plots")
    arguments = parser.parse_args()
    data = data_folder(arguments.data)
    texts: dict[str, str] = {}
    for name in arguments.part or PARTS:
        started = time.perf_counter()
        title, run = PARTS[name]
        text = f"## {title}\n\n`python scripts/study_risk.py --part {name}`\n\n{run(data)}"
        print(text)
        print(f"study: {name} took {time.perf_counter() - started:.0f} s", file=sys.stderr)
        texts[name] = text
    if arguments.out:
        write_parts(Path(arguments.out), texts)
    if arguments.plots:
        for file in plot_budgets(data, Path(arguments.plots)):
            print(f"study: plot {file}", file=sys.stderr)


if __name__ == "__main__":
    main()
