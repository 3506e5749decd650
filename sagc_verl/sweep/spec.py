"""What a sweep is: read from YAML or from the command line, checked, and written back as it was understood."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

STATIC_OVERRIDES = ("trainer.v1.trainer_mode=sagc", "++sagc.policy=static", "actor_rollout_ref.rollout.n={n}")
SEED_OVERRIDES = ("data.seed={seed}", "actor_rollout_ref.rollout.seed={seed}")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SweepError(ValueError):
    """A sweep that cannot be run as asked. The text is one line for the user."""


@dataclass(frozen=True)
class Setting:
    """One way to train.

    Attributes:
        name: of the setting; runs are called <name>_s<seed>, or <name>_<n>_s<seed> where it stands for sizes.
        overrides: Hydra overrides, appended to the script's own; {n} and {seed} are filled in.
        script: the training script, where it is not the sweep's.
        env: environment variables for the script, on top of the sweep's; {n} and {seed} are filled in.
        sizes: fixed group sizes, each a setting of its own; STATIC_OVERRIDES are put before `overrides`.
        around: the name of another setting: the sizes are the whole numbers around the mean group size of its runs,
            known once they have finished.
    """

    name: str
    overrides: tuple[str, ...] = ()
    script: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    around: str | None = None


@dataclass(frozen=True)
class SweepSpec:
    """A whole sweep.

    Attributes:
        script: the training script; it must pass its arguments on to veRL last, as "$@" does.
        out: the folder of the sweep; run <name> lives in out/<name>, records in out/<name>/sagc.
        seeds: each setting is trained once per seed.
        settings: in the order in which they are to run.
        overrides: for every run, before the setting's.
        env: environment variables for every run.
        seed_overrides: how the seed is handed to veRL; SEED is also set in the environment.
        cwd: the directory that the scripts run in.
    """

    script: str
    out: str
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    overrides: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    seed_overrides: tuple[str, ...] = SEED_OVERRIDES
    cwd: str = field(default_factory=os.getcwd)


def read_spec(path: Path) -> SweepSpec:
    """A sweep from a YAML file. Relative paths count from the directory that `cwd` in it names, or the current one.

    Raises:
        SweepError: no such file, not YAML, or not a sweep; the text names the key and what is legal.
    """
    import yaml

    if not path.is_file():
        raise SweepError(f"{path}: no such file")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise SweepError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, Mapping):
        raise SweepError(f"{path}: must be a mapping with script, out, seeds and settings")
    return parse_spec(raw)


def parse_spec(raw: Mapping[str, Any]) -> SweepSpec:
    """A sweep from plain data, checked.

    Raises:
        SweepError: names the key, the value and what is legal.
    """
    _only_known(raw, SweepSpec, "")
    for key in ("script", "out", "settings"):
        if not raw.get(key):
            raise SweepError(f"{key}: missing")
    settings = raw["settings"]
    if not isinstance(settings, Mapping):
        raise SweepError("settings: must map a name to its overrides, sizes or around")
    cwd = Path(str(raw.get("cwd") or os.getcwd())).expanduser().resolve()
    spec = SweepSpec(
        script=_script(raw["script"], cwd, "script"),
        out=str(cwd / Path(str(raw["out"])).expanduser()),
        seeds=_numbers(raw.get("seeds", [1]), "seeds", 0),
        settings=tuple(_setting(str(name), value, cwd) for name, value in settings.items()),
        overrides=_words(raw.get("overrides", ()), "overrides"),
        env=_env(raw.get("env", {}), "env"),
        seed_overrides=_words(raw.get("seed_overrides", SEED_OVERRIDES), "seed_overrides"),
        cwd=str(cwd),
    )
    names = {setting.name for setting in spec.settings}
    for setting in spec.settings:
        if setting.around is not None and (setting.around not in names or setting.around == setting.name):
            raise SweepError(f"settings.{setting.name}.around={setting.around}: must name another setting of the sweep")
        if next((other.around for other in spec.settings if other.name == setting.around), None) is not None:
            raise SweepError(f"settings.{setting.name}.around={setting.around}: that one waits for a mean itself")
    return spec


def setting_from_flag(text: str) -> tuple[str, dict[str, Any]]:
    """`name:override,override` as the name and body of a setting. Commas inside brackets or quotes do not divide.

    `name` alone is a setting without overrides. Parts named sizes=, around= and script= are fields of the setting.

    Raises:
        SweepError: no name.
    """
    name, _, rest = text.partition(":")
    body: dict[str, Any] = {"overrides": []}
    for part in _split_commas(rest):
        key, _, value = part.partition("=")
        if key == "sizes":
            body["sizes"] = [int(size) if size.strip().isdigit() else size for size in value.strip("[]").split(",")]
        elif key in ("around", "script"):
            body[key] = value
        else:
            body["overrides"].append(part)
    if not name.strip():
        raise SweepError(f"--setting {text}: must look like name:override,override")
    return name.strip(), body


def spec_data(spec: SweepSpec) -> dict[str, Any]:
    """The sweep as plain data that parse_spec reads back to the same."""
    data: dict[str, Any] = asdict(spec)
    for key in ("seeds", "overrides", "seed_overrides"):
        data[key] = list(data[key])
    data["settings"] = {}
    for setting in spec.settings:
        body = {key: value for key, value in asdict(setting).items() if key != "name" and value}
        data["settings"][setting.name] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in body.items()
        }
    return data


def _setting(name: str, raw: Any, cwd: Path) -> Setting:
    where = f"settings.{name}"
    if not _NAME.fullmatch(name):
        raise SweepError(f"{where}: a name may hold letters, digits, '_', '-' and '.', since it names a folder")
    if raw is None:
        raw = {}
    if isinstance(raw, (list, str)):
        raw = {"overrides": raw}
    if not isinstance(raw, Mapping):
        raise SweepError(f"{where}={raw}: must be a list of overrides, or a mapping")
    _only_known(raw, Setting, where + ".", without=("name",))
    if raw.get("sizes") and raw.get("around"):
        raise SweepError(f"{where}: sizes and around exclude each other")
    return Setting(
        name=name,
        overrides=_words(raw.get("overrides", ()), f"{where}.overrides"),
        script=_script(raw["script"], cwd, f"{where}.script") if raw.get("script") else None,
        env=_env(raw.get("env", {}), f"{where}.env"),
        sizes=_numbers(raw["sizes"], f"{where}.sizes", 2) if raw.get("sizes") else (),
        around=str(raw["around"]) if raw.get("around") else None,
    )


def _only_known(raw: Mapping[str, Any], kind: type, prefix: str, without: Sequence[str] = ()) -> None:
    known = [item.name for item in fields(kind) if item.name not in without]
    for key in raw:
        if key not in known:
            raise SweepError(f"{prefix}{key}: not known; legal are {', '.join(known)}")


def _script(value: Any, cwd: Path, where: str) -> str:
    path = cwd / Path(str(value)).expanduser()
    if not path.is_file():
        raise SweepError(f"{where}={value}: no such file under {cwd}")
    return str(path)


def _numbers(value: Any, where: str, least: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise SweepError(f"{where}={value}: must be a list of whole numbers")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise SweepError(f"{where}={value}: {number!r} must be a whole number of at least {least}")
    if len(set(value)) < len(value):
        raise SweepError(f"{where}={value}: one is there twice")
    return tuple(value)


def _words(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = _split_commas(value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise SweepError(f"{where}={value}: must be a list of overrides, key=value each")
    for word in value:
        if "=" not in word and not word.startswith("~"):
            raise SweepError(f"{where}: {word!r} is not key=value")
    return tuple(value)


def _env(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise SweepError(f"{where}={value}: must map names to values")
    return {str(name): str(text) for name, text in value.items()}


def _split_commas(text: str) -> list[str]:
    parts, depth, quote, current = [], 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        if letter == "," and depth == 0 and not quote:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part.strip() for part in [*parts, current] if part.strip()]
