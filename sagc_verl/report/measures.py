"""One run reduced to one row per step: what every report is drawn from.

Rollouts and groups are read in batches and added up, so memory grows with the number of steps, never with rollouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sagc_verl.report.evals import Score, read_scores
from sagc_verl.report.settings import Settings, read_settings
from sagc_verl.report.source import batches
from sagc_verl.report.text import visible

if TYPE_CHECKING:
    import pandas as pd

    from sagc_verl.records.reader import Run

# The phases of a veRL step that follow one another; other timing_s/* entries are parts of these.
PHASES = (
    "gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights",
    "save_checkpoint", "testing",
)  # fmt: skip
OTHER_PHASE = "other"
TIMING_PREFIXES = ("timing_s/", "timing/")

_VALIDATION = re.compile(r"^val(-core)?/")
_PROMPT_NAME_WIDTH = 80
_MAX_PROMPTS_KEPT = 100_000  # prompts with stragglers held in memory before the least of them are dropped

# Per step, from the steps table, in order of preference: our own column first, then veRL's metric.
_STEP_COLUMNS: dict[str, tuple[str, ...]] = {
    "n": ("n", "sagc/size"),
    "straggler_rate": ("straggler_rate",),
    "waiting_share": ("waiting_share",),
    "budget": ("budget",),
    "tail_s": ("tail_s",),
    "idle_share": ("idle_share",),
    "stall": ("stall",),
    "refills": ("refills",),
    "tokens": ("tokens",),
    "rollouts": ("rollouts",),
    "wall_s": ("wall_s", "timing_s/step", "timing/step", "perf/time_per_step", "time_per_step"),
    "trained_reward": ("critic/score/mean", "critic/rewards/mean"),
    "length_mean": ("response_length/mean",),
    "truncated_share": ("response_length/clip_ratio",),
    "prompt_length": ("prompt_length/mean",),
    "total_tokens": ("perf/total_num_tokens", "total_num_tokens"),
}


# Per step, from the sums over rollouts: column, numerator, denominator.
_SHARES = (
    ("reward", "reward", "scored"),
    ("length_right", "right_tokens", "right"),
    ("length_wrong", "wrong_tokens", "wrong"),
    ("length_mean", "tokens", "measured"),
    ("truncated_share", "truncated", "rollouts"),
    ("thrown_away_share", "thrown_away", "rollouts"),
)


@dataclass
class Prompt:
    """A prompt whose groups had stragglers.

    Attributes:
        name: prompt index with its data source, or the group's uid.
        stragglers: steps in which its group had one.
        largest_ratio: the largest max/reference seen.
        longest: the longest response seen, in the unit of the signal.
    """

    name: str
    stragglers: int = 0
    largest_ratio: float = 0.0
    longest: float = 0.0


@dataclass
class RunMeasures:
    """A run, reduced.

    Attributes:
        name: what the reader called it.
        directory: name of the run's directory, which tells apart runs of one name.
        steps: one row per step, ascending; float64 columns `step, n, straggler_rate, waiting_share, budget, tail_s,
            idle_share, stall, refills, tokens, rollouts, wall_s, reward, trained_reward, length_mean, length_right,
            length_wrong, truncated_share, thrown_away_share, silent_share, seconds_done, rollouts_done, tokens_done`;
            nan where unknown. `reward` is the mean over every rollout generated (before any filter), or veRL's own
            metric where no rollouts are on record.
        phases: seconds per phase of the step, same rows; columns from PHASES plus "other".
        validation: validation scores, same rows; one column per metric; nan where not validated.
        right, wrong: responses by length: `right[l]` right answers of l tokens; int64. Right: reward > `right_above`.
        causes: straggling rollouts by cause.
        prompts: prompts with most stragglers first.
        queue_share: share of rollout time spent waiting for a slot in the engine; nan where unknown.
        preempted: rollouts that the engine preempted; None where unknown.
        scores: what its checkpoints reached on downstream sets (evals.py), by set.
        warnings: what the reader had to skip.
    """

    name: str
    directory: str
    info: Mapping[str, Any]
    settings: Settings
    steps: pd.DataFrame
    phases: pd.DataFrame
    validation: pd.DataFrame
    right: np.ndarray
    wrong: np.ndarray
    causes: dict[str, int] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    queue_share: float = math.nan
    preempted: int | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    scores: dict[str, Score] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def has_rollouts(self) -> bool:
        return bool(self.right.sum() + self.wrong.sum())

    def column(self, name: str) -> np.ndarray:
        """A column of `steps` as float64 (steps,)."""
        return self.steps[name].to_numpy(dtype=float)


Watch = Callable[[float], None]
"""Told the share of the work that is done, now and then."""


def measure_run(run: Run, right_above: float = 0.0, watch: Watch | None = None) -> RunMeasures:
    """Reads a run once and reduces it.

    Args:
        run: a `sagc_verl.records` Run.
        right_above: a rollout counts as a right answer where its reward is above this.
        watch: is told the share done.

    Raises:
        ValueError: the run has no steps.
    """
    table = run.steps
    if len(table) == 0:
        raise ValueError(f"{run.name}: the run has no finished step on record")
    table = table.sort_values("step", kind="stable").reset_index(drop=True)
    last = max(float(table["step"].iloc[-1]), 1.0)
    rollouts = _RolloutSums(right_above)
    for batch in batches(run, "rollouts", _RolloutSums.COLUMNS):
        rollouts.add(batch)
        if watch is not None and len(batch):
            watch(float(batch["step"].iloc[-1]) / last)
    groups = _GroupSums()
    for batch in batches(run, "groups", _GroupSums.COLUMNS):
        groups.add(batch)
    scores, unread = read_scores(run.path)
    return RunMeasures(
        name=visible(run.name),
        directory=visible(run.path.resolve().parent.name),
        info=dict(run.info),
        settings=read_settings(run.info),
        steps=_step_rows(table, rollouts, groups),
        phases=phase_seconds(table),
        validation=_validation(table),
        right=rollouts.right,
        wrong=rollouts.wrong,
        causes=rollouts.causes,
        prompts=groups.worst(),
        queue_share=rollouts.queue_share,
        preempted=rollouts.preempted,
        reasons=_reasons(table),
        scores=scores,
        warnings=[*(visible(warning) for warning in run.warnings), *unread],
    )


class _RolloutSums:
    """Adds up rollouts, batch by batch."""

    COLUMNS = (
        "step", "status", "response_tokens", "truncated", "reward", "exceeds", "cause", "preempted", "queue_s",
        "generate_s",
    )  # fmt: skip

    def __init__(self, right_above: float) -> None:
        self._right_above = right_above
        self._parts: list[pd.DataFrame] = []
        self.right = np.zeros(1, dtype=np.int64)
        self.wrong = np.zeros(1, dtype=np.int64)
        self.causes: dict[str, int] = {}
        self.preempted: int | None = None
        self._queue_s = 0.0
        self._busy_s = 0.0

    def add(self, batch: pd.DataFrame) -> None:
        import pandas as pd

        status = batch["status"].fillna("trained")
        batch = cast("pd.DataFrame", batch[status != "failed"])
        if len(batch) == 0:
            return
        thrown_away = batch["status"].isin(["filtered", "surplus"]).to_numpy(dtype=float)
        length = floats(batch["response_tokens"])
        reward = floats(batch["reward"])
        right = reward > self._right_above
        wrong = np.isfinite(reward) & ~right
        measured = np.isfinite(length) & (length >= 0)
        self.right = _add_counts(self.right, length[right & measured])
        self.wrong = _add_counts(self.wrong, length[wrong & measured])
        scored = np.isfinite(reward)
        part = pd.DataFrame(
            {
                "rollouts": 1.0,
                "scored": scored.astype(float),
                "reward": np.where(scored, reward, 0.0),
                "measured": measured.astype(float),
                "tokens": np.where(measured, length, 0.0),
                "thrown_away": thrown_away,
                "right": (right & measured).astype(float),
                "right_tokens": np.where(right & measured, length, 0.0),
                "wrong": (wrong & measured).astype(float),
                "wrong_tokens": np.where(wrong & measured, length, 0.0),
                "truncated": _flags(batch["truncated"]).astype(float),
            },
            index=batch["step"].to_numpy(),
        )
        self._parts.append(cast("pd.DataFrame", part.groupby(level=0).sum()))
        if len(self._parts) > 256:
            self._parts = [self.per_step()]
        self._count_causes(batch)
        self._add_engine_times(batch)

    def _count_causes(self, batch: pd.DataFrame) -> None:
        causes = batch.loc[_flags(batch["exceeds"]), "cause"].fillna("")
        for cause, count in causes.value_counts().items():
            key = visible(cause) or "not recorded"
            self.causes[key] = self.causes.get(key, 0) + int(count)

    def _add_engine_times(self, batch: pd.DataFrame) -> None:
        preempted = floats(batch["preempted"])
        if np.isfinite(preempted).any():
            self.preempted = (self.preempted or 0) + int(np.nansum(preempted > 0))
        queue = floats(batch["queue_s"])
        busy = floats(batch["generate_s"])
        both = np.isfinite(queue) & np.isfinite(busy)
        self._queue_s += float(queue[both].sum())
        self._busy_s += float(busy[both].sum())

    @property
    def queue_share(self) -> float:
        total = self._queue_s + self._busy_s
        return self._queue_s / total if total > 0 else math.nan

    def per_step(self) -> pd.DataFrame:
        """Sums per step, indexed by step; empty where there are no rollouts."""
        import pandas as pd

        if not self._parts:
            return pd.DataFrame()
        return cast("pd.DataFrame", pd.concat(self._parts).groupby(level=0).sum())


class _GroupSums:
    """Adds up silent groups per step and stragglers per prompt, batch by batch."""

    COLUMNS = ("step", "uid", "prompt_index", "data_source", "straggler", "max", "reference", "ratio", "silent")

    def __init__(self) -> None:
        self._prompts: dict[str, Prompt] = {}
        self._silent: list[pd.DataFrame] = []

    def add(self, batch: pd.DataFrame) -> None:
        self._count_silent(batch)
        self._count_stragglers(batch)

    def silent_share(self, steps: np.ndarray) -> np.ndarray:
        """Share of groups whose rewards are all equal at each of the steps (steps,); nan where unknown."""
        import pandas as pd

        if not self._silent:
            return np.full(len(steps), np.nan)
        sums = cast("pd.DataFrame", pd.concat(self._silent).groupby(level=0).sum()).reindex(steps)
        return floats(sums["silent"]) / floats(sums["groups"])

    def _count_silent(self, batch: pd.DataFrame) -> None:
        import pandas as pd

        silent = floats(batch["silent"])
        known = np.isfinite(silent)
        part = pd.DataFrame({"silent": silent[known], "groups": 1.0}, index=batch["step"].to_numpy()[known])
        self._silent.append(cast("pd.DataFrame", part.groupby(level=0).sum()))

    def _count_stragglers(self, batch: pd.DataFrame) -> None:
        hits = batch[_flags(batch["straggler"])]
        if len(hits) == 0:
            return
        longest = floats(hits["max"])
        reference = floats(hits["reference"])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(reference > 0, longest / reference, floats(hits["ratio"]))
        rows = zip(hits["prompt_index"], hits["data_source"], hits["uid"], ratio, longest, strict=True)
        for index, source, uid, times, length in rows:
            name = _prompt_name(index, source, uid)
            prompt = self._prompts.setdefault(name, Prompt(name))
            prompt.stragglers += 1
            prompt.largest_ratio = max(prompt.largest_ratio, _or_zero(times))
            prompt.longest = max(prompt.longest, _or_zero(length))
        if len(self._prompts) > _MAX_PROMPTS_KEPT:
            self._prompts = {prompt.name: prompt for prompt in self.worst(_MAX_PROMPTS_KEPT // 2)}

    def worst(self, count: int = 10) -> list[Prompt]:
        ranked = sorted(
            self._prompts.values(), key=lambda prompt: (-prompt.stragglers, -prompt.largest_ratio, prompt.name)
        )
        return ranked[:count]


def _step_rows(table: pd.DataFrame, sums: _RolloutSums, groups: _GroupSums) -> pd.DataFrame:
    import pandas as pd

    rows = pd.DataFrame({"step": table["step"].to_numpy(dtype=float)})
    for name, sources in _STEP_COLUMNS.items():
        rows[name] = _first_known(table, sources)
    rows["reward"] = rows["trained_reward"]
    for name in ("length_right", "length_wrong", "thrown_away_share"):
        rows[name] = np.nan
    rows["silent_share"] = groups.silent_share(floats(rows["step"]))
    per_step = sums.per_step()
    if len(per_step):
        found = per_step.reindex(rows["step"].to_numpy())
        found.index = rows.index
        for name, top, bottom in _SHARES:
            part = found[top] / found[bottom].where(found[bottom] > 0)
            rows[name] = part.fillna(rows[name]) if name in rows else part
        # Everything that was generated was paid for, whether it was trained on or filtered away.
        rows["rollouts"] = found["rollouts"].fillna(rows["rollouts"])
        rows["tokens"] = found["tokens"].where(found["measured"] > 0).fillna(rows["tokens"])
    # A log without rollouts: total tokens are rollouts times the mean of prompt plus response.
    from_log = (rows["total_tokens"] / (rows["length_mean"] + rows["prompt_length"])).round()
    rows["rollouts"] = rows["rollouts"].fillna(from_log)
    rows["tokens"] = rows["tokens"].fillna((rows["rollouts"] * rows["length_mean"]).round())
    for done, each in (("seconds_done", "wall_s"), ("rollouts_done", "rollouts"), ("tokens_done", "tokens")):
        rows[done] = rows[each].fillna(0).cumsum() if rows[each].notna().any() else np.nan
    return rows.drop(columns=["prompt_length", "total_tokens"])


def _first_known(table: pd.DataFrame, sources: tuple[str, ...]) -> np.ndarray:
    values = np.full(len(table), np.nan)
    for source in sources:
        if source in table.columns:
            candidate = floats(table[source])
            values = np.where(np.isfinite(values), values, candidate)
    return values


def phase_seconds(table: pd.DataFrame) -> pd.DataFrame:
    """Seconds per phase of each row of a steps table; columns from PHASES that occur, then "other"."""
    import pandas as pd

    phases = pd.DataFrame(index=range(len(table)))
    for phase in PHASES:
        values = _first_known(table, tuple(prefix + phase for prefix in TIMING_PREFIXES))
        if np.isfinite(values).any():
            phases[phase] = np.nan_to_num(values)
    whole = _first_known(table, tuple(prefix + "step" for prefix in TIMING_PREFIXES))
    if len(phases.columns) and np.isfinite(whole).any():
        testing = phases["testing"].to_numpy() if "testing" in phases else np.zeros(len(table))
        rest = np.nan_to_num(whole) - (phases.sum(axis=1).to_numpy() - testing)
        validated = testing > 0
        # Older veRL counts validation inside the step, newer outside: then the rest is smaller than the validation.
        if validated.any() and bool((rest[validated] >= testing[validated]).mean() > 0.5):
            rest = rest - testing
        phases[OTHER_PHASE] = np.clip(rest, 0, None)
    return phases


def _validation(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    names = [name for name in table.columns if _VALIDATION.match(str(name)) and "num_turns" not in str(name)]
    columns = {visible(name): floats(table[name]) for name in names}
    return pd.DataFrame({name: values for name, values in columns.items() if np.isfinite(values).any()})


def _reasons(table: pd.DataFrame) -> dict[str, int]:
    if "reason" not in table.columns:
        return {}
    return {visible(reason): int(count) for reason, count in table["reason"].dropna().value_counts().items()}


def moves(measures: RunMeasures) -> int:
    """How often the group size changed from one step to the next."""
    sizes = measures.column("n")
    sizes = sizes[np.isfinite(sizes)]
    return int((np.diff(sizes) != 0).sum())


def tenth(measures: RunMeasures, column: str, last: bool) -> np.ndarray:
    """The first or last tenth of a column (at least one step, at most all)."""
    values = measures.column(column)
    count = max(1, math.ceil(len(values) / 10))
    return values[-count:] if last else values[:count]


def _prompt_name(index: Any, source: Any, uid: Any) -> str:
    import pandas as pd

    if index is not None and not pd.isna(index):
        where = f" of {source}" if isinstance(source, str) and source else ""
        return visible(f"prompt {index}{where}")[:_PROMPT_NAME_WIDTH]
    return visible(f"group {uid}")[:_PROMPT_NAME_WIDTH]


def _add_counts(counts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if lengths.size == 0:
        return counts
    found = np.bincount(lengths.astype(np.int64), minlength=counts.size)
    found[: counts.size] += counts
    return found


def floats(column: Any) -> np.ndarray:
    """A column as float64 (rows,), null as nan."""
    return column.to_numpy(dtype=float, na_value=np.nan)


def _flags(column: Any) -> np.ndarray:
    return floats(column) == 1


def _or_zero(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0
