from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("omegaconf", reason="veRL is not installed")

from trainer_configs import verl_config

from sagc_verl.control.config import ConfigError, parse_config
from sagc_verl.control.sizes import resolve_sizes
from sagc_verl.trainer.announcement import OUR_MANAGER, announcement, warnings_of
from sagc_verl.trainer.batch_arithmetic import batch_shape

ACTOR, ALGORITHM = "actor_rollout_ref.actor", "algorithm"


def warn(changes: dict[str, Any] | None = None, **sagc: Any) -> list[str]:
    config = verl_config(changes)
    parsed = parse_config(sagc, config.actor_rollout_ref.rollout.n)
    shape = batch_shape(config, use_critic=False, use_reference_policy=False)
    plan = resolve_sizes(parsed, config.actor_rollout_ref.rollout.n, shape.why_not)
    return warnings_of(config, parsed, plan, shape)


def test_a_plain_configuration_has_nothing_to_warn_of() -> None:
    assert warn() == []
    assert warn({"actor_rollout_ref.rollout.agent.agent_loop_manager_class": OUR_MANAGER}) == []


WARNINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("DAPO filtering", {f"{ALGORITHM}.filter_groups.enable": True}, {"sizes": [3, 8]}),
    ("groups of 2", {}, {"sizes": [2, 8]}),
    ("loss_agg_mode=token-sum", {f"{ACTOR}.loss_agg_mode": "token-sum"}, {}),
    ("without actor.loss_scale_factor", {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"}, {}),
    (
        "padding rows lower this loss",
        {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean", f"{ACTOR}.ppo_mini_batch_size": 3},
        {},
    ),
    ("kl_ctrl.type=adaptive", {f"{ALGORITHM}.use_kl_in_reward": True, f"{ALGORITHM}.kl_ctrl.type": "adaptive"}, {}),
    (
        "agent_loop_manager_class=my.Manager is kept",
        {"actor_rollout_ref.rollout.agent.agent_loop_manager_class": "my.Manager"},
        {},
    ),
    ("does not compare rollouts of a group", {f"{ALGORITHM}.adv_estimator": "gae"}, {}),
    ("only one size, 8, can be played", {}, {"sizes": [8]}),
    (
        "sizes left out of the default list because veRL cannot run them: 3 (",
        {f"{ACTOR}.ppo_mini_batch_size": 2, "trainer.n_gpus_per_node": 4},
        {},
    ),
]


@pytest.mark.parametrize(("words", "changes", "sagc"), WARNINGS, ids=[warning[0][:30] for warning in WARNINGS])
def test_each_warning_appears_alone_when_it_should(words: str, changes: dict[str, Any], sagc: dict[str, Any]) -> None:
    lines = warn(changes, **sagc)
    assert len(lines) == 1, lines
    assert words in lines[0]
    assert "\n" not in lines[0]


@pytest.mark.parametrize(
    ("changes", "sagc"),
    [
        ({f"{ALGORITHM}.filter_groups.enable": True}, {"sizes": [4, 8]}),
        ({f"{ALGORITHM}.norm_adv_by_std_in_grpo": False}, {"sizes": [2, 8]}),
        ({f"{ALGORITHM}.adv_estimator": "rloo"}, {"sizes": [2, 8]}),
        (
            {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 100},
            {},
        ),
        ({f"{ACTOR}.loss_agg_mode": "token-mean", f"{ACTOR}.ppo_mini_batch_size": 3}, {}),
        ({f"{ALGORITHM}.kl_ctrl.type": "adaptive"}, {}),
    ],
)
def test_no_warning_where_the_setting_does_no_harm(changes: dict[str, Any], sagc: dict[str, Any]) -> None:
    assert warn(changes, **sagc) == []


def test_a_static_run_is_not_warned_of_sizes_it_never_plays() -> None:
    filtering = {f"{ALGORITHM}.filter_groups.enable": True}
    assert warn(filtering, policy="static") == []  # n is 8; the ladder goes down to 3
    assert len(warn({**filtering, "actor_rollout_ref.rollout.n": 3}, policy="static")) == 1
    assert warn({f"{ACTOR}.loss_agg_mode": "token-sum"}, policy="static") == []


def test_seconds_beside_a_manager_of_the_users_own_are_said_to_be_impossible() -> None:
    own = {"actor_rollout_ref.rollout.agent.agent_loop_manager_class": "my.Manager"}
    assert "sagc.signal=seconds cannot be used" in warn(own, signal="seconds")[0]
    assert "sagc.signal=seconds" not in warn(own)[0]


@pytest.mark.parametrize(
    ("changes", "sagc", "words"),
    [
        ({}, {"bugdet": 0.1}, ["sagc.bugdet=0.1", "did you mean sagc.budget?"]),
        ({}, {"budget": 1.5}, ["sagc.budget=1.5", "legal: number above 0 and below 1"]),
        ({}, {"sizes": []}, ["sagc.sizes=[]", "empty", "legal: list of different whole numbers"]),
        ({}, {"sizes": [1, 4]}, ["sagc.sizes=[1, 4]", "legal:"]),
        ({}, {"start": 99}, ["sagc.start=99", "legal:"]),
        (
            {f"{ACTOR}.ppo_mini_batch_size": 2, "trainer.n_gpus_per_node": 4},
            {"sizes": [3, 4]},
            ["sagc.sizes=[3, 4]", "size 3 cannot be run", "2 * 3 = 6 rows", "4 data-parallel workers", "legal:"],
        ),
        (
            {f"{ACTOR}.ppo_mini_batch_size": 1, "trainer.n_gpus_per_node": 16},
            {},
            ["sagc.n_max=8", "none of the default sizes", "legal:"],
        ),
    ],
)
def test_a_refusal_names_key_value_and_what_is_legal(
    changes: dict[str, Any], sagc: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        warn(changes, **sagc)
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- the block itself


def block(records: Path | None = Path("out/sagc"), warnings: list[str] | None = None, **sagc: Any) -> str:
    config = verl_config({f"{ACTOR}.ppo_mini_batch_size": 4})
    parsed = parse_config(sagc, 8)
    shape = batch_shape(config, False, False)
    return announcement(parsed, resolve_sizes(parsed, 8, shape.why_not), shape, records, warnings or [])


def test_the_block_says_what_will_happen() -> None:
    text = block(budget=0.1, warnings=["something looks wrong"])
    assert text.startswith("SAGC  sizes 3 4 6 8, starting at 8; at most 10% of groups may straggle in the long run\n")
    assert "longer than 2.5 x its reference (tokens)" in text
    assert "rule feasible, risk beta_binomial; 5 steps of warm-up, then moves at least 10 steps apart" in text
    assert "8 prompts and 2 optimizer update(s) per step and epoch, whatever n" in text
    assert "records: out/sagc" in text
    assert text.endswith("  warning: something looks wrong")


def test_the_block_of_the_other_policies() -> None:
    assert "static: 8 rollouts per prompt in every step" in block(policy="static")
    assert "schedule: 8 from step 1, 4 from step 100" in block(policy="schedule", schedule={1: 8, 100: 4})
    assert "records: off (sagc.records=false)" in block(records=None)
