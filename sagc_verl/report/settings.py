"""What a run was: the facts of its run.json that readers ask for and that decide whether runs compare."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sagc_verl.control.config import default_settings
from sagc_verl.control.constraint import CONSTRAINTS
from sagc_verl.report.text import visible

# The first matching pattern names the kind of a configuration key. A difference in one of these kinds makes runs
# incomparable; a difference in any other key is listed, for it may be the very thing that is compared.
INCOMPARABLE_KINDS: tuple[tuple[str, str], ...] = (
    ("data", r"^data\.(train_files|val_files|custom_cls|prompt_key|max_(prompt|response)_length|filter_|shuffle)"),
    ("model", r"^actor_rollout_ref\.model\.(path|tokenizer_path|lora|lora_rank|target_modules)"),
    ("seed", r"(^|[._])seed$"),
    ("batch", r"^data\.(train_batch_size|gen_batch_size)$|\.ppo_mini_batch_size$|\.ppo_epochs$"),
    ("hardware", r"^trainer\.(n_gpus_per_node|nnodes|device)$|^hardware\b|tensor_model_parallel_size$"),
    ("poll interval", r"poll_interval$"),
    ("steps", r"^trainer\.(total_training_steps|total_epochs)$"),
    ("sampling", r"^actor_rollout_ref\.rollout\.(temperature|top_p|top_k|response_length|prompt_length)$"),
    ("learning", r"\.optim\.lr$|^algorithm\.(adv_estimator|use_kl_in_reward|norm_adv_by_std)"
                 r"|\.(use_kl_loss|kl_loss_coef|loss_agg_mode)$"),
    ("straggler event", r"^sagc\.(threshold|signal|reference|count_truncated)$"),
)  # fmt: skip

# What must or may differ between runs of one comparison, and says nothing about how they trained.
_SILENT = re.compile(
    r"^trainer\.(experiment_name|project_name|default_local_dir|default_hdfs_dir|logger|rollout_data_dir"
    r"|validation_data_dir|resume_mode|resume_from_path|v1\.trainer_mode|val_before_train)"
    r"|\.experiment_name$|\.project_name$|^hydra|^sagc\.|^actor_rollout_ref\.rollout\.n$|\.rollout_n$|agent_loop_manager_class$|^ray_kwargs|\.ray_init\."
    r"|^actor_rollout_ref\.rollout\.val_kwargs\.n$|^global_profiler|profiler"
)
UNKNOWN = "unknown"
_SEED = re.compile(r"(^|[._])seed$")


@dataclass(frozen=True)
class Settings:
    """The facts of a run. Unknown facts are None or empty.

    Attributes:
        policy: "sagc", "static", "schedule", or None where the records do not say.
        sizes: the group sizes the run could play, ascending.
        rollout_n: veRL's `rollout.n`.
        constraint: what the budget limits, "straggler" or "waiting".
        budget, threshold: the controller's two knobs.
        flat: the resolved configuration, one entry per dotted key.
        seeds: every seed of the configuration, by dotted key.
        imported: True for a run read from somebody's log.
    """

    policy: str | None
    sizes: tuple[int, ...]
    rollout_n: int | None
    constraint: str | None
    budget: float | None
    threshold: float | None
    model: str | None
    data: str | None
    hardware: str | None
    imported: bool
    flat: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seeds: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group_key(self) -> str | None:
        """The same for runs that differ in nothing but seed and place; None for a run without a configuration."""
        if not self.flat:
            return None
        kept = {key: value for key, value in self.flat.items() if not _SEED.search(key) and not _SILENT.search(key)}
        kept.update({key: value for key, value in self.flat.items() if key.startswith("sagc.")})
        for own in ("sagc.records", "sagc.init_from"):
            kept.pop(own, None)
        kept["rollout.n"] = self.rollout_n
        kept["policy"] = self.policy
        return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def seed_text(self) -> str:
        """The seed in words: `data.seed`, or what the others agree on, then those that stand out; "" if unknown."""
        known = {key: value for key, value in self.seeds.items() if value is not None}
        main = known.pop("data.seed", None)
        usual = Counter(map(str, known.values())).most_common(1)[0][0] if known else None
        parts = [str(main) if main is not None else usual]
        parts += [f"{key} {value}" for key, value in sorted(known.items()) if str(value) != usual]
        return visible(", ".join(part for part in parts if part is not None))


def read_settings(info: Mapping[str, Any]) -> Settings:
    """The settings of a run from its run.json. Never raises: what is missing is unknown."""
    config = _mapping(info.get("config"))
    imported = bool(info.get("imported"))
    flat = _without_folder(dict(_flatten(config)))
    own: dict[str, Any] = {}
    if config and not imported:
        # Whoever leaves a controller key out gets its default: runs are compared by what they used.
        own = default_settings() | _mapping(config.get("sagc"))
        if own["budget"] is None and own["constraint"] in CONSTRAINTS:
            own["budget"] = CONSTRAINTS[own["constraint"]].budget
        flat = {key: value for key, value in flat.items() if not key.startswith("sagc.")}
        flat.update({f"sagc.{key}": value for key, value in own.items()})
    hardware = _hardware(info)
    if hardware:
        flat["hardware"] = hardware
    sizes = info.get("sizes") or own.get("sizes") or ()
    rollout_n = _integer(flat.get("actor_rollout_ref.rollout.n"))
    policy = own.get("policy")
    return Settings(
        policy=visible(policy) if policy else None,
        sizes=tuple(sorted(int(size) for size in sizes)) if _all_numbers(sizes) else (),
        rollout_n=rollout_n,
        constraint=visible(own["constraint"]) if own else None,
        budget=_number(own.get("budget")),
        threshold=_number(own.get("threshold")),
        model=_text(flat.get("actor_rollout_ref.model.path")),
        data=_text(flat.get("data.train_files")),
        hardware=hardware,
        imported=imported,
        flat=flat,
        seeds={key: value for key, value in flat.items() if _SEED.search(key)},
    )


@dataclass(frozen=True)
class Difference:
    """Runs that do not share the value of one configuration key.

    Attributes:
        kind: what makes the runs incomparable ("data", "seed", ...), or "" for any other key.
        key: the dotted key.
        values: the value in each run, in the order of the runs, as text; UNKNOWN where the run does not say.
    """

    kind: str
    key: str
    values: tuple[str, ...]


def differences(settings: Sequence[Settings]) -> list[Difference]:
    """Where configurations differ, those that make runs incomparable first. Unknown values differ from nothing."""
    keys = sorted({key for one in settings for key in one.flat})
    found: list[Difference] = []
    for key in keys:
        kind = next((name for name, pattern in INCOMPARABLE_KINDS if re.search(pattern, key)), "")
        if not kind and _SILENT.search(key):
            continue
        values = [_value_text(one, key) for one in settings]
        if len(set(values) - {UNKNOWN}) > 1:
            found.append(Difference(kind, key, tuple(values)))
    return sorted(found, key=lambda difference: (difference.kind == "", difference.kind, difference.key))


def _flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, name + ".")
        else:
            yield name, value


def _without_folder(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the run's own folder in other values: users and veRL interpolate it."""
    own = str(flat.get("trainer.default_local_dir") or "").rstrip("/")
    if not own:
        return dict(flat)
    within = re.compile(re.escape(own) + r"(?=/|$)")
    return {key: within.sub("<run folder>", value) if isinstance(value, str) else value for key, value in flat.items()}


def _hardware(info: Mapping[str, Any]) -> str | None:
    host = _mapping(info.get("host"))
    gpus = host.get("gpus") or []
    names = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)] if isinstance(gpus, list) else []
    if host.get("cpu") or host.get("cpus"):
        names.append(f"{host.get('cpus') or '?'} cores of {host.get('cpu') or 'an unnamed CPU'}")
    return visible(", ".join(names)) or None


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _integer(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _all_numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(_number(value) for value in values)


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return visible(", ".join(str(member) for member in value))
    return visible(value)


def _value_text(one: Settings, key: str) -> str:
    value = one.flat.get(key)
    # A log shows the overrides only, perhaps as shell variables: what it does not show is unknown, not absent.
    if not one.flat or (one.imported and (value is None or str(value).startswith("$"))):
        return UNKNOWN
    return visible(value) if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def short_path(text: str | None) -> str:
    """The last two parts of a path or model name: enough to recognise it by."""
    if not text:
        return "unknown"
    return ", ".join("/".join(Path(part.strip()).parts[-2:]) for part in text.split(","))
