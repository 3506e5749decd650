"""A run's records and imported veRL logs as workloads: step t of the replay meets the prompts of recorded step t."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.lengths import Draw, LengthTable
from sagc_verl.replay.timefit import rollouts_of
from sagc_verl.replay.workloads import REFILL_STRIDE, Epochs, even_breaks, generator

if TYPE_CHECKING:
    import pandas as pd

    from sagc_verl.records.reader import Run

SPELLS = 8
"""Spells of a run within which its true risk is taken as constant."""
BETWEEN_SHARE = 0.5
"""Of the variance of log lengths of a log's step, what is taken to lie between prompts."""
_COLUMNS = ["step", "uid", "prompt_index", "data_source", "response_tokens", "truncated", "reward", "status"]


class RunWorkload:
    """Rollouts on record. A group of n takes n different rollouts of a group, which keeps prompt, source and step."""

    unit = "tokens"

    def __init__(self, name: str, table: LengthTable, first_row: np.ndarray, steps: np.ndarray, played_n: int):
        """first_row int (T+1,): groups of the t-th recorded step are rows first_row[t] .. first_row[t+1] - 1."""
        self.name = name
        self.table = table
        self._first_row = first_row
        self.steps_on_record: int | None = len(steps)
        groups = np.diff(first_row)
        self.prompts_per_step = int(np.median(groups))
        self.played_n: int | None = played_n
        self.recorded: int | None = table.recorded
        self.has_scores = table.has_scores
        self.notes: list[str] = []
        if table.recorded < played_n:
            self.notes.append(
                f"recorded groups hold {table.recorded} to {played_n} rollouts: a larger n than a group holds is "
                f"filled from a "
                "fitted law"
            )

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        rng = generator(seed, step, refill, 2)
        at = (step - 1 + refill) % (len(self._first_row) - 1)
        rows = np.arange(self._first_row[at], self._first_row[at + 1])
        if len(rows) > prompts:
            rows = rows[generator(seed, step, refill, 1).permutation(len(rows))[:prompts]]
        elif len(rows) < prompts:
            # too few at this step: whole steps after it, then the first ones again
            total = self.table.num_prompts
            rows = (self._first_row[at] + np.arange(prompts)) % total
        return self.table.draw(rows, n, rng)

    def breaks(self, steps: int) -> list[int]:
        return even_breaks(min(steps, self.steps_on_record or steps), SPELLS)


def run_workload(run: Run, signal: str = "tokens", cap: float | None = None) -> RunWorkload:
    """The rollouts of one recorded run; failed ones are left out.

    Raises:
        SourceError: it holds no rollouts that can be used.
    """
    columns = [*_COLUMNS, "generate_s"] if signal == "seconds" else _COLUMNS
    frame: Any = run.table("rollouts", columns=columns)
    length_column = "generate_s" if signal == "seconds" else "response_tokens"
    lengths = frame[length_column].to_numpy(np.float64, na_value=np.nan)
    used = np.isfinite(lengths) & (lengths > 0) & (frame["status"].astype(object) != "failed").to_numpy(bool)
    if not used.any():
        raise SourceError(f"{run.name}: no rollouts with a recorded {length_column}")
    frame, lengths = frame[used], lengths[used]
    step = frame["step"].to_numpy(np.int64)
    # a group is one uid of one step; groups in the order of their steps
    uid = frame["uid"].astype(str).to_numpy()
    group, first, counts = _groups(step, uid)
    kept = counts[group] >= 2
    if not kept.any():
        raise SourceError(f"{run.name}: no group holds 2 rollouts")
    keep_group = counts >= 2
    renumber = np.cumsum(keep_group) - 1
    first, group_of = first[keep_group], renumber[group[kept]]
    sources = frame["data_source"].astype(object).to_numpy()[first]
    keys = frame["prompt_index"].astype(object).to_numpy()[first]
    rewards = frame["reward"].to_numpy(np.float64, na_value=np.nan)
    truncated = frame["truncated"].fillna(False).to_numpy(bool)
    cap = cap if cap is not None else _cap(run.info)
    if cap is None and signal == "tokens" and truncated.any():
        cap = float(lengths[truncated].max())
    table = LengthTable(
        group_of,
        lengths[kept],
        scores=None if np.isnan(rewards[kept]).any() else rewards[kept],
        truncated=truncated[kept],
        keys=np.array([_label(key) for key in keys], dtype=object),
        sources=np.array([_label(source) for source in sources], dtype=object),
        cap=cap if signal == "tokens" else None,
    )
    group_step = step[first]
    steps, first_row = np.unique(group_step, return_index=True)
    workload = RunWorkload(run.name, table, np.append(first_row, len(group_step)), steps, int(table.counts.max()))
    workload.unit = signal
    return workload


