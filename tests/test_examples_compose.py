"""The example scripts against veRL's own configuration: no script may hold a dead, misspelt or illegal key.

A stand-in for `python3` records what each script would run; the overrides are then composed by Hydra as veRL does.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="veRL is not installed")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FAMILIES = {
    "grpo_fsdp": EXAMPLES / "grpo" / "run_qwen3_8b_fsdp",
    "grpo_megatron": EXAMPLES / "grpo" / "run_qwen3_30b_a3b_megatron",
    "dapo_fsdp": EXAMPLES / "dapo" / "run_qwen2_5_7b_fsdp",
}
VARIANTS = ("vanilla", "engineered", "sagc")
SCRIPTS = {f"{family}-{variant}": f"{stem}_{variant}.sh" for family, stem in FAMILIES.items() for variant in VARIANTS}
EVAL = EXAMPLES / "eval" / "run_eval.sh"

# Keys that are not in veRL's YAML and so need a "+": where each is read.
ADDED_KEYS = {
    r"sagc\.(policy|threshold|budget|sizes)": "sagc_verl.control.config",
    r"reward\.reward_kwargs\.max_resp_len": "verl/experimental/reward_loop/reward_manager/dapo.py",
    r"reward\.reward_kwargs\.overlong_buffer_cfg\.(enable|len|penalty_factor|log)": (
        "verl/experimental/reward_loop/reward_manager/dapo.py"
    ),
    r"actor_rollout_ref\.actor\.megatron\.override_transformer_config\."
    r"(moe_router_dtype|apply_rope_fusion|moe_grouped_gemm|moe_permute_fusion)": "verl/workers/engine/megatron",
}

# What may differ between two variants of one family, as prefixes of the composed configuration's keys.
NAMES = ("trainer.experiment_name", "trainer.default_local_dir", "actor_rollout_ref.rollout.trace.experiment_name")
SAGC_ONLY = ("sagc.",)
ENGINEERING = (
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.actor.use_remove_padding",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.ref.strategy",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.enable_chunked_prefill",
    "actor_rollout_ref.rollout.enable_prefix_caching",
    "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "trainer.balance_batch",
    # veRL's interpolations of the above into sections that these scripts do not use
    "critic.",
    "distillation.",
)
MEGATRON_FUSIONS = tuple(
    f"actor_rollout_ref.{role}.megatron.override_transformer_config.{key}"
    for role in ("actor", "ref")
    for key in ("apply_rope_fusion", "moe_grouped_gemm", "moe_permute_fusion")
)
DAPO_SHAPING = ("actor_rollout_ref.actor.clip_ratio_high", "reward.reward_kwargs.overlong_buffer_cfg.enable")


@functools.cache
def commands(script: Path, args: tuple[str, ...] = (), knobs: tuple[tuple[str, str], ...] = ()) -> list[list[str]]:
    """The argument lists of every `python3` that the script calls, in order, without running one."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "bin" / "python3"
        stub.parent.mkdir()
        stub.write_text('#!/bin/sh\nprintf "%s\\0" "$@" END >> "$ARGV_FILE"\n')
        stub.chmod(0o755)
        argv_file = Path(folder) / "argv"
        environment = {
            "PATH": f"{stub.parent}:{os.environ['PATH']}",
            "HOME": "/home/user",
            "ARGV_FILE": str(argv_file),
            **dict(knobs),
        }
        done = subprocess.run(["bash", str(script), *args], env=environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        calls: list[list[str]] = [[]]
        for word in argv_file.read_text().split("\0")[:-1]:
            if word == "END":
                calls.append([])
            else:
                calls[-1].append(word)
        return calls[:-1]


def overrides(script: str | Path, *args: str, knobs: Mapping[str, str] | None = None) -> list[str]:
    """The Hydra overrides of the script's training command."""
    first = commands(Path(script), args, tuple(sorted((knobs or {}).items())))[0]
    assert first[:2] == ["-m", "verl.trainer.main_ppo"]
    return first[2:]


@functools.cache
def composed(words: tuple[str, ...]) -> Any:
    """veRL's configuration under these overrides, every interpolation resolvable."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(words))


def script_config(script: str | Path, *args: str, knobs: Mapping[str, str] | None = None) -> Any:
    return composed(tuple(overrides(script, *args, knobs=knobs)))


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as dotted keys."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        name: leaf
        for key, child in value.items()
        for name, leaf in flat(child, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def flat_config(script: str) -> dict[str, Any]:
    from omegaconf import OmegaConf

    config = script_config(script).copy()
    OmegaConf.set_struct(config, False)
    config.reward.reward_model.rollout.name = "vllm"  # "???" in veRL's YAML, for reward models alone
    return flat(OmegaConf.to_container(config, resolve=True, throw_on_missing=False))


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


EVAL_KNOBS = {
    "base": {"VAL_FILES": "['/data/gsm8k/test.parquet','/data/math/math500.parquet']"},
    "checkpoint": {"VAL_FILES": "['/data/gsm8k/test.parquet']", "CKPT": "CKPT"},
}


@functools.cache
def eval_words(case: str) -> tuple[str, ...]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "run" / "global_step_20"
        checkpoint.mkdir(parents=True)
        knobs = {name: value.replace("CKPT", str(checkpoint)) for name, value in EVAL_KNOBS[case].items()}
        return tuple(overrides(EVAL, knobs=knobs))


def all_words(name: str) -> tuple[str, ...]:
    if name.startswith("eval-"):
        return eval_words(name.removeprefix("eval-"))
    return tuple(overrides(SCRIPTS[name]))


ALL = [*SCRIPTS, *(f"eval-{case}" for case in EVAL_KNOBS)]


@pytest.mark.filterwarnings("ignore:Disabled critic")
@pytest.mark.parametrize("name", ALL)
def test_composes_and_passes_verls_own_checks(name: str) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = composed(all_words(name))
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.ppo_mini_batch_size <= config.data.train_batch_size
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.max_model_len == config.data.max_prompt_length + config.data.max_response_length
    assert rollout.enable_chunked_prefill or rollout.max_num_batched_tokens >= rollout.max_model_len
    algorithm = omega_conf_to_dataclass(config.algorithm)
    assert algorithm.adv_estimator == "grpo"
    # veRL's workers insist on this one.
    assert config.actor_rollout_ref.actor.use_dynamic_bsz == config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz


@pytest.mark.parametrize("name", ALL)
def test_added_keys_are_known_and_none_is_forced(name: str) -> None:
    for word in all_words(name):
        assert not word.startswith(("++", "~")), f"{word}: hides a misspelt key"
        if word.startswith("+"):
            assert any(re.fullmatch(pattern, key_of(word)) for pattern in ADDED_KEYS), f"{word}: not a known addition"


@pytest.mark.parametrize("name", ALL)
def test_no_key_is_given_twice(name: str) -> None:
    keys = [key_of(word) for word in all_words(name)]
    assert sorted(keys) == sorted(set(keys))


def test_every_key_is_read_by_code() -> None:
    """A key may stand in the YAML and be read by nothing: its name must occur in veRL outside the config classes."""
    import verl

    root = Path(verl.__file__).parent
    sources = "\n".join(
        file.read_text(encoding="utf-8", errors="ignore")
        for file in root.rglob("*.py")
        if "config" not in file.relative_to(root).parts and not file.name.startswith("test_")
    )
    known = set(re.findall(r"\w+", sources))
    elsewhere = {"model_engine"}  # picks YAML files, in Hydra's defaults list
    passed_on_whole = re.compile(r"override_transformer_config\.|^sagc\.")
    for name in ALL:
        for word in all_words(name):
            key = key_of(word)
            leaf = key.rpartition(".")[2]
            if not passed_on_whole.search(key):
                assert leaf in known or leaf in elsewhere, f"{name}: {key} is read by no code"
            # veRL overwrites this one from actor_rollout_ref.model.use_remove_padding
            assert not key.endswith("megatron.use_remove_padding")


def test_added_keys_are_read_where_the_list_says() -> None:
    import verl

    root = Path(verl.__file__).parent.parent
    for pattern, place in ADDED_KEYS.items():
        if not place.startswith("verl/"):
            continue
        files = [root / place] if place.endswith(".py") else list((root / place).rglob("*.py"))
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
        section = re.sub(r"\\\.?\(.*|\\", "", pattern).rstrip(".").rpartition(".")[2]
        assert section in text, f"{section} is not read in {place}"


@pytest.mark.parametrize("family", FAMILIES)
def test_sagc_differs_from_engineered_in_its_own_keys_alone(family: str) -> None:
    assert_differ_only(f"{family}-engineered", f"{family}-sagc", NAMES + SAGC_ONLY)


@pytest.mark.parametrize("family", FAMILIES)
def test_vanilla_differs_from_engineered_in_engineering_alone(family: str) -> None:
    more = {"grpo_megatron": MEGATRON_FUSIONS, "dapo_fsdp": DAPO_SHAPING}.get(family, ())
    assert_differ_only(f"{family}-vanilla", f"{family}-engineered", NAMES + ENGINEERING + more)


def assert_differ_only(left: str, right: str, allowed: tuple[str, ...]) -> None:
    first, second = flat_config(SCRIPTS[left]), flat_config(SCRIPTS[right])
    missing = object()
    different = {key for key in first.keys() | second.keys() if first.get(key, missing) != second.get(key, missing)}
    assert different, "the two are the same"
    unexpected = sorted(key for key in different if not key.startswith(allowed))
    assert not unexpected, f"{left} and {right} also differ in {unexpected}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_sagc_settings_are_legal(name: str) -> None:
    config = pytest.importorskip("sagc_verl.control.config")
    from omegaconf import OmegaConf

    verl_config = script_config(SCRIPTS[name], knobs={"SAGC_SIZES": "4,8,16"} if name.endswith("sagc") else {})
    assert verl_config.trainer.v1.trainer_mode == "sagc"
    parsed = config.parse_config(OmegaConf.to_container(verl_config.sagc), verl_config.actor_rollout_ref.rollout.n)
    assert parsed.policy == ("sagc" if name.endswith("sagc") else "static")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_group_size_divides_into_the_mini_batch(name: str) -> None:
    config = script_config(SCRIPTS[name])
    actor = config.actor_rollout_ref.actor
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if actor.strategy == "megatron":
        layout = actor.megatron
        ranks //= layout.tensor_model_parallel_size * layout.pipeline_model_parallel_size * layout.context_parallel_size
    for n in range(2, config.actor_rollout_ref.rollout.n + 1):
        rows = actor.ppo_mini_batch_size * n
        assert rows % ranks == 0
        if not actor.use_dynamic_bsz:
            assert (rows // ranks) % actor.ppo_micro_batch_size_per_gpu == 0


@pytest.mark.parametrize("name", [name for name in SCRIPTS if not name.endswith("sagc")])
def test_static_baselines_and_stock_verl(name: str) -> None:
    static = overrides(SCRIPTS[name], knobs={"ROLLOUT_N": "4"})
    assert {"actor_rollout_ref.rollout.n=4", "+sagc.policy=static", "trainer.v1.trainer_mode=sagc"} <= set(static)
    stock = overrides(SCRIPTS[name], knobs={"RECORD": "False"})
    assert not [word for word in stock if "sagc." in key_of(word) or key_of(word) == "trainer.v1.trainer_mode"]


EXTRA = (
    "trainer.total_training_steps=3",
    "reward.custom_reward_function.path=examples/data/reasoning_gym_reward.py",
    "++sagc.policy=static",
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_comes_last(name: str) -> None:
    assert overrides(SCRIPTS[name], *EXTRA)[-len(EXTRA) :] == list(EXTRA)


def test_command_line_wins_over_the_script() -> None:
    config = script_config(SCRIPTS["grpo_fsdp-sagc"], *EXTRA)
    assert config.sagc.policy == "static"
    assert config.trainer.total_training_steps == 3
    assert config.reward.custom_reward_function.path.endswith("reasoning_gym_reward.py")


@pytest.mark.parametrize("file", ["grpo/sweep_qwen3_8b.yaml", "dapo/sweep_qwen2_5_7b.yaml"])
def test_the_example_sweeps_compose(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sagc_verl.sweep.plan import planned_runs
    from sagc_verl.sweep.spec import read_spec

    monkeypatch.chdir(EXAMPLES.parent)
    runs = {run.setting: run for run in planned_runs(read_spec(EXAMPLES / file), {"sagc": 5.5})}
    for label, policy, n in (("sagc", "sagc", 16), ("engineered", "static", 16), ("static_mean_5", "static", 5)):
        run = runs[label]
        config = script_config(run.argv[1], *run.argv[2:], knobs=run.env)
        assert config.trainer.v1.trainer_mode == "sagc"
        assert (config.sagc.policy, config.actor_rollout_ref.rollout.n) == (policy, n)
        assert config.trainer.default_local_dir == str(run.directory)
        assert config.data.seed == config.actor_rollout_ref.rollout.seed == run.seed


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_knob_does_something(name: str) -> None:
    text = Path(SCRIPTS[name]).read_text()
    knobs = re.findall(r"^\w+=\$\{([A-Z_0-9]+):-", text, flags=re.MULTILINE)
    assert {"MODEL_PATH", "ROLLOUT_N", "SEED", "OUTPUT_DIR", "NNODES"} <= set(knobs)
    usual = overrides(SCRIPTS[name])
    for knob in knobs:
        value = "False" if knob == "RECORD" else "7"
        assert overrides(SCRIPTS[name], knobs={knob: value}) != usual, f"{knob} changes nothing"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_says_what_where_and_what_was_checked(name: str) -> None:
    text = Path(SCRIPTS[name]).read_text()
    head = text.partition("set -euo pipefail")[0]
    for word in ("Hardware:", "Data:", "not run this", "Knobs"):
        assert word in head
    assert text.rstrip().endswith('"$@"')
    assert os.access(SCRIPTS[name], os.X_OK)


def test_eval_only_validates_and_then_scores(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "global_step_20"
    checkpoint.mkdir(parents=True)
    knobs = (("CKPT", str(checkpoint)), ("VAL_FILES", "['/data/a.parquet','/data/b.parquet']"), ("VAL_N", "4"))
    training, scoring = commands(EVAL, (), knobs)
    config = composed(tuple(training[2:]))
    assert config.trainer.val_only and config.trainer.val_before_train
    assert config.trainer.resume_from_path == str(checkpoint)
    assert config.data.train_files == "/data/a.parquet"
    assert list(config.data.val_files) == ["/data/a.parquet", "/data/b.parquet"]
    assert config.actor_rollout_ref.rollout.val_kwargs.n == 4
    assert Path(config.reward.custom_reward_function.path).is_file()
    options = dict(zip(scoring[1::2], scoring[2::2], strict=True))
    assert options["--generations"] == config.trainer.validation_data_dir
    assert options["--out"] == str(tmp_path / "run" / "sagc" / "eval" / "step_20.json")
    assert options["--step"] == "20"


def test_eval_merges_a_sharded_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "global_step_20"
    checkpoint.mkdir(parents=True)
    knobs = (
        ("BACKEND", "megatron"),
        ("CKPT", str(checkpoint)),
        ("LOAD", "merge"),
        ("VAL_FILES", "['/data/a.parquet']"),
    )
    merging, training, _ = commands(EVAL, (), knobs)
    assert merging[:3] == ["-m", "verl.model_merger", "merge"]
    assert f"actor_rollout_ref.model.path={checkpoint}/merged_hf" in training
    assert merging[merging.index("--target_dir") + 1] == f"{checkpoint}/merged_hf"


def test_eval_takes_the_benchmarks_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "test.parquet").touch()
    config = script_config(EVAL, knobs={"DATA_DIR": str(tmp_path)})
    assert list(config.data.val_files) == [f"{tmp_path}/reasoning_gym/test.parquet"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck() -> None:
    scripts = [str(path) for path in EXAMPLES.rglob("*.sh") if "quickstart" not in path.parts]
    done = subprocess.run(["shellcheck", "--format=json", *scripts], capture_output=True, text=True)
    assert json.loads(done.stdout or "[]") == []
