"""Real trainings that are killed with -9 and started again, and one in which our own parts fail.

After a kill only the step in flight is lost and nothing counts twice; a fault of ours is counted and training goes on.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from e2e_runs import TIMEOUT, TrainingRun, end, finish, start_training, wait_for

import sagc_verl
from sagc_verl.records.layout import file_name
from sagc_verl.trainer.controller_state import read_state

pytestmark = pytest.mark.e2e
pytest.importorskip("verl", reason="veRL is not installed (scripts/setup_cpu.sh)")

BUDGET = 0.05
OVERRIDES = (
    "actor_rollout_ref.rollout.n=6",
    "+sagc.constraint=straggler",
    "+sagc.sizes=[3,4,6]",
    f"+sagc.budget={BUDGET}",
    "+sagc.gain=5",
    "+sagc.threshold=1.3",
    "+sagc.warmup=1",
    "+sagc.dwell=1",
    # Seeded rollouts: a step that is played again gives the same texts, if it begins from the same state.
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={Path(__file__).with_name('e2e_agent.yaml')}",
    "actor_rollout_ref.rollout.agent.default_agent_loop=seeded_agent",
    "trainer.save_freq=2",
)
LAST_STEP = 5
SABOTEUR = "trainer.checkpoint_callback_class=e2e_saboteur.Saboteur"


@dataclass
class Killed:
    """A run that was killed after the checkpoint of step 2 and before that of step 4, and its continuation to step 5.

    Attributes:
        last_step: the last step of the first attempt that is on record.
    """

    first_code: int
    run: TrainingRun
    last_step: int


def processes_of_this_test(title: str, since: float) -> list[psutil.Process]:
    """Descendants of this process whose title holds `title`, of the run that was started at the moment `since`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if title in " ".join(process.cmdline()) and process.create_time() >= since:
                found.append(process)
    return found


# The real interpreter for the driver: the warm one's would be a fork, and this process a client of it.
DRIVER = {"PYTHON": sys.executable}


def kill_from_outside(task: Path, folder: Path, victim: str) -> int:
    """Kill the driver or an actor in step 4; returns the driver's exit code."""
    began = time.time() - 1
    process = start_training(task, folder, [*OVERRIDES, "trainer.total_training_steps=500"], DRIVER)
    try:
        wait_for(folder, "step:3 - ")
        deadline = time.monotonic() + 30
        while not (folder / "sagc" / "steps" / file_name(3, 3, 1)).exists():
            assert time.monotonic() < deadline, "step 3 has not been recorded"
            time.sleep(0.01)
        left = psutil.Process(process.pid).children(recursive=True)
        if victim == "driver":
            process.kill()
        else:
            found = processes_of_this_test(victim, since=began)
            assert found, f"no process called {victim}"
            for one in found:
                one.kill()
        process.wait(120)
    finally:
        end(process)
    # Ray takes its cluster down when the driver is gone; what it leaves would only be in the way of the next run.
    _, alive = psutil.wait_procs(left, timeout=20)
    for orphan in alive:
        with contextlib.suppress(psutil.Error):
            orphan.kill()
    # As if the kill had come while step 4 was saved: a state that is there, under a checkpoint that never was complete.
    half = folder / "global_step_4"
    half.mkdir()
    (half / "sagc_state.json").write_text('{"controller": {"version": 1, "si')
    return process.returncode


def kill_at(task: Path, folder: Path, moment: str) -> int:
    """Let the process that trains kill itself; returns the driver's exit code."""
    overrides = [*OVERRIDES, "trainer.total_training_steps=500", SABOTEUR]
    process = start_training(task, folder, overrides, {**DRIVER, "SAGC_SABOTAGE": moment})
    try:
        process.wait(TIMEOUT)
    finally:
        end(process)
    return process.returncode


# Who or when -> the last step on record.
MOMENTS = {"driver": 3, "ray::TaskRunner": 3, "kill_in_checkpoint:4": 3, "kill_in_record:3": 2}


@pytest.fixture(scope="module", params=MOMENTS)
def killed(request: pytest.FixtureRequest, task: Path, runs: Path) -> Killed:
    moment = request.param
    folder = runs / f"killed_and_resumed_{moment.replace(':', '')}"
    code = kill_at(task, folder, moment) if moment.startswith("kill_") else kill_from_outside(task, folder, moment)
    again = start_training(task, folder, [*OVERRIDES, f"trainer.total_training_steps={LAST_STEP}"], DRIVER)
    return Killed(code, finish(again, folder).check(), MOMENTS[moment])


def test_it_was_killed_and_goes_on_from_the_last_whole_checkpoint(killed: Killed) -> None:
    assert killed.first_code != 0
    assert "sagc: resumed at step 2: next size" in killed.run.log
    assert "Traceback" not in killed.run.log.partition("sagc: resumed at step 2")[2]


def test_every_step_is_on_record_once_and_the_dead_branch_apart(killed: Killed) -> None:
    run = sagc_verl.load_run(killed.run.folder)
    assert run.warnings == []
    assert run.steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert run.steps["attempt"].tolist() == [1, 1, 2, 2, 2]
    dead = run.table("steps", branch="dead")
    assert set(dead["attempt"]) <= {1} and dead["step"].tolist()[:1] == ([3] if killed.last_step == 3 else [])
    counts = run.rollouts.groupby("step").size()
    assert counts.to_dict() == {step: 8 * n for step, n in zip(run.steps["step"], run.steps["n"], strict=True)}
    assert not run.rollouts.duplicated(["step", "uid", "session"]).any()
    assert run.groups.groupby("step").size().tolist() == [8] * LAST_STEP
    assert [entry["step"] for entry in run.info["resumes"]] == [0, 2]


