"""Named workloads with known laws: lognormal lengths, runaways, drift, regime shift, sources of different length.

    log L of prompt p  ~  N(log median + between * u_p, within^2),    u_p ~ N(0, 1) fixed per prompt
    runaways              with probability runaway * g_p, g_p ~ Gamma(shape) / shape (prompts differ), a length is
                          multiplied by a factor uniform in [3, 10]
    cap                   L is cut there
    score                 1 with the prompt's own probability; 0 for runaways and truncated rollouts
    drift, shift          numbers go from their value to their ``to_`` value, slowly or at once

Parameters are set after a colon: ``runaways:runaway=.05,within=.4,prompts=4096``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace

import numpy as np

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.lengths import Draw
from sagc_verl.replay.workloads import REFILL_STRIDE, Epochs, generator


@dataclass(frozen=True)
class Law:
    """The numbers of a synthetic workload."""

    median: float = 600.0
    within: float = 0.4
    between: float = 0.5
    runaway: float = 0.0
    shape: float = 1.0
    cap: float = 8192.0
    prompts: int = 8192
    to_median: float | None = None
    to_within: float | None = None
    to_runaway: float | None = None
    at: int = 200
    """Step at which the change begins; 0 ramp: it happens at once."""
    ramp: int = 0
    back: int = 0
    """Step at which it is undone at once; 0: never."""
    ratio: float = 1.0
    """Half of the prompts, a source of its own, are this many times longer."""
    labelled: int = 1
    """0: the two sources carry no label."""


NAMED: dict[str, tuple[str, Law]] = {
    "lognormal": ("lognormal lengths, no runaways", Law()),
    "calm": ("narrow lengths: hardly a straggler", Law(within=0.2)),
    "runaways": ("one rollout in fifty runs away", Law(runaway=0.02)),
    "drift": ("runaways become frequent between steps 200 and 600", Law(runaway=0.005, to_runaway=0.06, ramp=400)),
    "shift": (
        "spread and runaways jump at step 200, back at 600",
        Law(within=0.3, runaway=0.005, to_within=0.5, to_runaway=0.06, back=600),
    ),
    "two_sources": ("half of the prompts 8 times longer, labelled", Law(ratio=8.0, median=300.0, cap=32768.0)),
}


class Synthetic:
    """A workload with a known law."""

    unit = "tokens"
    prompts_per_step = 64
    recorded: int | None = None
    steps_on_record: int | None = None
    played_n: int | None = None
    has_scores = True

    def __init__(self, name: str, law: Law):
        self.name = name
        self.law = law
        self.notes = ["synthetic: every n is drawn from its stated law"]
        rng = generator(20_060, law.prompts)
        self._u = rng.standard_normal(law.prompts) * law.between
        self._prone = rng.gamma(law.shape, size=law.prompts) / law.shape
        self._solved = rng.beta(1.0, 1.0, size=law.prompts)
        second = np.arange(law.prompts) % 2 == 1
        self._u[second] += np.log(law.ratio)
        self._keys = np.array([f"{name}/{i}" for i in range(law.prompts)], dtype=object)
        self._sources = np.full(law.prompts, None, dtype=object)
        if law.ratio != 1 and law.labelled:
            self._sources[:] = np.where(second, "long", "short")
        self._epochs = Epochs(law.prompts)

    def _progress(self, step: int) -> float:
        law = self.law
        if law.back and step >= law.back:
            return 0.0
        return float(np.clip((step - law.at) / law.ramp, 0, 1)) if law.ramp else float(step >= law.at)

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        law, w = self.law, self._progress(step)
        rows = self._epochs.take((step - 1 + refill * REFILL_STRIDE) * prompts, prompts, seed)
        rng = generator(seed, step, refill, 2)

        def now(start: float, end: float | None) -> float:
            return start if end is None else start + w * (end - start)

        log = rng.standard_normal((prompts, n))
        log *= now(law.within, law.to_within)
        log += (np.log(now(law.median, law.to_median)) + self._u[rows])[:, None]
        lengths = np.exp(log, out=log)
        rate = now(law.runaway, law.to_runaway)
        lost = np.zeros((prompts, n), bool)
        if rate > 0:
            lost = rng.random((prompts, n)) < (rate * self._prone[rows])[:, None]
            lengths[lost] *= rng.uniform(3, 10, int(lost.sum()))
        truncated = lengths >= law.cap
        np.clip(lengths, 1.0, law.cap, out=lengths)
        scores = (rng.random((prompts, n)) < self._solved[rows, None]) & ~lost & ~truncated
        return Draw(
            lengths, truncated, scores.astype(np.float64), self._keys[rows], self._sources[rows], law.cap, modelled=0
        )

    def breaks(self, steps: int) -> list[int]:
        law = self.law
        if law.to_median is None and law.to_within is None and law.to_runaway is None:
            return [1]
        during = [law.at + i * law.ramp // 8 for i in range(8)] if law.ramp else []
        every = {1, law.at + law.ramp, *during, *([law.back] if law.back else [])}
        return sorted(step for step in every if step <= steps)


def is_named(text: str) -> bool:
    return text.partition(":")[0] in NAMED


def named_workload(text: str) -> Synthetic:
    """``name`` or ``name:key=value,...``.

    Raises:
        SourceError: no such name or parameter, or a value that is none.
    """
    name, _, settings = text.partition(":")
    if name not in NAMED:
        raise SourceError(f"{name!r}: no such workload; legal: {', '.join(NAMED)}")
    law = NAMED[name][1]
    kinds = {item.name: item for item in fields(Law)}
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if key not in kinds:
            close = difflib.get_close_matches(key, list(kinds), n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise SourceError(f"{text}: no parameter {key!r}{hint}; legal: {', '.join(kinds)}")
        whole = kinds[key].type == "int"
        try:
            number = int(value) if whole else float(value)
        except ValueError:
            raise SourceError(f"{text}: {key}={value or equals}: must be a {'whole ' if whole else ''}number") from None
        if (
            not np.isfinite(number)
            or number < 0
            or (number == 0 and key in ("median", "shape", "cap", "prompts", "ratio"))
        ):
            raise SourceError(f"{text}: {key}={value}: must be above zero")
        law = replace(law, **{key: number})
    return Synthetic(text, law)
