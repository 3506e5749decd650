"""Which constraint, threshold, budget and sizes suit a workload: a small grid, its front, and one recommendation.

Thresholds define different events, so settings are compared by one yardstick: the straggler rate at threshold 2.5. A
setting is on the front when no other makes at least as many rollouts, at no higher a rate, in no longer a step.

Recommended is, of the settings whose own budget is kept, the one with the largest worth of groups per second
(``advice.worth``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sagc_verl.control import CONSTRAINTS, EventModel, SagcConfig, ladder
from sagc_verl.replay.advice import LITTLE, TOLERANCE, keeps_budget, worth
from sagc_verl.replay.players import Player, sagc_player, static_player
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.whatif import Outcome, play_steps
from sagc_verl.replay.workloads import Workload

THRESHOLDS = (1.5, 2.0, 2.5, 3.0, 4.0)
BUDGETS = (0.05, 0.1, 0.2, 0.3)
WAITING_BUDGETS = (0.3, 0.4, 0.5)
YARDSTICK = 2.5
"""The threshold at which all settings are judged alike."""


@dataclass
class Candidate:
    """One setting and what became of it; a static size has no budget or list, the waiting share no threshold."""

    outcome: Outcome
    worth: float
    constraint: str = "straggler"
    threshold: float | None = None
    budget: float | None = None
    sizes: tuple[int, ...] = ()
    on_front: bool = False

    @property
    def rate(self) -> float:
        """Straggler rate by the yardstick."""
        return self.outcome.mean("yardstick")

    @property
    def is_static(self) -> bool:
        return not self.sizes

    @property
    def name(self) -> str:
        if self.is_static:
            return self.outcome.name
        what = "waiting" if self.threshold is None else f"threshold {self.threshold:g}"
        return f"{what}, budget {self.budget:g}"

    def line(self, rollout_n: int) -> str:
        """What to paste into a training script."""
        if self.is_static:
            return f"actor_rollout_ref.rollout.n={self.outcome.mean_n:.0f}"
        sizes = ",".join(map(str, self.sizes))
        what = f"constraint={self.constraint}" if self.threshold is None else f"threshold={self.threshold:g}"
        return (
            f"trainer.v1.trainer_mode=sagc actor_rollout_ref.rollout.n={rollout_n} '+sagc.sizes=[{sizes}]' "
            f"+sagc.{what} +sagc.budget={self.budget:g}"
        )


@dataclass
class Tuning:
    """The grid, played."""

    rollout_n: int
    candidates: list[Candidate] = field(default_factory=list)
    recommended: Candidate | None = None
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def front(self) -> list[Candidate]:
        """Settings on the front that keep their own budget, one of each kind, static sizes among them."""
        return _thinned([candidate for candidate in self.candidates if candidate.on_front])


def size_lists(rollout_n: int, n_min: int) -> list[tuple[int, ...]]:
    """Lists to try: the default ladder, and its upper part in finer steps."""
    lists = [ladder(n_min, rollout_n)]
    upper = tuple(sorted({round(rollout_n * part) for part in (0.5, 0.625, 0.75, 0.875, 1.0)}))
    if upper[0] >= max(3, n_min) and len(upper) > 2 and upper != lists[0]:
        lists.append(upper)
    return lists


def tune_steps(
    workload: Workload,
    config: SagcConfig,
    time: StepTime,
    *,
    rollout_n: int,
    thresholds: Sequence[float],
    budgets: Sequence[float],
    lists: Sequence[tuple[int, ...]],
    steps: int,
    prompts: int,
    seed: int,
    waiting_budgets: Sequence[float] = (),
    utility: str = "snr",
) -> tuple[Tuning, Iterator[None], int]:
    """A tuning to be filled by running the iterator, which yields after every step; and how often it does.

    Tried are all static sizes, thresholds x budgets x lists, and waiting_budgets x lists with ``constraint=waiting``.
    """
    tuning = Tuning(rollout_n)
    statics = sorted({size for sizes in lists for size in sizes} | {rollout_n}, reverse=True)
    straggler = replace(config, constraint="straggler")
    settings: list[tuple[SagcConfig, tuple[int, ...], float | None]] = [
        (replace(straggler, threshold=threshold, budget=budget, sizes=sizes), sizes, threshold)
        for threshold in thresholds
        for budget in budgets
        for sizes in lists
    ]
    settings += [
        (replace(config, constraint="waiting", budget=budget, sizes=sizes), sizes, None)
        for budget in waiting_budgets
        for sizes in lists
    ]

    def worth_of(outcome: Outcome) -> float:
        return worth(outcome, rollout_n, utility, config.utility_rho)

    def play_one(player: Player) -> Generator[None, None, Outcome]:
        judge = EventModel(YARDSTICK, config.reference, config.count_truncated, config.gamma)
        outcome = Outcome.of(player)
        yield from play_steps(workload, player, time, outcome, steps=steps, prompts=prompts, seed=seed, yardstick=judge)
        return outcome

    def run() -> Iterator[None]:
        for n in statics:
            outcome = yield from play_one(static_player(config, n))
            tuning.candidates.append(Candidate(outcome, worth_of(outcome)))
        for tried, sizes, threshold in settings:
            outcome = yield from play_one(sagc_player(tried, sizes))
            candidate = Candidate(outcome, worth_of(outcome), tried.constraint, threshold, tried.budget, sizes)
            tuning.candidates.append(candidate)
        _mark_front(tuning.candidates)
        _recommend(tuning)

    return tuning, run(), (len(statics) + len(settings)) * steps


def _mark_front(candidates: list[Candidate]) -> None:
    def marks(candidate: Candidate) -> tuple[float, float, float]:
        outcome = candidate.outcome
        return -outcome.rollouts_per_step, candidate.rate, outcome.seconds_per_step

    for one in candidates:
        mine = marks(one)
        one.on_front = not any(
            all(a <= b for a, b in zip(marks(other), mine, strict=True)) and marks(other) != mine
            for other in candidates
        )


def _thinned(candidates: list[Candidate]) -> list[Candidate]:
    """Of settings that came out alike, the nearest to the defaults; none that is over its own budget."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=_from_default):
        mine = candidate.outcome
        if not candidate.is_static and not keeps_budget(mine):
            continue
        alike = any(
            other.is_static == candidate.is_static
            and abs(other.outcome.rollouts_per_step / mine.rollouts_per_step - 1) < 0.03
            and abs(other.outcome.seconds_per_step / mine.seconds_per_step - 1) < 0.015
            and abs(other.rate - candidate.rate) < TOLERANCE
            for other in kept
        )
        if not alike:
            kept.append(candidate)
    return kept


