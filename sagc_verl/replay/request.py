"""From the options of a command to a controller's settings: the same checks as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagc_verl.control import ConfigError, SagcConfig, SizePlan, parse_config, resolve_sizes
from sagc_verl.control.sizes import default_n_min
from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.recorded import read_run
from sagc_verl.replay.tune import BUDGETS, THRESHOLDS, WAITING_BUDGETS, size_lists
from sagc_verl.replay.workloads import Workload

DEFAULT_N = 16
DEFAULT_STEPS = 400


def numbers(text: str | None, option: str, kind: type[int] | type[float] = int) -> list | None:
    """ "4,8,16" -> [4, 8, 16]. Raises SourceError."""
    if text is None:
        return None
    try:
        found = [kind(part) for part in text.strip("[] ").split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise SourceError(
            f"{option} {text}: must be numbers with commas between, e.g. {'4,8,16' if kind is int else '0.1,0.2'}"
        )
    return found


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """ "gamma=0.95" -> {"gamma": 0.95}; values as YAML reads them, as Hydra would. Raises SourceError."""
    import yaml

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SourceError(f"--set {pair}: must be key=value, e.g. --set gamma=0.95")
        try:
            found[key.strip().removeprefix("+").removeprefix("sagc.")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SourceError(f"--set {pair}: {value!r} cannot be read as a value") from None
    return found


TAKEN = (
    "sizes", "start", "constraint", "threshold", "budget", "signal", "reference", "count_truncated", "risk", "rule",
    "gain", "queue_cap", "utility", "utility_rho", "gamma", "dwell", "warmup", "max_refills",
)  # fmt: skip
"""Settings of a recorded run that a replay of it takes over, in the order told."""
TUNED = ("sizes", "start", "constraint", "threshold", "budget")
"""Those that a tuning tries several values of."""


def recorded_settings(sources: Sequence[str]) -> dict[str, Any]:
    """The sagc settings with which the one run that is replayed was made; empty where SOURCE is anything else."""
    if len(sources) != 1 or not Path(sources[0]).expanduser().is_dir():
        return {}
    info = read_run(Path(sources[0]).expanduser()).run.info
    config = info.get("config")
    section = config.get("sagc") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping) or info.get("imported"):
        return {}
    taken = {key: section[key] for key in TAKEN if section.get(key) is not None}
    if section.get("policy", "sagc") == "sagc":
        if isinstance(info.get("sizes"), list):
            taken["sizes"] = info["sizes"]  # the default ladder less what veRL could not run
    else:
        taken = {key: value for key, value in taken.items() if key not in ("sizes", "start")}
    return taken


def over_recorded(recorded: Mapping[str, Any], asked: Mapping[str, Any], n: int | None = None) -> dict[str, Any]:
    """What was asked for (None: nothing was), and of the recorded settings those that it leaves room for."""
    asked = {key: value for key, value in asked.items() if value is not None}
    replaced = set(asked)
    if n is not None or replaced & {"sizes", "n_min", "n_max"}:
        replaced |= {"sizes", "start"}
    if "constraint" in asked and asked["constraint"] != recorded.get("constraint", "straggler"):
        replaced.add("budget")
    return {**{key: value for key, value in recorded.items() if key not in replaced}, **asked}


def taken_line(recorded: Mapping[str, Any], used: Mapping[str, Any]) -> list[str]:
    """Says which recorded settings are used and were not asked for."""
    kept = [f"{key}={value}" for key, value in recorded.items() if used.get(key) is value]
    return [f"settings of the recorded run: {', '.join(kept)} (options override them)"] if kept else []


def rollout_n(workload: Workload, asked: int | None, sizes: Sequence[int] | None) -> int:
    """The largest size: as asked, else the largest named, else what was played, else as many samples as are there."""
    if asked is not None:
        if asked < 2:
            raise SourceError(f"--n {asked}: must be at least 2")
        return asked
    if sizes:
        return max(sizes)
    if workload.played_n is not None:
        return workload.played_n
    recorded = workload.recorded
    return DEFAULT_N if not recorded else max(2, min(DEFAULT_N, recorded))


def controller_settings(raw: Mapping[str, Any], n: int) -> tuple[SagcConfig, SizePlan]:
    """Checked like a training's ``sagc`` section. Raises ConfigError."""
    config = parse_config({key: value for key, value in raw.items() if value is not None}, n)
    if config.policy != "sagc":
        raise ConfigError(f"sagc.policy={config.policy}: a replay plays sagc beside static sizes; leave policy out")
    return config, resolve_sizes(config, n)


@dataclass(frozen=True)
class Grid:
    """What a tuning tries, checked."""

    config: SagcConfig
    """The settings that are not tuned."""
    rollout_n: int
    thresholds: list[float]
    budgets: list[float]
    waiting_budgets: list[float]
    lists: list[tuple[int, ...]]
    known: dict[str, Any]
    """Recorded settings and those asked for; what of them is tuned is tried beside the others."""


def tuning_grid(
    workload: Workload,
    recorded: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    n: int | None,
    lists: Sequence[Sequence[int]],
    thresholds: Sequence[float] | None,
    budgets: Sequence[float] | None,
    waiting_budgets: Sequence[float] | None,
) -> Grid:
    """Fills what was not asked for (None or empty) with the usual values and with the recorded run's own.

    Raises:
        ConfigError: a value that training would refuse.
    """
    known = over_recorded(recorded, {**asked, "sizes": lists[0] if lists else asked.get("sizes")}, n)
    largest = rollout_n(workload, n, [size for one in lists for size in one] or known.get("sizes"))
    base = {key: value for key, value in known.items() if key not in TUNED}
    config, _ = controller_settings(base, largest)
    waits = known.get("constraint") == "waiting"
    own = known.get("budget")

    def values(given: Sequence[float] | None, usual: Sequence[float], also: Any) -> list[float]:
        return list(given) if given is not None else sorted({*usual, *([] if also is None else [also])})

    only_stragglers = thresholds is not None or budgets is not None
    tried = {
        "threshold": values(thresholds, THRESHOLDS, known.get("threshold")),
        "budget": values(budgets, BUDGETS, None if waits else own),
    }
    waiting = values(waiting_budgets, () if only_stragglers else WAITING_BUDGETS, own if waits else None)
    ladders = [tuple(sorted(one)) for one in lists]
    if not ladders:
        ladders = size_lists(largest, default_n_min(largest))
        mine = tuple(sorted(known.get("sizes") or ()))
        ladders += [mine] if mine and mine not in ladders else []
    for key, those in {**tried, "sizes": [list(one) for one in ladders]}.items():
        for value in those:
            parse_config({**base, key: value}, largest)
    for budget in waiting:
        parse_config({**base, "constraint": "waiting", "budget": budget}, largest)
    return Grid(config, largest, tried["threshold"], tried["budget"], waiting, ladders, known)


def steps_to_replay(workload: Workload, asked: int | None) -> int:
    return asked if asked is not None else (workload.steps_on_record or DEFAULT_STEPS)