def _groups(step: np.ndarray, uid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group number per row in order of (step, first appearance), first row and count per group."""
    order = np.lexsort((uid, step))
    new = np.ones(len(order), bool)
    new[1:] = (step[order][1:] != step[order][:-1]) | (uid[order][1:] != uid[order][:-1])
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    counts = np.bincount(group)
    return group, order[np.flatnonzero(new)], counts


def _label(value: Any) -> str | None:
    return None if value is None or value != value or str(value) == "<NA>" else str(value)


def _cap(info: Mapping[str, Any]) -> float | None:
    value: Any = info.get("config")
    for key in ("data", "max_response_length"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


class LogWorkload:
    """A log knows only mean, longest and cut-off share of each step's lengths; the rest is a stated law.

    log L ~ N(mu, s^2) with the recorded mean, and the recorded longest as the usual longest of so many rollouts; where
    the cap was hit, with the recorded cut-off share beyond the cap. BETWEEN_SHARE of s^2 lies between prompts.
    """

    unit = "tokens"
    has_scores = False
    recorded: int | None = 0
    KNOWN_PROMPTS = 4096

    def __init__(self, frame: pd.DataFrame, name: str, n: int | None = None, cap: float | None = None):
        """n: rollouts per prompt of the logged run, where known.

        Raises:
            SourceError: the table does not record mean and longest response lengths.
        """
        self.name = name
        needed = ["response_length/mean", "response_length/max"]
        missing = [column for column in needed if column not in frame.columns]
        if missing:
            raise SourceError(f"{name}: a log without {' and '.join(missing)} says nothing about lengths")
        mean, longest = (frame[column].to_numpy(np.float64, na_value=np.nan) for column in needed)
        clipped = np.zeros(len(frame))
        if "response_length/clip_ratio" in frame.columns:
            clipped = np.nan_to_num(frame["response_length/clip_ratio"].to_numpy(np.float64, na_value=np.nan))
        rollouts = rollouts_of(frame)
        good = np.isfinite(mean) & np.isfinite(longest) & (mean > 0) & (longest >= mean)
        if not good.any():
            raise SourceError(f"{name}: no step with usable response lengths")
        count = 1024.0 if rollouts is None else float(np.nanmedian(rollouts[good]))
        self.notes = [
            "a log holds no single rollouts: every length is drawn from a lognormal law that matches each step's mean "
            "and longest; "
            f"{BETWEEN_SHARE:.0%} of its variance is taken to lie between prompts"
        ]
        if rollouts is None:
            self.notes.append("rollouts per step are not in the log: 1,024 taken")
        if n is None and "n" in frame.columns and frame["n"].notna().any():
            n = int(frame["n"].max())
        self.played_n: int | None = n
        self.prompts_per_step = max(1, round(count / (n or 8)))
        self.steps_on_record: int | None = int(good.sum())
        self.cap = cap if cap is not None else (float(longest[good].max()) if clipped[good].max() > 0 else None)
        self._mu, self._sigma = _lognormal(mean[good], longest[good], clipped[good], count)
        rng = generator(20_060, self.KNOWN_PROMPTS)
        self._u = rng.standard_normal(self.KNOWN_PROMPTS)
        self._keys = np.array([str(i) for i in range(self.KNOWN_PROMPTS)], dtype=object)
        self._epochs = Epochs(self.KNOWN_PROMPTS)

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        at = (step - 1) % len(self._mu)
        rows = self._epochs.take((step - 1 + refill * REFILL_STRIDE) * prompts, prompts, seed)
        rng = generator(seed, step, refill, 2)
        between, within = np.sqrt(BETWEEN_SHARE), np.sqrt(1 - BETWEEN_SHARE)
        z = between * self._u[rows][:, None] + within * rng.standard_normal((prompts, n))
        lengths = np.maximum(np.exp(self._mu[at] + self._sigma[at] * z), 1.0)
        truncated = np.zeros(lengths.shape, bool)
        if self.cap is not None:
            truncated = lengths >= self.cap
            lengths = np.minimum(lengths, self.cap)
        nothing = np.full(prompts, None, dtype=object)
        return Draw(lengths, truncated, None, self._keys[rows], nothing, self.cap, modelled=lengths.size)

    def breaks(self, steps: int) -> list[int]:
        return even_breaks(min(steps, len(self._mu)), SPELLS)


def _lognormal(
    mean: np.ndarray, longest: np.ndarray, clipped: np.ndarray, count: float
) -> tuple[np.ndarray, np.ndarray]:
    """mu, sigma float64 (T,) with that mean and with ``longest`` at the quantile that the longest of ``count`` has.

    Where rollouts were cut off ``longest`` is at the quantile 1 - clipped. log longest - log mean = s z - s^2 / 2 is
    solved for its smaller root.
    """
    beyond = np.where(clipped > 0, clipped, 0.56 / count)  # 0.56 / count: median rank of the largest, about
    z = np.array([NormalDist().inv_cdf(1 - min(max(share, 1e-9), 0.45)) for share in beyond])
    gap = np.log(longest / mean)
    sigma = z - np.sqrt(np.maximum(z**2 - 2 * gap, 0.0))
    return np.log(mean) - sigma**2 / 2, sigma


def is_steps_frame(frame: pd.DataFrame) -> bool:
    return "response_length/mean" in frame.columns


@dataclass(frozen=True)
class RecordedRun:
    """A run that was opened; every read raises SourceError with one line."""

    run: Run

    def has_rollouts(self) -> bool:
        """Single rollouts are on record (an imported log has none, or only texts)."""
        lengths = _reading(lambda: self.run.table("rollouts", columns=["response_tokens"]))
        return bool(lengths["response_tokens"].notna().any())

    def steps(self) -> pd.DataFrame:
        return _reading(lambda: self.run.steps)


def read_run(path: Path) -> RecordedRun:
    """One recorded run. Raises SourceError: none, several, or unreadable."""
    from sagc_verl.report.source import open_run

    return RecordedRun(_reading(lambda: open_run(path)))


def read_log(path: Path) -> pd.DataFrame:
    """The steps table of a veRL log. Raises SourceError where it is none."""
    from sagc_verl.records.importlog import import_log

    return _reading(lambda: import_log(path))


def _reading(read: Callable[[], Any]) -> Any:
    from sagc_verl.records.errors import RecordsError

    try:
        return read()
    except (RecordsError, ValueError) as error:
        raise SourceError(str(error)) from None