def _from_default(candidate: Candidate) -> tuple[bool, float, float, int]:
    """The less, the nearer to a controller without settings of its own."""
    usual = CONSTRAINTS[candidate.constraint].budget
    away = abs((candidate.threshold or YARDSTICK) - 2.5)
    return candidate.constraint != "straggler", away, abs((candidate.budget or 0) - usual), -len(candidate.sizes)


def _recommend(tuning: Tuning) -> None:
    n = tuning.rollout_n
    statics = [candidate for candidate in tuning.candidates if candidate.is_static]
    largest = max(statics, key=lambda candidate: candidate.outcome.mean_n)
    best_static = max(statics, key=lambda candidate: candidate.worth)
    dynamic = [candidate for candidate in tuning.candidates if not candidate.is_static]
    kept = [c for c in dynamic if keeps_budget(c.outcome) and c.outcome.infeasible <= c.outcome.steps / 10]
    if not kept:
        tuning.recommended = largest
        tuning.reasons = [
            "SAGC is not worth turning on: no setting of the grid keeps its budget on these lengths. Try larger "
            "thresholds or "
            "budgets, or smaller sizes."
        ]
        return
    # of equally good ones, the one nearest to the defaults: it has room on both sides when lengths change
    top = max(candidate.worth for candidate in kept)
    close = [candidate for candidate in kept if candidate.worth >= top * (1 - LITTLE / 4)]
    best = min(close, key=_from_default)
    gain = best.worth / largest.worth - 1
    outcome, base = best.outcome, largest.outcome
    saved = 1 - outcome.seconds_per_step / base.seconds_per_step
    fewer = 1 - outcome.rollouts_per_step / base.rollouts_per_step
    if gain < LITTLE:
        tuning.recommended = largest
        tuning.reasons = [
            f"SAGC is not worth turning on for this workload: of {len(kept)} settings that keep their budget, none "
            f"makes groups worth "
            f"{LITTLE:.0%} more per second than static {n} (best: {gain:+.1%})."
        ]
        return
    tuning.recommended = best
    tuning.reasons = [
        f"Groups worth {gain:.1%} more per second than static {n}: steps {saved:.1%} shorter, rollouts {fewer:.1%} "
        f"fewer, mean n "
        f"{outcome.mean_n:.1f}.",
        f"Its own budget is kept: {CONSTRAINTS[best.constraint].label} {outcome.cost:.3f} of {best.budget:g}. At "
        f"threshold {YARDSTICK:g}, {best.rate:.3f} of groups straggle instead of {largest.rate:.3f}.",
    ]
    near = min(statics, key=lambda candidate: abs(candidate.outcome.mean_n - outcome.mean_n))
    if best_static.worth >= best.worth * (1 - LITTLE) or near.worth >= best.worth * (1 - LITTLE):
        same = best_static if best_static.worth >= near.worth else near
        tuning.reasons.append(
            f"{same.outcome.name} would be as good on these lengths ({same.worth / largest.worth - 1:+.1%}): SAGC "
            f"pays where lengths "
            "change while you train, or where you do not know the size beforehand."
        )
    if abs(outcome.cost - (best.budget or 0)) < TOLERANCE or outcome.moves > 2:
        tuning.reasons.append(f"The budget binds: {outcome.moves} moves in {outcome.steps} steps.")


def tuning_as_dict(tuning: Tuning) -> dict[str, Any]:
    """Plain types, for JSON."""
    return {
        "rollout_n": tuning.rollout_n,
        "settings": [
            {
                "constraint": None if candidate.is_static else candidate.constraint,
                "threshold": candidate.threshold,
                "budget": candidate.budget,
                "sizes": list(candidate.sizes),
                "on_front": candidate.on_front,
                "worth_per_second": candidate.worth,
                "recommended": candidate is tuning.recommended,
                **candidate.outcome.as_dict(),
            }
            for candidate in tuning.candidates
        ],
        "line": None if tuning.recommended is None else tuning.recommended.line(tuning.rollout_n),
        "reasons": tuning.reasons,
        "notes": tuning.notes,
    }
