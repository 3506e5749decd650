"""Group sizes against veRL's own arithmetic: its functions are run on stubs, row for row, without Ray or a model."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from tensordict import TensorDict
from trainer_configs import verl_config
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1 import PPOTrainer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.engine_workers import TrainingWorker

from sagc_verl.trainer.batch_arithmetic import BatchShape, batch_shape

SIZES = tuple(range(2, 13))
ANY = settings(max_examples=120, deadline=None)


# ---- veRL's step on stubs


def split(rows: int, micro_batch: int | None) -> None:
    """veRL's own split of a rank's rows into micro-batches of a fixed size; asserts inside."""
    if micro_batch:
        data = TensorDict({"row": torch.arange(rows)}, batch_size=[rows])
        tu.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=micro_batch)
        prepare_micro_batches(data)


def score(rows: int, data_parallel: int, micro_batch: int | None) -> None:
    """Log-probs or values of a step's rows."""
    if micro_batch:
        # veRL deals out rows that do not divide; a rank with one micro-batch more then waits for ever in a collective.
        assert rows % data_parallel == 0, "a hang"
        split(rows // data_parallel, micro_batch)


def updates_of(rows: int, data_parallel: int, extra_info: dict[str, Any], micro_batch: int | None) -> int:
    """Runs veRL's `train_mini_batch` on one rank's share; counts the optimizer updates."""
    seen = []

    def train_batch(mini_batch: TensorDict) -> None:
        split(len(mini_batch), micro_batch)
        seen.append(len(mini_batch))

    engine = SimpleNamespace(
        get_data_parallel_size=lambda: data_parallel,
        get_data_parallel_rank=lambda: 0,
        train_mode=lambda **kwargs: contextlib.nullcontext(),
        is_mp_src_rank_with_outputs=lambda: False,
    )
    worker = SimpleNamespace(engine=engine, train_batch=train_batch, profiler=SimpleNamespace(step=lambda: None))
    share = TensorDict({"row": torch.arange(rows // data_parallel)}, batch_size=[rows // data_parallel])
    tu.assign_non_tensor(share, **extra_info)
    inspect.unwrap(TrainingWorker.train_mini_batch)(worker, share)
    return len(seen)


def info_sent(update: Callable[..., Any], config: DictConfig) -> dict[str, Any]:
    """What veRL's `_update_actor` or `_update_critic` tells the workers."""
    batch = SimpleNamespace(extra_info={})
    answer = {"metrics": {"mfu": [0.0], "loss": [0.0]}}
    trainer = SimpleNamespace(
        config=config,
        distillation_config=None,
        actor_rollout_wg=SimpleNamespace(update_actor=lambda batch: answer),
        critic_wg=SimpleNamespace(train_mini_batch=lambda batch: SimpleNamespace(get=lambda: answer)),
    )
    update(trainer, batch, {})
    return batch.extra_info


def play_step(config: DictConfig, n: int, use_critic: bool, use_reference: bool, global_steps: int = 5) -> int:
    """One step of veRL at size n; returns the actor's updates, AssertionError where veRL would fail or hang."""
    config = config.copy()
    config.actor_rollout_ref.rollout.n = n
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ref, critic = config.actor_rollout_ref.ref, config.critic
    workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
    data_parallel = workers // actor.fsdp_config.ulysses_sequence_parallel_size
    trainer = SimpleNamespace(config=config, use_critic=use_critic, global_steps=global_steps)

    multiple = PPOTrainer._get_required_batch_multiple(trainer, data_parallel)
    rows = math.ceil(config.data.train_batch_size * n / multiple) * multiple
    score(rows, data_parallel, None if actor.use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu)
    if use_reference:
        of_ref = workers // ref.fsdp_config.ulysses_sequence_parallel_size
        score(rows, of_ref, None if ref.log_prob_use_dynamic_bsz else ref.log_prob_micro_batch_size_per_gpu)
    if use_critic:
        fixed = not critic.fsdp.get("use_dynamic_bsz", True)
        of_critic = workers // critic.fsdp.ulysses_sequence_parallel_size
        score(rows, of_critic, critic.fsdp.infer_micro_batch_size_per_gpu if fixed else None)
        info = info_sent(PPOTrainer._update_critic, config)
        updates_of(rows, of_critic, info, critic.fsdp.micro_batch_size_per_gpu if fixed else None)
    if global_steps < config.trainer.critic_warmup:
        return 0
    info = info_sent(PPOTrainer._update_actor, config)
    micro_batch = None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
    return updates_of(rows, data_parallel, info, micro_batch)


@st.composite
def setups(draw: st.DrawFn) -> tuple[DictConfig, bool, bool]:
    """A configuration; with a critic; with a reference."""
    workers = draw(st.sampled_from([1, 2, 4, 6, 8]))
    parallel = st.sampled_from([1, 2] if workers % 2 == 0 else [1])
    micro = st.sampled_from([1, 2, 3, 4])
    dynamic, reference_dynamic, critic_dynamic = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    actor, critic, reference = "actor_rollout_ref.actor", "critic.fsdp", "actor_rollout_ref.ref"
    changes = {
        "data.train_batch_size": draw(st.integers(1, 12)),
        "trainer.n_gpus_per_node": workers,
        "trainer.critic_warmup": draw(st.sampled_from([0, 3])),
        f"{actor}.ppo_mini_batch_size": draw(st.integers(1, 8)),
        f"{actor}.ppo_epochs": draw(st.sampled_from([1, 2])),
        f"{actor}.use_dynamic_bsz": dynamic,
        f"{actor}.ppo_micro_batch_size_per_gpu": draw(micro),
        f"{actor}.fsdp_config.ulysses_sequence_parallel_size": draw(parallel),
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": dynamic,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": draw(micro),
        f"{reference}.log_prob_use_dynamic_bsz": reference_dynamic,
        f"{reference}.log_prob_micro_batch_size_per_gpu": draw(micro),
        f"{reference}.fsdp_config.ulysses_sequence_parallel_size": draw(parallel),
        "critic.ppo_mini_batch_size": draw(st.integers(1, 6)),
        f"{critic}.use_dynamic_bsz": critic_dynamic,
        f"{critic}.micro_batch_size_per_gpu": draw(micro),
        f"{critic}.infer_micro_batch_size_per_gpu": draw(micro),
        f"{critic}.ulysses_sequence_parallel_size": draw(parallel),
    }
    return verl_config(changes), draw(st.booleans()), draw(st.booleans())


def shape_of(setup: tuple[DictConfig, bool, bool]) -> BatchShape:
    return batch_shape(*setup)


# ---- which sizes are legal


@ANY
@given(setup=setups(), n=st.sampled_from(SIZES))
def test_a_size_is_refused_exactly_when_verl_cannot_run_it(setup: tuple[DictConfig, bool, bool], n: int) -> None:
    reason = shape_of(setup).why_not(n)
    steps = {1, 5} if setup[0].trainer.critic_warmup else {5}
    play = [partial(play_step, setup[0], n, setup[1], setup[2], global_steps=step) for step in steps]
    if reason is None:
        for step in play:
            step()
    else:
        failed = 0
        for step in play:
            try:
                step()
            except AssertionError:
                failed += 1
        assert failed, f"refused, but veRL runs it: {reason}"


@pytest.mark.parametrize(("use_critic", "micro_batch", "legal"), [(True, 4, False), (True, 3, True), (False, 3, True)])
def test_steps_that_train_the_critic_alone_count_too(use_critic: bool, micro_batch: int, legal: bool) -> None:
    # 9 rows: later steps pad to the mini-batch of the actor, 12; the first ones to the critic's, 3, or to 4 workers.
    config = verl_config(
        {
            "data.train_batch_size": 3,
            "trainer.n_gpus_per_node": 1 if use_critic else 4,
            "trainer.critic_warmup": 3,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
            "actor_rollout_ref.actor.use_dynamic_bsz": False,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro_batch,
            "critic.ppo_mini_batch_size": 1,
        }
    )
    reason = batch_shape(config, use_critic, False).why_not(3)
    play_step(config, 3, use_critic, False)
    if legal:
        assert reason is None
        assert play_step(config, 3, use_critic, False, global_steps=1) == 0
    else:
        assert (
            reason is not None
            and "9 rows per worker" in reason
            and "when actor_rollout_ref.actor scores them" in reason
        )
        with pytest.raises(AssertionError):
            play_step(config, 3, use_critic, False, global_steps=1)


@ANY
@given(setup=setups())
def test_updates_per_step_do_not_depend_on_n(setup: tuple[DictConfig, bool, bool]) -> None:
    shape = shape_of(setup)
    legal = [n for n in SIZES if shape.why_not(n) is None]
    assume(legal)
    updates = {play_step(setup[0], n, setup[1], setup[2]) for n in legal[:4]}
    assert updates == {shape.updates(legal[0]) * setup[0].actor_rollout_ref.actor.ppo_epochs}
    assert len({shape.updates(n) for n in legal}) == 1


@ANY
@given(setup=setups(), n=st.sampled_from(SIZES))
def test_loss_scale_is_the_mini_batch_times_n(setup: tuple[DictConfig, bool, bool], n: int) -> None:
    config = setup[0].copy()
    config.actor_rollout_ref.rollout.n = n
    actor = info_sent(PPOTrainer._update_actor, config)
    assert (
        actor["global_batch_size"] == actor["mini_batch_size"] == config.actor_rollout_ref.actor.ppo_mini_batch_size * n
    )
    critic = info_sent(PPOTrainer._update_critic, config)
    assert critic["global_batch_size"] == critic["mini_batch_size"] == config.critic.ppo_mini_batch_size * n


@pytest.mark.parametrize(("prompts", "n", "mini_batch", "workers"), [(8, 4, 8, 2), (5, 3, 4, 2), (6, 5, 4, 4)])
def test_rows_are_what_verl_pads_to(
    monkeypatch: pytest.MonkeyPatch, prompts: int, n: int, mini_batch: int, workers: int
) -> None:
    config = verl_config(
        {
            "data.train_batch_size": prompts,
            "trainer.n_gpus_per_node": workers,
            "actor_rollout_ref.actor.ppo_mini_batch_size": mini_batch,
            "actor_rollout_ref.rollout.n": n,
        }
    )
    source = {"uid": "u0", "position_ids": torch.arange(3)}
    queue = SimpleNamespace(kv_batch_get=lambda **kwargs: [source], kv_batch_put=lambda **kwargs: None)
    monkeypatch.setattr(padding_utils, "tq", queue)
    keys = [f"u{prompt}_{session}_0" for prompt in range(prompts) for session in range(n)]
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{"response_len": 5, "is_padding": False} for _ in keys])
    trainer = SimpleNamespace(config=config, use_critic=False, global_steps=1)
    multiple = PPOTrainer._get_required_batch_multiple(trainer, workers)
    padded = padding_utils.upsample_batch_to_divisible_size(batch, multiple, eos_token_id=0)
    assert len(padded) == batch_shape(config, False, False).rows(n)
    assert sum(bool(tag["is_padding"]) for tag in padded.tags) == len(padded) - prompts * n


# ---- what is read from the configuration


def data_parallel(changes: dict[str, Any], use_critic: bool = False) -> int:
    return (
        batch_shape(verl_config({"trainer.n_gpus_per_node": 8, **changes}), use_critic, False).models[-1].data_parallel
    )


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, 8),
        ({"trainer.nnodes": 2}, 16),
        ({"actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 4}, 2),
        # veRL: the older key wins where it is above 1
        (
            {
                "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 4,
                "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2,
            },
            4,
        ),
        (
            {
                "actor_rollout_ref.actor.strategy": "megatron",
                "actor_rollout_ref.actor.megatron": {
                    "tensor_model_parallel_size": 2,
                    "pipeline_model_parallel_size": 2,
                    "context_parallel_size": 1,
                },
            },
            2,
        ),
        (
            {
                "actor_rollout_ref.actor.strategy": "megatron",
                "actor_rollout_ref.actor.megatron": {"dynamic_context_parallel": True},
            },
            1,
        ),
        (
            {
                "actor_rollout_ref.actor.strategy": "veomni",
                "actor_rollout_ref.actor.veomni": {"ulysses_parallel_size": 2},
            },
            4,
        ),
        (
            {
                "actor_rollout_ref.actor.strategy": "torchtitan",
                "actor_rollout_ref.actor.torchtitan": {
                    "data_parallel_shard_size": 2,
                    "data_parallel_replicate_size": 2,
                },
            },
            4,
        ),
    ],
)
def test_data_parallel_ranks_of_the_actor(changes: dict[str, Any], ranks: int) -> None:
    assert data_parallel(changes) == ranks


def test_the_critic_is_split_as_its_engine_says() -> None:
    assert data_parallel({"critic.fsdp.ulysses_sequence_parallel_size": 2}, use_critic=True) == 4
    assert data_parallel({"critic.ulysses_sequence_parallel_size": 2}, use_critic=True) == 8  # nobody reads this key


def test_fixed_micro_batches_of_the_critic_are_those_of_its_engine() -> None:
    changes: dict[str, Any] = {"critic.ppo_micro_batch_size_per_gpu": 3, "critic.use_dynamic_bsz": False}
    assert batch_shape(verl_config(changes), True, False).why_not(2) is None
    changes |= {"critic.fsdp.use_dynamic_bsz": False, "critic.fsdp.micro_batch_size_per_gpu": 3}
    reason = batch_shape(verl_config(changes), True, False).why_not(2)
    assert reason is not None and "set critic.fsdp.use_dynamic_bsz=True" in reason


def test_lora_and_bypass_leave_out_what_is_not_run() -> None:
    fixed: dict[str, Any] = {
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": False,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 3,
    }
    assert batch_shape(verl_config(fixed), False, True).why_not(4) is not None
    assert batch_shape(verl_config({**fixed, "actor_rollout_ref.model.lora_rank": 8}), False, True).why_not(4) is None
    fixed = {
        "actor_rollout_ref.actor.use_dynamic_bsz": False,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 3,
    }
    assert batch_shape(verl_config(fixed), False, False).why_not(4) is not None
    bypass = {**fixed, "algorithm.rollout_correction.bypass_mode": True}
    assert batch_shape(verl_config(bypass), False, False).why_not(4) is None


def test_a_refusal_names_the_key_the_numbers_and_the_way_out() -> None:
    config = verl_config({"trainer.n_gpus_per_node": 4, "actor_rollout_ref.actor.ppo_mini_batch_size": 2})
    assert batch_shape(config, False, False).why_not(3) == (
        "actor_rollout_ref.actor.ppo_mini_batch_size * n = 2 * 3 = 6 rows do not split over 4 data-parallel workers"
    )
    fixed = verl_config(
        {
            "actor_rollout_ref.actor.use_dynamic_bsz": False,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 5,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
        }
    )
    reason = batch_shape(fixed, False, False).why_not(4)
    assert reason is not None and "micro-batches of 5" in reason
    assert "actor_rollout_ref.actor.use_dynamic_bsz=True" in reason


# ---- advantages per group


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[str], list[int], list[float], list[int]]:
    """Rows in any order: keys, number of their prompt's uid (padding -1), final reward of their session, lengths."""
    rows: list[tuple[str, int, float, int]] = []
    for group in range(draw(st.integers(1, 5))):
        for session in range(draw(st.integers(1, 5))):
            reward = draw(st.sampled_from([0.0, 1.0, -0.5, 2.0]))
            for output in range(draw(st.sampled_from([1, 1, 2, 3]))):
                rows.append((f"u{group}_{session}_{output}", group, reward, draw(st.integers(1, 6))))
    rows += [(f"pad0_{index}_0", -1, 0.0, 1) for index in range(draw(st.integers(0, 4)))]
    rows = draw(st.permutations(rows))
    return tuple(list(column) for column in zip(*rows, strict=True))  # type: ignore[return-value]


