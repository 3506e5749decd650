"""From a sweep to its runs: settings times seeds, each with its command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path

from sagc_verl.sweep.spec import STATIC_OVERRIDES, Setting, SweepError, SweepSpec

WHOLE = 1e-9  # a mean this close to a whole number is that number

_PLAIN_HYDRA_VALUE = re.compile(r"[A-Za-z0-9_./:~-]+")


@dataclass(frozen=True)
class PlannedRun:
    """One training.

    Attributes:
        name: <setting>_s<seed>; also its folder under the sweep's and veRL's experiment name.
        setting: the setting's name, with the size where it stands for sizes.
        seed: its seed.
        directory: trainer.default_local_dir; the records go to directory/sagc.
        argv: the command.
        env: environment variables on top of the current ones.
    """

    name: str
    setting: str
    seed: int
    directory: Path
    argv: tuple[str, ...]
    env: dict[str, str]

    def shell_line(self) -> str:
        """The command for a shell, environment included."""
        return shlex.join(["env", *(f"{name}={value}" for name, value in self.env.items()), *self.argv])


def planned_runs(spec: SweepSpec, means: Mapping[str, float]) -> list[PlannedRun]:
    """All runs that can be named now, seed by seed, those with sizes around a mean last.

    A size around a mean that a list of sizes asks for too, with the same overrides, is trained once.

    Args:
        means: mean group size per setting that another one is `around`, as far as known.

    Raises:
        SweepError: two settings come to the same name.
    """
    runs: dict[str, PlannedRun] = {}
    for seed in spec.seeds:
        for setting in spec.settings:
            for run in _runs_of(spec, setting, seed):
                if run.name in runs:
                    raise SweepError(f"settings.{setting.name}: two runs would be called {run.name}")
                runs[run.name] = run
    for seed in spec.seeds:
        for setting in spec.settings:
            mean = means.get(setting.around) if setting.around is not None else None
            for n in sizes_around(mean) if mean is not None else ():
                run = _run(spec, setting, f"{setting.name}_{n}", seed, n)
                if not _planned_under_another_name(spec, setting, seed, n, runs):
                    runs[run.name] = run
    return list(runs.values())


def waiting_settings(spec: SweepSpec, means: Mapping[str, float]) -> list[Setting]:
    """Settings whose sizes are not known yet."""
    return [setting for setting in spec.settings if setting.around is not None and setting.around not in means]


def sizes_around(mean: float) -> tuple[int, ...]:
    """The whole numbers on both sides of a mean size, or the one it is; never below 2, the least group."""
    if abs(mean - round(mean)) < WHOLE:
        return (max(round(mean), 2),)
    return tuple(sorted({max(floor(mean), 2), max(ceil(mean), 2)}))


def setting_labels(setting: Setting) -> list[str]:
    """The names of a setting's runs without their seeds; none for one that waits for a mean."""
    if setting.around is not None:
        return []
    return [f"{setting.name}_{n}" for n in setting.sizes] or [setting.name]


def _runs_of(spec: SweepSpec, setting: Setting, seed: int) -> list[PlannedRun]:
    sizes: Sequence[int | None] = setting.sizes or (None,)
    return [_run(spec, setting, label, seed, n) for label, n in zip(setting_labels(setting), sizes, strict=False)]


def _planned_under_another_name(
    spec: SweepSpec, setting: Setting, seed: int, n: int, runs: Mapping[str, PlannedRun]
) -> bool:
    """Whether a list of sizes already asks for the very same training."""
    twins = (_run(spec, setting, f"{other.name}_{n}", seed, n) for other in spec.settings if n in other.sizes)
    return any(runs.get(twin.name) == twin for twin in twins)


def _run(spec: SweepSpec, setting: Setting, label: str, seed: int, n: int | None) -> PlannedRun:
    name = f"{label}_s{seed}"
    directory = Path(spec.out) / name
    words: Sequence[str] = [
        *spec.overrides,
        *(STATIC_OVERRIDES if n is not None else ()),
        *setting.overrides,
        *spec.seed_overrides,
        f"trainer.experiment_name={_hydra_value(name)}",
        f"trainer.default_local_dir={_hydra_value(str(directory))}",
    ]
    env = {**spec.env, **setting.env, "SEED": str(seed)}
    return PlannedRun(
        name=name,
        setting=label,
        seed=seed,
        directory=directory,
        argv=("bash", setting.script or spec.script, *(_fill(word, seed, n) for word in words)),
        env={key: _fill(value, seed, n) for key, value in env.items()},
    )


def _fill(text: str, seed: int, n: int | None) -> str:
    text = text.replace("{seed}", str(seed))
    return text if n is None else text.replace("{n}", str(n))


def _hydra_value(text: str) -> str:
    if _PLAIN_HYDRA_VALUE.fullmatch(text):
        return text
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"