def test_the_controller_goes_on_where_the_checkpoint_was(killed: Killed) -> None:
    steps = sagc_verl.load_run(killed.run.folder).steps.set_index("step")
    assert steps["n"].tolist()[1:] == steps["next_n"].tolist()[:-1]
    cap = 3.0  # of rule=feasible
    queue = 0.0
    for step in steps.index:
        queue = float(np.clip(queue + steps["straggler_rate"][step] - BUDGET, -cap, cap))
        assert steps["queue"][step] == pytest.approx(queue, abs=1e-6)
    excess = (steps["straggler_rate"] - BUDGET).cumsum()
    assert steps["cumulative_excess"].tolist() == pytest.approx(excess.tolist(), abs=1e-6)
    state = read_state(killed.run.folder / "global_step_4")["controller"]
    assert (state["step"], state["seen_steps"], state["faults"]) == (4, 4, 0)
    assert state["size"] == steps["n"][5]


def test_the_step_played_again_is_the_step_that_was_lost(killed: Killed) -> None:
    """Same weights, prompts, size and seeds: the same rollouts, and so the same decision after them."""
    if killed.last_step < 3:
        pytest.skip("killed while the step was being recorded: there is nothing to compare with")
    run = sagc_verl.load_run(killed.run.folder)
    dead = run.table("steps", branch="dead").set_index("step")
    live = run.steps.set_index("step")
    for name in ("n", "next_n", "straggler_rate", "queue"):
        assert live[name][3] == dead[name][3], name
    lengths = [
        sorted(run.table("rollouts", steps=3, branch=branch)["response_tokens"].tolist()) for branch in ("live", "dead")
    ]
    assert lengths[0] == lengths[1]


def test_no_fault_of_ours_was_counted(killed: Killed) -> None:
    assert (sagc_verl.load_run(killed.run.folder).steps["sagc/faults"] == 0).all()


# ---- our own parts fail, and rollouts do


@pytest.fixture(scope="module")
def sabotaged(task: Path, runs: Path) -> TrainingRun:
    """Step 2: nothing can be collected, no state be saved; 3: the disk is full for a while; 4: a bug in the controller;
    5: a bug in the records; 6: a rollout fails in every group with an even prompt index."""
    folder = runs / "sabotaged"
    overrides = [
        *OVERRIDES,
        "actor_rollout_ref.rollout.agent.default_agent_loop=failing_agent",
        "trainer.total_training_steps=6",
        SABOTEUR,
    ]
    plan = {"SAGC_SABOTAGE": "collect:2,save:2,record:3,observe:4,rows:5", "SAGC_FAIL_IN_STEP": "6"}
    return finish(start_training(task, folder, overrides, plan), folder).check()


def test_training_goes_on_through_every_fault_of_ours(sabotaged: TrainingRun) -> None:
    assert [probe["step"] for probe in sabotaged.probes] == [1, 2, 3, 4, 5, 6]
    log = sabotaged.log
    for words in (
        "the step's rollouts could not be collected: RuntimeError('sabotaged: collect')",
        "the controller state could not be saved",
        "training goes on, will try again",
        "the step could not be observed: RuntimeError('sabotaged: observe')",
        "the step's rollouts cannot go on record: RuntimeError('sabotaged: rows')",
    ):
        assert words in log, words


def test_every_fault_is_counted_and_holds_the_size(sabotaged: TrainingRun) -> None:
    faults = {step: metrics["sagc/faults"] for step, metrics in sabotaged.metrics.items()}
    assert faults[1] == 0
    assert all(faults[step] > faults[step - 1] for step in (2, 4, 5))
    sizes = [probe["group_sizes"][-1] for probe in sabotaged.probes]
    assert sizes[2] == sizes[1] and sizes[4] == sizes[3]  # after the steps of which nothing could be learnt


def test_what_can_be_recorded_is(sabotaged: TrainingRun) -> None:
    run = sagc_verl.load_run(sabotaged.folder)
    assert run.steps["step"].tolist() == [1, 2, 3, 4, 5, 6]
    rows = run.rollouts.groupby("step").size().to_dict()
    assert rows == {step: 8 * int(run.steps["n"][step - 1]) for step in (1, 3, 6)}


def test_failed_rollouts_are_left_out_and_counted(sabotaged: TrainingRun) -> None:
    rollouts = sagc_verl.load_run(sabotaged.folder).table("rollouts", steps=6)
    failed, n = rollouts[rollouts["status"] == "failed"], int(rollouts["n"].iloc[0])
    assert set(failed["session"]) == {0}
    assert sorted(failed["prompt_index"]) == sorted({i for i in rollouts["prompt_index"] if int(i) % 2 == 0})
    assert sabotaged.metrics[6]["sagc/rollouts_failed"] == len(failed) > 0
    whole = 8 - len(failed)
    assert sabotaged.probes[5]["group_sizes"] == [n - 1] * len(failed) + [n] * whole
    assert sabotaged.metrics[6]["sagc/groups"] == 8
