"""The controller: after each step, learn from its groups and set the size of the next.

    every step t, size n_t played:
        events   k_g of each group, s_t = mean cost of a group                             (event.py, constraint.py)
        learn    posterior <- posterior ^ gamma * likelihood(k_g | n_g)                    (risk.py)
        account  Q <- clip(Q + s_t - b, ...);  excess += s_t - b;  forgiven += what the clip cut off        (rules.py)
        want     n* = rule(Q, p_hat(n) for every n)
        move     warm-up                 n_{t+1} = n_t
                 first choice after it   n_{t+1} = n*                       (may jump)
                 later                   n_{t+1} = neighbour of n_t towards n*, once n_t was played ``dwell`` steps

By default a group costs 1 where it has an event, else 0: s_t is the straggler rate, p_hat(n) = P(straggler | n).

Warm-up lasts ``warmup`` observed steps, and on until 2 / b groups have been seen: with fewer, a workload without
stragglers cannot be told from one at the budget, and would lose samples for nothing.

``policy=static`` and ``policy=schedule`` observe, learn and report in the same way; only their size is not chosen by
risk.
A step without usable observation holds the size and is counted as a fault; nothing is learnt from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sagc_verl.control.config import SagcConfig, config_hash
from sagc_verl.control.constraint import CONSTRAINTS
from sagc_verl.control.event import EventModel, GroupEvents
from sagc_verl.control.groups import GroupBatch
from sagc_verl.control.risk import RiskModel
from sagc_verl.control.rules import RULES, Rule

STATE_VERSION = 1
GROUPS_PER_BUDGET = 2
"""Warm-up needs at least this many groups divided by the budget."""

# settings that a saved part depends on: where one differs, that part starts afresh
_EVENT_KEYS = ("constraint", "threshold", "signal", "reference", "count_truncated")
_RULE_KEYS = ("rule", "budget")
_SAVED_KEYS = (*_EVENT_KEYS, *_RULE_KEYS, "risk")


class StateError(ValueError):
    """A saved state that this version cannot go on from; the message is one line."""


@dataclass(frozen=True)
class StepReport:
    """What one step told and what follows from it."""

    size: int
    """n_t, the size played."""
    next_size: int
    """n_{t+1}, the size to play now."""
    reason: str
    """Why it moved: first_jump, up, down; why it held: warmup, dwell, hold, infeasible, no_observation, fault; or
    static, schedule."""
    cost: float
    """s_t, mean cost of a counted group: what the budget limits; NaN without observation."""
    cost_mean: float
    """Mean of s_t over the steps observed so far; NaN before the first."""
    straggler_rate: float
    """Share of counted groups with an event; NaN without observation. Equal to ``cost`` by default."""
    straggler_rate_mean: float
    """Its mean over the steps observed so far; NaN before the first."""
    waiting_share: float
    """Mean of 1 - mean / longest over counted groups; NaN without observation. Equal to ``cost`` with
    ``constraint=waiting``."""
    budget: float
    queue: float
    """Q after this step, in the rule's own unit."""
    cumulative_excess: float
    """Sum of s_t - b over the steps observed, in steps."""
    debt_forgiven: float
    """What the queue's upper clip has cut off so far, in steps."""
    risk: dict[int, float]
    """Size -> p_hat, the expected cost of a group of that size, as known after this step."""
    infeasible: bool
    """Even the smallest size is predicted to cost more than the budget (known once warm-up is over)."""
    ratio_mean: float
    """Mean max / median of the counted groups; NaN without observation."""
    truncated_share: float
    """Share of usable rollouts that the cap stopped; NaN without observation."""
    blind_share: float
    """Share of counted groups in which the cap hides any straggler; NaN without observation."""
    step_straggler: bool
    """The longest rollout of the step exceeds against the median of its references."""
    groups: int
    """Groups counted."""
    rollouts: int
    """Rollouts used."""
    left_out: int
    """Rollouts left out because their length is NaN, infinite or not above zero."""
    faults: int
    """Steps without usable observation so far."""
    fault: str
    """What was wrong with this step's observation; empty when nothing was."""
    events: GroupEvents | None
    """Per rollout and group; None without observation."""


