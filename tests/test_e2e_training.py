"""Real trainings on the CPU: unmodified veRL, Ray, vLLM and FSDP. They take minutes; `-m "not e2e"` skips them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from e2e_runs import (
    EXAMPLES,
    TIMEOUT,
    TrainingRun,
    end,
    environment_for_tests,
    finish,
    ray_processes,
    start_training,
    wait_for,
)

import sagc_verl
from sagc_verl.trainer.controller_state import read_state

pytestmark = pytest.mark.e2e
pytest.importorskip("verl", reason="veRL is not installed (scripts/setup_cpu.sh)")


def train(task: Path, folder: Path, *overrides: str) -> TrainingRun:
    return finish(start_training(task, folder, list(overrides)), folder)


# ---- n changes from step to step


@pytest.fixture(scope="session")
def moving(task: Path, runs: Path) -> TrainingRun:
    return train(
        task,
        runs / "moving",
        "actor_rollout_ref.rollout.n=6",
        "+sagc.policy=schedule",
        "+sagc.schedule={1:4,2:6,3:3}",
        "actor_rollout_ref.rollout.val_kwargs.n=2",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "trainer.test_freq=3",
        "trainer.total_training_steps=3",
    ).check()


def test_every_group_has_the_size_of_its_step(moving: TrainingRun) -> None:
    assert [probe["group_sizes"] for probe in moving.probes] == [[4] * 8, [6] * 8, [3] * 8]


def test_updates_and_padding_are_those_of_veRL_at_that_size(moving: TrainingRun) -> None:
    for probe, n in zip(moving.probes, (4, 6, 3), strict=True):
        assert probe["mini_batch_size"] == probe["global_batch_size"] == 4 * n
        assert probe["padding_rows"] == 0
        assert probe["rows"] / probe["mini_batch_size"] == 2  # optimizer updates, the same at every size


def test_advantages_compare_within_the_group(moving: TrainingRun) -> None:
    assert max(probe["advantage_error"] for probe in moving.probes) < 1e-4


def test_validation_has_its_own_n_and_is_not_recorded(moving: TrainingRun) -> None:
    assert any(name.endswith("@2") for name in moving.metrics[3] if name.startswith("val-core/"))
    counts = sagc_verl.load_run(moving.folder).rollouts.groupby("step").size()
    assert counts.to_dict() == {1: 32, 2: 48, 3: 24}


def test_records_agree_with_what_was_trained(moving: TrainingRun) -> None:
    run = sagc_verl.load_run(moving.folder)
    assert run.steps["n"].tolist() == [4, 6, 3]
    assert run.steps["next_n"].tolist()[:2] == [6, 3]
    rewards = run.rollouts.groupby("step")["reward"].sum()
    for probe in moving.probes:
        assert rewards[probe["step"]] == pytest.approx(probe["scores"], abs=1e-4)
        recorded = run.table("rollouts", steps=[probe["step"]])
        assert sorted(recorded["response_tokens"]) == sorted(map(len, probe["responses"]))
    rollouts = run.rollouts
    assert (rollouts["status"] == "trained").all()
    assert (rollouts["end_s"] > rollouts["start_s"]).all() and (rollouts["start_s"] >= 0).all()
    assert rollouts["queue_s"].notna().all()  # vLLM's statistics are on in the CPU preset
    assert rollouts["prompt_index"].nunique() > 8


def test_sagc_metrics_reach_veRLs_loggers(moving: TrainingRun) -> None:
    for step, n in ((1, 4), (2, 6), (3, 3)):
        metrics = moving.metrics[step]
        assert metrics["sagc/size"] == n
        assert metrics["sagc/rollouts"] == 8 * n
        assert metrics["sagc/faults"] == 0
        assert 0 <= metrics["sagc/straggler_rate"] <= 1


def test_rollout_and_training_probabilities_agree(moving: TrainingRun) -> None:
    """The weights that vLLM samples with are those that were trained: each sync arrives."""
    assert max(metrics["training/rollout_probs_diff_max"] for metrics in moving.metrics.values()) < 1e-3


@pytest.mark.parametrize("command", (["summary"], ["trace", "--step", "2", "--out", "-"], ["export", "--out", "-"]))
def test_commands_read_a_real_run(moving: TrainingRun, command: list[str]) -> None:
    name, *options = command
    result = subprocess.run(
        [Path(sys.executable).with_name("sagc-verl"), name, moving.folder, *options], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


# ---- the controller moves n, and a resumed run goes on


@pytest.fixture(scope="session")
def resumed(task: Path, runs: Path) -> tuple[TrainingRun, TrainingRun]:
    """The same training stopped after step 4 (checkpoints at 2 and 4), then resumed to step 6."""
    folder = runs / "resumed"
    overrides = (
        "actor_rollout_ref.rollout.n=6",
        "+sagc.sizes=[3,4,6]",
        "+sagc.budget=0.3",
        "+sagc.threshold=1.3",
        "+sagc.warmup=1",
        "+sagc.dwell=1",
        "trainer.save_freq=2",
    )
    first = train(task, folder, *overrides, "trainer.total_training_steps=4").check()
    first_metrics = dict(first.metrics)
    second = train(task, folder, *overrides, "trainer.total_training_steps=6").check()
    assert set(first_metrics) == {1, 2, 3, 4}
    return first, second


def test_the_size_moves(resumed: tuple[TrainingRun, TrainingRun]) -> None:
    steps = sagc_verl.load_run(resumed[1].folder).steps
    assert steps["n"].iloc[0] == 6
    assert steps["n"].nunique() > 1


def test_a_resumed_run_plays_the_size_that_was_decided(resumed: tuple[TrainingRun, TrainingRun]) -> None:
    steps = sagc_verl.load_run(resumed[1].folder).steps.set_index("step")
    assert steps.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert steps["attempt"].tolist() == [1, 1, 1, 1, 2, 2]
    assert steps["n"].tolist()[1:] == steps["next_n"].tolist()[:-1]
    saved = read_state(resumed[1].folder / "global_step_4")["controller"]
    assert saved["size"] == steps["n"][5]
    assert saved["step"] == 4


def test_a_resumed_run_goes_on_with_its_queue(resumed: tuple[TrainingRun, TrainingRun]) -> None:
    steps = sagc_verl.load_run(resumed[1].folder).steps.set_index("step")
    cap = 3.0  # of rule=feasible
    expected = np.clip(steps["queue"][4] + steps["straggler_rate"][5] - 0.3, -cap, cap)
    assert steps["queue"][5] == pytest.approx(expected, abs=1e-6)
    assert f"resumed at step 4: next size {steps['n'][5]}" in resumed[1].log.replace("\n", " ")


@pytest.mark.parametrize("load", ["resume", "merge"])
def test_a_checkpoint_is_scored_into_the_run(resumed: tuple[TrainingRun, TrainingRun], task: Path, load: str) -> None:
    """examples/eval loads what was trained, answers through veRL's validation, and `compare` shows the score."""
    folder = resumed[1].folder
    done = subprocess.run(
        [str(EXAMPLES / "evidence" / "eval.sh"), "data.val_max_samples=6"],
        cwd=folder,
        env={
            **environment_for_tests(task, folder),
            "CKPT": str(folder / "global_step_6"),
            "BIN": str(Path(sys.executable).parent),
            "VAL_N": "2",
            "MAX_RESPONSE_LENGTH": "64",
            "LOAD": load,
            "RESULT_DIR": str(folder / "sagc" / "eval"),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((folder / "sagc" / "eval" / "step_6.json").read_text())
    score = result["sources"]["walk"]
    assert (score["prompts"], score["answers"]) == (6, 12)
    assert 0 <= score["low"] <= score["accuracy"] <= score["high"] <= 1
    comparison = json.loads(
        subprocess.run(
            [Path(sys.executable).with_name("sagc-verl"), "compare", folder, "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert comparison["settings"][0]["evaluation"]["walk"]["accuracy"]["value"] == score["accuracy"]


# ---- more workers


def test_two_data_parallel_workers(task: Path, runs: Path) -> None:
    run = train(
        task,
        runs / "dp2",
        "trainer.n_gpus_per_node=2",
        "+sagc.policy=schedule",
        "+sagc.schedule={1:3,2:4}",
        "trainer.total_training_steps=2",
    ).check()
    assert [probe["group_sizes"] for probe in run.probes] == [[3] * 8, [4] * 8]
    assert [probe["rows"] for probe in run.probes] == [24, 32]
    assert max(probe["advantage_error"] for probe in run.probes) < 1e-4
    rollouts = sagc_verl.load_run(run.folder).rollouts
    assert len(rollouts) == 8 * 7


# ---- policy=static is stock veRL


SEEDED = (
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={Path(__file__).with_name('e2e_agent.yaml')}",
    "actor_rollout_ref.rollout.agent.default_agent_loop=seeded_agent",
    f"reward.custom_reward_function.path={Path(__file__).with_name('e2e_reward.py')}",
    "reward.custom_reward_function.name=parity",
    # Rows are trained on in the order in which they arrived. One mini-batch, so that the order is only that of a
    # sum; and a large eps, since Adam would make a step of a sum's last bits where the gradient is near zero.
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "+actor_rollout_ref.actor.optim.override_optimizer_config={eps:1.0}",
    "actor_rollout_ref.actor.optim.lr=0.3",
    "trainer.total_training_steps=3",
)


@pytest.fixture(scope="session")
def stock(task: Path, runs: Path) -> TrainingRun:
    """veRL's own synchronous trainer, with seeded rollouts."""
    return train(task, runs / "stock", "trainer.v1.trainer_mode=cpu_sync", *SEEDED).check()


def same_updates(ours: TrainingRun, theirs: TrainingRun) -> None:
    for step in (1, 2, 3):
        for name in ("actor/pg_loss", "actor/grad_norm", "actor/lr", "critic/rewards/mean", "response_length/mean"):
            assert ours.metrics[step][name] == pytest.approx(theirs.metrics[step][name], rel=1e-3, abs=1e-6), name


def test_static_is_stock_veRL(stock: TrainingRun, task: Path, runs: Path) -> None:
    """With seeded rollouts, `policy=static` and veRL's own synchronous trainer give the same texts and updates."""
    static = train(task, runs / "static", "+sagc.policy=static", *SEEDED).check()
    for ours, theirs in zip(static.probes, stock.probes, strict=True):
        for name in ours.keys() - {"advantage_error"}:
            assert ours[name] == theirs[name], name
    same_updates(static, stock)


def test_two_nodes_train_as_one(stock: TrainingRun, task: Path, runs: Path) -> None:
    """Two Ray nodes, each with a training worker, a rollout server and a rollout worker: the results of one."""
    folder, address = runs / "two_nodes", runs / "cluster_address"
    # As where a cluster runs already: no warm interpreter, and the cluster says how it authenticates.
    plain = {"SAGC_WARM": "0", "SAGC_CPU_PYTHON": sys.executable, "PYTHON": sys.executable, "RAY_AUTH_MODE": "disabled"}
    cluster = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("e2e_cluster.py")), str(address)],
        stdin=subprocess.PIPE,
        env={**environment_for_tests(task, folder), "VERL_PLATFORM": "cpu", **plain},
    )
    try:
        deadline = time.monotonic() + 120
        while not address.exists():
            assert cluster.poll() is None and time.monotonic() < deadline, "the cluster has not started"
            time.sleep(0.2)
        overrides = [
            *SEEDED,
            "+sagc.policy=static",
            "trainer.nnodes=2",
            "actor_rollout_ref.rollout.agent.num_workers=2",
            # What a cluster that is already there does not want to be told again.
            "ray_kwargs.ray_init.num_cpus=null",
            "ray_kwargs.ray_init.num_gpus=null",
            "ray_kwargs.ray_init.object_store_memory=null",
            "ray_kwargs.ray_init.include_dashboard=null",
        ]
        process = start_training(task, folder, overrides, {**plain, "RAY_ADDRESS": address.read_text()})
        two = finish(process, folder).check()
    finally:
        cluster.stdin.close()
        try:
            cluster.wait(30)
        except subprocess.TimeoutExpired:
            cluster.kill()
    for ours, theirs in zip(two.probes, stock.probes, strict=True):
        for name in ("group_sizes", "responses", "scores", "rows"):
            assert ours[name] == theirs[name], name
    same_updates(two, stock)
    rollouts = sagc_verl.load_run(folder).rollouts
    assert rollouts["worker"].nunique() == 2
    # Stamps of both nodes are on the driver's clock.
    assert rollouts["start_s"].min() >= 0
    assert (rollouts["end_s"] >= rollouts["start_s"]).all()


# ---- DAPO


def test_dapo_refills_keep_the_size_and_are_recorded(task: Path, runs: Path) -> None:
    run = train(
        task,
        runs / "dapo",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=reward",
        f"reward.custom_reward_function.path={Path(__file__).with_name('e2e_reward.py')}",
        "reward.custom_reward_function.name=parity",  # about one group in eight gets the same value for all
        "+sagc.policy=schedule",
        "+sagc.schedule={1:4,2:3}",
        "trainer.total_training_steps=2",
    ).check()
    assert [probe["group_sizes"] for probe in run.probes] == [[4] * 8, [3] * 8]
    records = sagc_verl.load_run(run.folder)
    groups = records.groups
    trained = groups[groups["status"] == "trained"]
    assert (trained.groupby("step").size() == 8).all()
    assert not trained["silent"].any()
    for step in (1, 2):
        here = groups[groups["step"] == step]
        metrics = run.metrics[step]
        assert (here["status"] == "filtered").sum() == metrics.get("training/filter_groups/evicted_samples", 0)
        assert (here["status"] == "surplus").sum() == metrics.get("training/filter_groups/discarded_surplus_samples", 0)
        assert metrics["sagc/refills"] == len(here) - 8
    assert set(records.rollouts["n"]) == {3, 4}


def test_dapo_shapes_by_the_lengths_that_are_on_record(task: Path, runs: Path) -> None:
    """veRL's overlong penalty, and its filter by the unshaped `acc`, while n moves."""
    buffer, limit = 48, 64
    run = train(
        task,
        runs / "overlong",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        "reward.reward_manager.name=dapo",
        f"+reward.reward_kwargs.max_resp_len={limit}",
        f"+reward.reward_kwargs.overlong_buffer_cfg={{enable:True,len:{buffer},penalty_factor:1.0,log:False}}",
        f"reward.custom_reward_function.path={Path(__file__).with_name('e2e_reward.py')}",
        "reward.custom_reward_function.name=parity",
        "+sagc.policy=schedule",
        "+sagc.schedule={1:4,2:3}",
        "trainer.total_training_steps=2",
    ).check()
    records = sagc_verl.load_run(run.folder)
    rollouts, groups = records.rollouts, records.groups
    penalty = np.minimum((limit - buffer - rollouts["response_tokens"]) / buffer, 0)
    assert (penalty < 0).any() and (penalty == 0).any()
    # What is left without the penalty is the reward function's own 0 or 1.
    unshaped = (rollouts["reward"] - penalty).to_numpy()
    assert np.abs(unshaped - unshaped.round()).max() < 1e-5
    assert set(unshaped.round()) == {0.0, 1.0}
    # Groups are filtered by what they scored before the penalty, and are on record as that.
    spread = rollouts.assign(acc=unshaped.round()).groupby("uid")["acc"].nunique()
    status = groups.set_index("uid")["status"]
    assert (spread[status.index[status == "filtered"]] == 1).all()
    assert (spread[status.index[status == "trained"]] == 2).all()
    for step in (1, 2):
        here = groups[groups["step"] == step]
        assert (here["status"] == "filtered").sum() == run.metrics[step].get(
            "training/filter_groups/evicted_samples", 0
        )


def test_dapo_ends_when_no_group_can_pass(task: Path, runs: Path) -> None:
    run = train(
        task,
        runs / "hopeless",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=reward",
        f"reward.custom_reward_function.path={Path(__file__).with_name('e2e_reward.py')}",
        "reward.custom_reward_function.name=constant",
        "+sagc.policy=static",
        "+sagc.max_refills=2",
        "trainer.total_training_steps=2",
    )
    assert run.returncode != 0
    assert "veRL would go on for ever" in run.log
    assert "sagc.max_refills=2" in run.log


# ---- what must not run, and what must not hang


def test_a_bad_setting_stops_before_a_worker_starts(task: Path, runs: Path) -> None:
    run = train(task, runs / "refused", "+sagc.bugdet=0.1", "trainer.total_training_steps=1")
    assert run.returncode != 0
    assert "there is no such key, did you mean sagc.budget?" in run.log
    assert "create worker group" not in run.log


@pytest.mark.parametrize("victim", ("StampingRolloutWorker", "QueueStampingServer"))
def test_a_dead_worker_ends_the_run(task: Path, runs: Path, victim: str) -> None:
    folder = runs / f"killed_{victim}"
    began = int(time.time())
    process = start_training(task, folder, ["+sagc.policy=static", "trainer.total_training_steps=500"])
    try:
        wait_for(folder, "step:2 - ")
        killed = [found for found in ray_processes(victim, below=began) if found.pid != process.pid]
        assert killed, f"no process called {victim}"
        for found in killed:
            found.kill()
        process.wait(120)  # within two minutes
    finally:
        end(process)
    assert process.returncode != 0
    run = finish(process, folder)
    assert "died" in run.log


def test_a_failed_weight_sync_ends_the_run(task: Path, runs: Path) -> None:
    """veRL's own vLLM extension cannot load weights into vLLM's packed CPU layers, and the sender waits for ever."""
    theirs = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
    run = train(
        task,
        runs / "failed_sync",
        f"actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls={theirs}",
        "+sagc.hang_timeout=20",
        "trainer.total_training_steps=1",
    )
    assert run.returncode != 0
    assert "weight sync did not come back within 20 s (sagc.hang_timeout)" in run.log
