"""Everything ``+sagc.<key>=<value>`` can set: the one source of keys, defaults, legal values and their help."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from sagc_verl.control.constraint import CONSTRAINTS
from sagc_verl.control.risk import RISKS
from sagc_verl.control.rules import RULES
from sagc_verl.control.utility import UTILITIES

Parser = Callable[[Any], Any]
"""Checks one value and brings it into its type; raises ValueError saying what is wrong with it."""


class ConfigError(ValueError):
    """A setting that cannot be run; the message names the key, the value and what is legal."""


def _integer(low: int) -> Parser:
    def parse(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a whole number")
        if value < low:
            raise ValueError(f"must be at least {low}")
        return value

    return parse


def _number(above: float, below: float = math.inf, *, up_to: float | None = None) -> Parser:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError("must be a number")
        top = below if up_to is None else up_to
        if not math.isfinite(value) or value <= above or value > top or (up_to is None and value == below):
            limit = "" if math.isinf(top) else f" and {'below' if up_to is None else 'at most'} {top:g}"
            raise ValueError(f"must be above {above:g}{limit}")
        return float(value)

    return parse


def _one_of(names: Any) -> Parser:
    def parse(value: Any) -> str:
        if value not in tuple(names):
            close = difflib.get_close_matches(str(value), list(names), n=1)
            raise ValueError(f"is not known{f'; did you mean {close[0]}?' if close else ''}")
        return value

    return parse


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a path")
    return value


def _optional(parser: Parser) -> Parser:
    return lambda value: None if value is None else parser(value)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"size {value!r} must be a whole number")
    if value == 1:
        raise ValueError("a group of 1 has no group to compare with (its advantage would be the raw reward)")
    if value < 2:
        raise ValueError(f"size {value} is below 2")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of whole numbers")
    if not value:
        raise ValueError("the list is empty")
    sizes = [_size(size) for size in value]
    if len(set(sizes)) < len(sizes):
        twice = next(size for size in sizes if sizes.count(size) > 1)
        raise ValueError(f"{twice} is in the list twice")
    return tuple(sorted(sizes))


def _schedule(value: Any) -> dict[int, int]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must map first steps to sizes")
    schedule = {}
    for step, size in value.items():
        digits = isinstance(step, str) and step.isdigit()
        if isinstance(step, bool) or not (digits or (isinstance(step, int) and step >= 0)):
            raise ValueError(f"first step {step!r} must be a whole number of at least 0")
        if int(step) in schedule:
            raise ValueError(f"step {int(step)} is given twice")
        schedule[int(step)] = _size(size)
    return dict(sorted(schedule.items()))


def _records(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    try:
        return _text(value)
    except ValueError:
        raise ValueError("must be true, false or a directory") from None


def _key(default: Any, parser: Parser, legal: str, help: str) -> Any:
    return field(default=default, metadata={"parser": parser, "legal": legal, "help": help})


def _names(names: Any) -> str:
    return ", ".join(names)


POLICIES = ("sagc", "static", "schedule")
SIGNALS = ("tokens", "seconds")
REFERENCES = ("shrunk", "max_median")


@dataclass(frozen=True)
class SagcConfig:
    """The settings of a run. Build it with ``parse_config``, which checks it; defaults are ours."""

    policy: str = _key(
        "sagc",
        _one_of(POLICIES),
        _names(POLICIES),
        "who sets the group size: the controller, nobody (fixed at start), or a schedule; all three record alike",
    )
    sizes: tuple[int, ...] | None = _key(
        None,
        _optional(_sizes),
        "list of different whole numbers, each at least 2, e.g. [4,8,16]",
        "the sizes to choose from; default: a ladder from n_min to n_max in steps of about 1.4",
    )
    n_min: int | None = _key(
        None,
        _optional(_size),
        "whole number, at least 2 and at most n_max",
        "smallest size of the default ladder; default: max(3, n_max / 4)",
    )
    n_max: int | None = _key(
        None,
        _optional(_size),
        "whole number from 2 to rollout.n (a larger size must be named in sizes)",
        "largest size of the default ladder; default: rollout.n",
    )
    start: int | None = _key(
        None,
        _optional(_size),
        "one of sizes; without sizes, a whole number from n_min to n_max",
        "size of the first step, and of every step with policy=static; default: the largest size",
    )
    schedule: Mapping[int, int] | None = _key(
        None,
        _optional(_schedule),
        "map from first step (from 1) to size, e.g. {1:16,100:8}; only with policy=schedule",
        "group size by step, each held until the next first step",
    )
    constraint: str = _key(
        "straggler",
        _one_of(CONSTRAINTS),
        _names(CONSTRAINTS),
        "what the budget limits: the share of groups with a straggler, or the share of a group's slot time spent "
        "waiting for its longest rollout (1 - mean / longest; needs no threshold)",
    )
    threshold: float = _key(
        2.5,
        _number(1.0),
        "number above 1",
        "tau: a rollout straggles when it is longer than this many times its group's reference",
    )
    budget: float = _key(
        None,
        _optional(_number(0.0, 1.0)),
        "number above 0 and below 1",
        "b: how much of what constraint names is allowed in the long run, on average over groups; default: "
        + ", ".join(f"{item.budget:g} ({name})" for name, item in CONSTRAINTS.items()),
    )
    signal: str = _key(
        "tokens",
        _one_of(SIGNALS),
        _names(SIGNALS),
        "what is long: response tokens, or seconds of generation (for tool calls and several turns)",
    )
    reference: str = _key(
        "shrunk",
        _one_of(REFERENCES),
        _names(REFERENCES),
        "what long is measured against: the shrunk median without the longest rollout, or the plain median",
    )
    count_truncated: bool = _key(
        False,
        _boolean,
        "true, false",
        "count a truncated rollout as straggler where the cap is at least 1.5 references",
    )
    risk: str = _key("beta_binomial", _one_of(RISKS), _names(RISKS), "how the risk of each size is learnt (straggler)")
    rule: str = _key(
        "feasible",
        _one_of(RULES),
        _names(RULES),
        "how a size is chosen: the largest that fits the corrected budget, or utility against priced risk",
    )
    gain: float | None = _key(
        None,
        _optional(_number(0.0)),
        "number above 0",
        "V: larger means past excess is worked off more slowly; default: 20 (feasible), 10 (drift_penalty)",
    )
    queue_cap: float | None = _key(
        None,
        _optional(_number(0.0)),
        "number above 0",
        "largest excess remembered; default: 3 (feasible), 30 (drift_penalty)",
    )
    utility: str = _key("log", _one_of(UTILITIES), _names(UTILITIES), "worth of a size to rule=drift_penalty")
    utility_rho: float = _key(
        4.0, _number(0.0), "number above 0", "rho of utility=snr: the size past which more rollouts add little"
    )
    gamma: float = _key(
        0.98,
        _number(0.0, up_to=1.0),
        "number above 0 and at most 1",
        "what is kept of the past at each step; .98 halves its weight in 34 steps",
    )
    dwell: int = _key(10, _integer(1), "whole number, at least 1", "steps between two moves, at least")
    warmup: int = _key(
        5,
        _integer(0),
        "whole number, at least 0",
        "steps observed before the first move; with few groups a step it goes on until 2 / budget groups are seen",
    )
    init_from: str | None = _key(
        None,
        _optional(_text),
        "path of a controller state, or of a checkpoint folder",
        "start from what another run has learnt",
    )
    records: bool | str = _key(
        True,
        _records,
        "true, false or a directory",
        "where rollouts are recorded; true means <trainer.default_local_dir>/sagc",
    )
    poll_interval: float | None = _key(
        None,
        _optional(_number(0.0)),
        "seconds, above 0",
        "pause between two looks for finished rollouts; default: veRL's own",
    )
    max_refills: int = _key(
        20,
        _integer(1),
        "whole number, at least 1",
        "refilled prompts per step, in multiples of train_batch_size, before giving up (DAPO filtering, failed groups)",
    )
    hang_timeout: float | None = _key(
        None,
        _optional(_number(0.0)),
        "seconds, above 0",
        "how long a weight sync may take before the run is ended (a dead rollout worker is noticed within seconds); "
        "default: 120 on the CPU, 1800 with accelerators",
    )

    def __post_init__(self) -> None:
        if self.budget is None:  # a budget belongs to its constraint; whoever reads the settings finds a number
            object.__setattr__(self, "budget", CONSTRAINTS[self.constraint].budget)


_FIELDS = {item.name: item for item in fields(SagcConfig)}


def _refuse(key: str, value: Any, wrong: str) -> ConfigError:
    shown = str(value).lower() if isinstance(value, bool) else "null" if value is None else value
    return ConfigError(f"sagc.{key}={shown}: {wrong}; legal: {_FIELDS[key].metadata['legal']}")


def parse_config(raw: Mapping[str, Any] | None, rollout_n: int) -> SagcConfig:
    """Check the ``sagc`` section of a configuration.

    Args:
        raw: plain dicts, lists and values (an OmegaConf section already turned into a container); None means empty.
        rollout_n: veRL's ``actor_rollout_ref.rollout.n``.

    Raises:
        ConfigError: "sagc.<key>=<value>: <what is wrong>; legal: <...>".
    """
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ConfigError(f"sagc={raw!r}: must be a section; legal: +sagc.<key>=<value>")
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _FIELDS:
            close = difflib.get_close_matches(str(key), list(_FIELDS), n=1)
            hint = f"there is no such key, did you mean sagc.{close[0]}?" if close else "there is no such key"
            raise ConfigError(f"sagc.{key}={value}: {hint}; legal: {', '.join(_FIELDS)}")
        try:
            values[key] = _FIELDS[key].metadata["parser"](value)
        except ValueError as error:
            raise _refuse(key, value, str(error)) from None
    config = SagcConfig(**values)
    _check_together(config, rollout_n)
    return config


def _check_together(config: SagcConfig, rollout_n: int) -> None:
    """Refuse what is legal key by key but cannot run together."""
    if (config.policy == "schedule") != (config.schedule is not None):
        if config.schedule is None:
            raise _refuse("schedule", None, "policy=schedule needs one")
        raise _refuse("schedule", config.schedule, f"policy={config.policy} does not follow a schedule")
    if config.sizes is None and rollout_n < 2:
        raise ConfigError(
            f"actor_rollout_ref.rollout.n={rollout_n}: a group of {rollout_n} has no group to compare with; "
            "legal: at least 2, or sizes named in sagc.sizes"
        )
    for key in ("n_min", "n_max"):
        value = getattr(config, key)
        if value is not None and config.sizes is not None:
            raise _refuse(key, value, f"cannot be combined with sagc.sizes={list(config.sizes)}")
    n_max = rollout_n if config.n_max is None else config.n_max
    if config.sizes is None:
        if n_max > rollout_n:
            raise _refuse("n_max", n_max, f"is above rollout.n={rollout_n}")
        if config.n_min is not None and config.n_min > n_max:
            raise _refuse("n_min", config.n_min, f"is above n_max={n_max}")
    named = {} if config.schedule is None else {"schedule": config.schedule}
    sizes_of = {"start": [] if config.start is None else [config.start]}
    sizes_of["schedule"] = [] if config.schedule is None else list(config.schedule.values())
    for key, sizes in sizes_of.items():
        for size in sizes:
            if config.sizes is not None and size not in config.sizes:
                raise _refuse(key, named.get(key, size), f"{size} is not in sagc.sizes={list(config.sizes)}")
            if config.sizes is None and not (config.n_min or 2) <= size <= n_max:
                raise _refuse(key, named.get(key, size), f"{size} is outside {config.n_min or 2} .. {n_max}")
    smallest = min(config.sizes) if config.sizes is not None else config.n_min
    never = config.constraint == "straggler" and config.reference == "max_median" and config.threshold >= 2
    if config.policy == "sagc" and never and smallest == 2:
        raise _refuse(
            "threshold",
            config.threshold,
            "a group of 2 can never straggle with reference=max_median (max / median stays below 2)",
        )


def config_table() -> list[tuple[str, str, str, str]]:
    """Every key as texts (key, default, legal, help), in order: the README's table and the help are made from it."""

    def shown(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else "null" if value is None else f"{value}"

    rows = []
    for item in fields(SagcConfig):
        assert item.default is not MISSING
        rows.append((item.name, shown(item.default), item.metadata["legal"], item.metadata["help"]))
    return rows


def default_settings() -> dict[str, Any]:
    """Every key with its default as a user would write it: what depends on other keys is null."""
    return {item.name: item.default for item in fields(SagcConfig)}


def config_hash(config: SagcConfig) -> str:
    """Sixteen hex digits that tell configurations apart."""
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]