def reference_advantages(keys: list[str], rewards: list[float], by_std: bool) -> np.ndarray:
    """GRPO per uid over sessions, in plain numpy: what each row's session is worth."""
    sessions: dict[str, dict[str, float]] = {}
    for key, reward in zip(keys, rewards, strict=True):
        uid, session, _ = key.rsplit("_", 2)
        sessions.setdefault(uid, {})[session] = reward
    worth = []
    for key in keys:
        uid, session, _ = key.rsplit("_", 2)
        group = np.array(list(sessions[uid].values()))
        own = sessions[uid][session]
        if len(group) == 1:
            worth.append(own / (1 + 1e-6) if by_std else own)  # a group of one gets its raw reward
        else:
            centred = own - group.mean()
            worth.append(centred / (group.std(ddof=1) + 1e-6) if by_std else centred)
    return np.array(worth)


@ANY
@given(batch=batches(), by_std=st.booleans())
def test_advantages_of_ragged_groups_equal_a_reference_per_uid(
    batch: tuple[list[str], list[int], list[float], list[int]], by_std: bool
) -> None:
    keys, groups, rewards, lengths = batch
    width = max(lengths)
    mask = torch.zeros(len(keys), width)
    scores = torch.zeros(len(keys), width)
    for row, (length, group, reward) in enumerate(zip(lengths, groups, rewards, strict=True)):
        if group >= 0:  # the mask of veRL's padding rows is all zero
            mask[row, :length] = 1
            scores[row, length - 1] = reward
    data = DataProto.from_dict(
        tensors={"token_level_rewards": scores, "response_mask": mask},
        non_tensors={"uid": np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)},
    )
    found = compute_advantage_for_multi_trajectories(
        data, batch_keys=keys, adv_estimator="grpo", num_repeat=7, norm_adv_by_std_in_grpo=by_std
    )
    expected = reference_advantages(keys, rewards, by_std)[:, None] * mask.numpy()
    np.testing.assert_allclose(found.batch["advantages"].numpy(), expected, atol=2e-4)


def test_the_same_prompt_twice_in_a_batch_is_two_groups() -> None:
    keys = [
        "a_0_0",
        "a_1_0",
        "b_0_0",
        "b_1_0",
    ]  # veRL draws a uid for each row of the data, so a and b may be one prompt
    mask = torch.ones(4, 1)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": torch.tensor([[0.0], [1.0], [1.0], [1.0]]), "response_mask": mask},
        non_tensors={
            "uid": np.array(["a", "a", "b", "b"], dtype=object),
            "index": np.array([7, 7, 7, 7], dtype=object),
        },
    )
    found = compute_advantage_for_multi_trajectories(
        data, batch_keys=keys, adv_estimator="grpo", norm_adv_by_std_in_grpo=False
    )
    assert found.batch["advantages"][:, 0].tolist() == [-0.5, 0.5, 0.0, 0.0]
