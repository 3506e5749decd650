"""From the options of a command to a controller's settings: the same checks as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sagc_verl.control import ConfigError, SagcConfig, SizePlan, parse_config, resolve_sizes
from sagc_verl.replay.errors import SourceError
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


def steps_to_replay(workload: Workload, asked: int | None) -> int:
    return asked if asked is not None else (workload.steps_on_record or DEFAULT_STEPS)