@dataclass
class _Account:
    """Sums over the observed steps of a run."""

    steps: int = 0
    stragglers: float = 0.0
    cost: float = 0.0
    excess: float = 0.0
    forgiven: float = 0.0

    def add(self, straggler_rate: float, cost: float, budget: float, forgiven: float) -> None:
        self.steps += 1
        self.stragglers += straggler_rate
        self.cost += cost
        self.excess += cost - budget
        self.forgiven += forgiven

    def mean(self, total: float) -> float:
        return total / self.steps if self.steps else math.nan


class Controller:
    """Holds the group size of a run and everything learnt about it.

    Args:
        config: from ``parse_config``.
        sizes: the sizes that may be played, at least one, each at least 2.
        start: size of the first step; default ``config.start``, else the largest.

    Raises:
        ValueError: no size, a size below 2, or a start that is not among them.
    """

    def __init__(self, config: SagcConfig, sizes: Sequence[int], start: int | None = None):
        self.config = config
        self.sizes: tuple[int, ...] = tuple(sorted({int(size) for size in sizes}))
        if not self.sizes or self.sizes[0] < 2:
            raise ValueError(f"sizes must be whole numbers of at least 2, got {list(sizes)}")
        start = config.start if start is None else start
        self.size: int = self.sizes[-1] if start is None else int(start)
        if self.size not in self.sizes:
            raise ValueError(f"start {self.size} is not one of the sizes {list(self.sizes)}")
        self.step = 0
        """Steps played so far, observed or not."""
        self.constraint = CONSTRAINTS[config.constraint]
        self.events = self._new_events()
        self.risk: RiskModel = self.constraint.model(config)
        self.rule: Rule = RULES[config.rule](config)
        self._age = 0  # steps played at this size
        self._chosen = False  # the first choice has been made
        self._seen_steps = 0  # what the posterior rests on: observed steps, their groups
        self._seen_groups = 0
        self._account = _Account()
        self._faults = 0
        if config.policy == "schedule":
            self.size = self._scheduled(1)

    def sizes_for(self, num_prompts: int) -> np.ndarray:
        """The size of each prompt of the coming step, int64 (num_prompts,); the same for all."""
        return np.full(num_prompts, self.size, dtype=np.int64)

    def observe(self, batch: GroupBatch | None) -> StepReport:
        """Learn from the step just played and set the size of the next; never raises on bad data.

        Args:
            batch: the step's finished groups, or None when they are not known.
        """
        events, fault = None, "no observation"
        if batch is not None:
            try:
                events = self.events.observe(batch)
                if events.counted.any():
                    self._learn(batch, events)
                    fault = ""
                else:
                    events, fault = None, "no group has two usable rollouts"
            except Exception as error:  # whatever is wrong with the data, training goes on at this size
                events, fault = None, f"{type(error).__name__}: {error}"

        played = self.size
        self.step += 1
        self._age += 1
        self._faults += events is None
        risk = self.risk.predict(np.array(self.sizes))
        infeasible = self._warm and bool(risk[0] > self.config.budget)
        reason = self._decide(risk, infeasible, observed=events is not None, missing=batch is None)
        return self._report(batch, events, played, reason, risk, infeasible, fault)

    def skip_to(self, step: int) -> None:
        """Go on after ``step`` played steps of which nothing is known: a schedule plays the size of the next one."""
        self.step = step
        if self.config.policy == "schedule":
            self._move_to(self._scheduled(step + 1))

    def _learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        self.risk.learn(batch, events)
        self._seen_steps += 1
        self._seen_groups += int(events.counted.sum())
        cost = self.constraint.step_cost(events)
        self._account.add(events.rate, cost, self.config.budget, forgiven=self.rule.update(cost))

    @property
    def _warm(self) -> bool:
        enough = GROUPS_PER_BUDGET / self.config.budget
        return self._seen_steps >= self.config.warmup and self._seen_groups >= enough

    def _decide(self, risk: np.ndarray, infeasible: bool, *, observed: bool, missing: bool) -> str:
        """Set the next size; returns why."""
        if self.config.policy == "static":
            return "static"
        if self.config.policy == "schedule":
            self._move_to(self._scheduled(self.step + 1))
            return "schedule"
        if not observed:
            return "no_observation" if missing else "fault"
        if not self._warm:
            return "warmup"
        here = self.sizes.index(self.size)
        there = self.rule.choose(np.array(self.sizes), risk)
        first, self._chosen = not self._chosen, True
        if there == here:
            return "infeasible" if infeasible and here == 0 else "hold"
        if first:
            self._move_to(self.sizes[there])
            return "first_jump"
        if self._age < self.config.dwell:
            return "dwell"
        up = there > here
        self._move_to(self.sizes[here + (1 if up else -1)])
        return "up" if up else "down"

    def _move_to(self, size: int) -> None:
        if size != self.size:
            self.size, self._age = size, 0

    def _scheduled(self, step: int) -> int:
        """The schedule's size for a step counted from 1."""
        begun = [first for first in self.config.schedule or {} if first <= step]
        return (self.config.schedule or {})[max(begun)] if begun else self.size

    def _report(
        self,
        batch: GroupBatch | None,
        events: GroupEvents | None,
        played: int,
        reason: str,
        risk: np.ndarray,
        infeasible: bool,
        fault: str,
    ) -> StepReport:
        account = self._account
        cost = rate = waiting = ratio = truncated = blind = math.nan
        groups = rollouts = left_out = 0
        step_straggler = False
        if batch is not None and events is not None:
            cost, rate = self.constraint.step_cost(events), events.rate
            waiting = float(events.waiting[events.counted].mean())
            ratio = float(events.ratio[events.counted].mean())
            blind = float(events.blind[events.counted].mean())
            truncated = float(batch.truncated[events.used].mean())
            groups, rollouts = int(events.counted.sum()), int(events.used.sum())
            left_out = batch.num_rollouts - rollouts
            step_straggler = events.step_straggler
        return StepReport(
            size=played,
            next_size=self.size,
            reason=reason,
            cost=cost,
            cost_mean=account.mean(account.cost),
            straggler_rate=rate,
            straggler_rate_mean=account.mean(account.stragglers),
            waiting_share=waiting,
            budget=self.config.budget,
            queue=self.rule.queue,
            cumulative_excess=account.excess,
            debt_forgiven=account.forgiven,
            risk=dict(zip(self.sizes, risk.tolist(), strict=True)),
            infeasible=infeasible,
            ratio_mean=ratio,
            truncated_share=truncated,
            blind_share=blind,
            step_straggler=step_straggler,
            groups=groups,
            rollouts=rollouts,
            left_out=left_out,
            faults=self._faults,
            fault=fault,
            events=events,
        )

    def _new_events(self) -> EventModel:
        config = self.config
        return EventModel(config.threshold, config.reference, config.count_truncated, config.gamma)

    def state_dict(self) -> dict[str, Any]:
        """Everything that later decisions depend on, in plain JSON types."""
        account = self._account
        return {
            "version": STATE_VERSION,
            "config_hash": config_hash(self.config),
            "config": {key: getattr(self.config, key) for key in _SAVED_KEYS},
            "sizes": list(self.sizes),
            "size": self.size,
            "step": self.step,
            "age": self._age,
            "chosen": self._chosen,
            "seen_steps": self._seen_steps,
            "seen_groups": self._seen_groups,
            "faults": self._faults,
            "account": [account.steps, account.stragglers, account.cost, account.excess, account.forgiven],
            "queue": float(self.rule.queue),
            "queue_unit": float(self.rule.unit),
            "risk": self.risk.state_dict(),
            "events": self.events.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Go on from a saved run: its size, queue, posterior and reference statistics.

        What the saved run does not share with this one starts afresh: another list of sizes, rule or budget, the queue;
        another constraint, threshold, reference or count_truncated, the posterior and the accounts; another signal, the
        reference statistics too; another risk model, the posterior.

        Returns:
            One line for each thing that differs and what was done about it.

        Raises:
            StateError: another version, or a damaged state. Nothing is changed then.
        """
        saved = _read(state)
        learnt, messages = self._learnt(saved)
        self.events, self.risk, same_event = learnt.events, learnt.risk, learnt.same_event
        self.step, self._faults = saved.step, saved.faults
        self._account = saved.account if same_event else _Account()
        self._chosen = saved.chosen and learnt.same_risk
        self._seen_steps = saved.seen_steps if learnt.same_risk else 0
        self._seen_groups = saved.seen_groups if learnt.same_risk else 0

        why = [key for key in _RULE_KEYS if saved.config[key] != getattr(self.config, key)]
        why += ["sizes"] if saved.sizes != self.sizes else []
        self.rule = RULES[self.config.rule](self.config)
        if same_event and not why:
            self.rule.queue = saved.queue
        elif same_event:
            self._account.forgiven += max(0.0, saved.queue * saved.queue_unit)
            messages.append(f"{' and '.join(why)} changed: the queue ({saved.queue:.3g}) restarts at 0")

        if self.config.policy == "sagc":
            size = saved.size
            if size not in self.sizes:
                size = max((known for known in self.sizes if known < saved.size), default=self.sizes[0])
        else:
            size = self._scheduled(self.step + 1) if self.config.policy == "schedule" else self.size
        if size != saved.size:
            messages.append(f"size {saved.size} of the saved run is not played here: going on with {size}")
        self._age = saved.age if size == saved.size else 0
        self.size = size
        return messages

    def load_warm_start(self, state: Mapping[str, Any]) -> list[str]:
        """Take over posterior and reference statistics of another run; size, queue and warm-up stay this run's.

        Returns:
            One line for each thing that could not be taken over.

        Raises:
            StateError: another version, or a damaged state. Nothing is changed then.
        """
        learnt, messages = self._learnt(_read(state))
        self.events, self.risk = learnt.events, learnt.risk
        return messages

    def _learnt(self, saved: _Saved) -> tuple[_Learnt, list[str]]:
        """The posterior and reference statistics of a saved run, as far as they are about this run's event."""
        events, risk = self._new_events(), self.constraint.model(self.config)
        changed = [key for key in _EVENT_KEYS if saved.config[key] != getattr(self.config, key)]
        messages = []
        if "signal" in changed:
            messages.append("signal changed: the reference statistics restart")
        if changed:
            messages.append(
                f"{' and '.join(changed)} changed: what was learnt is about another event or cost, so posterior, queue "
                "and accounts restart with a new warm-up"
            )
        elif saved.config["risk"] != self.config.risk:
            messages.append(f"risk changed from {saved.config['risk']}: the posterior restarts with a new warm-up")
        same_risk = not changed and saved.config["risk"] == self.config.risk
        try:
            if "signal" not in changed:
                events.load_state_dict(saved.events)
            if same_risk:
                risk.load_state_dict(saved.risk)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(error) from error
        return _Learnt(events, risk, same_event=not changed, same_risk=same_risk), messages


@dataclass(frozen=True)
class _Learnt:
    events: EventModel
    risk: RiskModel
    same_event: bool
    same_risk: bool


@dataclass(frozen=True)
class _Saved:
    """A state whose scalars have been checked; the models check their own parts."""

    config: dict[str, Any]
    sizes: tuple[int, ...]
    size: int
    step: int
    age: int
    chosen: bool
    seen_steps: int
    seen_groups: int
    faults: int
    account: _Account
    queue: float
    queue_unit: float
    risk: dict[str, Any]
    events: dict[str, Any]


def _damaged(error: Exception) -> StateError:
    what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return StateError(f"the saved controller state is damaged: {what}")


def _read(state: Mapping[str, Any]) -> _Saved:
    """Check a state dict. Raises StateError."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if version is None:
        raise StateError("the saved controller state is damaged: it holds no version")
    if version != STATE_VERSION:
        raise StateError(
            f"the saved controller state is of version {version!r}; this sagc_verl reads version {STATE_VERSION}"
        )

    def whole(value: Any, low: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{value!r} must be a whole number of at least {low}")
        return value

    def finite(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{value!r} must be a finite number")
        return float(value)

    try:
        steps, *sums = state["account"]
        if len(sums) != len(fields(_Account)) - 1:
            raise ValueError(f"account holds {len(sums) + 1} numbers")
        return _Saved(
            config={key: state["config"][key] for key in _SAVED_KEYS},
            sizes=tuple(whole(size, low=2) for size in state["sizes"]),
            size=whole(state["size"], low=2),
            step=whole(state["step"]),
            age=whole(state["age"]),
            chosen=bool(state["chosen"]),
            seen_steps=whole(state["seen_steps"]),
            seen_groups=whole(state["seen_groups"]),
            faults=whole(state["faults"]),
            account=_Account(whole(steps), *map(finite, sums)),
            queue=finite(state["queue"]),
            queue_unit=finite(state["queue_unit"]),
            risk=dict(state["risk"]),
            events=dict(state["events"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(error) from error
