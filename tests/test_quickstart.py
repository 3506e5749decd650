"""The quickstart without its training: options, the shell script before any install, log lines, task and rewards."""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "examples" / "quickstart"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(QUICKSTART))
    monkeypatch.delitem(sys.modules, "reward", raising=False)
    return importlib.import_module


@pytest.fixture
def bare(tmp_path: Path):
    """Calls scripts/quickstart.sh of a checkout without an environment, where an install would leave its mark."""
    for name in ("scripts", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "scripts").unlink()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "quickstart.sh").write_bytes((ROOT / "scripts" / "quickstart.sh").read_bytes())
    setup = tmp_path / "scripts" / "setup_cpu.sh"
    setup.write_text('#!/bin/sh\necho "setup:$*"\nexit 9\n')
    setup.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "VENV"}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(tmp_path / "scripts" / "quickstart.sh"), *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environment, "PYTHON": sys.executable},
        )

    return call


def test_help_needs_no_install(bare) -> None:
    done = bare("--steps", "3", "--help")
    assert done.returncode == 0 and "setup:" not in done.stdout
    assert all(word in done.stdout for word in ("--model", "--steps", "--out", "--seed", "smollm2", "40", "6"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--steps", "many"], "--steps"),
        (["--seed", "-1"], "--seed -1: must be at least 0"),
        (["--model", "gpt"], "'walk', 'smollm2'|walk, smollm2"),
        (["--out", __file__], "is not a folder"),
        (["--step", "3"], "--step"),
        (["more"], "more"),
    ],
)
def test_wrong_options_are_refused_before_the_install(bare, words: list[str], complaint: str) -> None:
    done = bare(*words)
    assert done.returncode == 2 and "setup:" not in done.stdout
    assert any(part in done.stderr.splitlines()[-1] for part in complaint.split("|"))


def test_only_smollm2_asks_for_more_packages(bare) -> None:
    assert bare("--steps", "2").stdout == "setup:\n"
    assert bare("--model", "smollm2").stdout == "setup:--extras smollm2\n"
    assert bare("--model=smollm2").returncode == 9, "a failed install ends it"


def test_defaults_follow_the_model(module) -> None:
    options = module("options")
    walk, smollm2 = options.parse_options([]), options.parse_options(["--model", "smollm2"])
    assert walk.model is options.MODELS["walk"] and walk.steps == 40 and walk.out == Path("outputs/quickstart")
    assert smollm2.steps < walk.steps and smollm2.out != walk.out, "one model must not overwrite the other's runs"
    assert options.parse_options(["--model", "smollm2", "--steps", "2", "--out", "here"]).steps == 2
    for model in options.MODELS.values():
        assert (QUICKSTART / model.make).exists() and os.access(QUICKSTART / model.train, os.X_OK)


def test_metrics_of_reads_a_line_of_the_console_logger(module) -> None:
    metrics_of = module("quickstart").metrics_of
    line = "(Runner pid=7) step:12 - sagc/size:8 - critic/rewards/mean:np.float64(0.5) - timing_s/step:1.5 - a:b:2e-3"
    assert metrics_of(line) == (12, {"sagc/size": 8.0, "timing_s/step": 1.5, "a:b": 0.002})
    assert math.isnan(metrics_of("step:3 - only:nan")[1]["only"])
    for other in ("", "Training Progress: 5%", "global_step:3", "step: none"):
        assert metrics_of(other) is None


def test_a_walk_goes_one_up_or_down_and_stays_in_its_bounds(module) -> None:
    make_task = module("make_task")
    rng = random.Random(3)
    for _ in range(300):
        positions = make_task.walk(rng.randint(2, make_task.TOP), rng)
        assert 1 <= len(positions) <= 240
        assert all(abs(b - a) == 1 for a, b in zip([0, *positions], positions, strict=False))
        assert min(positions) >= 0 and max(positions) <= make_task.HIGHEST


def test_walks_are_right_about_half_the_time_and_have_a_long_tail(module) -> None:
    make_task, reward = module("make_task"), module("reward")
    rng = random.Random(4)
    goals = [rng.randint(2, make_task.TOP) for _ in range(2000)]
    walks = [make_task.walk(goal, rng) for goal in goals]
    scores = [
        reward.compute_score("walk", " ".join(map(str, walk)), str(goal))
        for walk, goal in zip(walks, goals, strict=True)
    ]
    assert 0.3 < sum(scores) / len(scores) < 0.8
    lengths = sorted(map(len, walks))
    assert lengths[-20] > 4 * lengths[len(lengths) // 2], "the longest percent: what makes groups straggle"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("1 2 3", 1.0),
        ("1 2 1 2 3", 1.0),
        ("1 2", 0.0),
        ("1 2 3 4", 0.0),
        ("2 3", 0.0),
        ("1 3", 0.0),
        ("1 2 3 <end>", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_is_for_arriving(module, answer: str, score: float) -> None:
    assert module("reward").compute_score("walk", answer, "3", {"index": 1}) == score


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


def test_the_walk_task_has_its_goals_in_range(module, tmp_path: Path) -> None:
    make_task = module("make_task")
    make_task.make_data(tmp_path, seed=1, train=50, validation=5)
    rows = rows_of(tmp_path / "train.parquet")
    assert len(rows) == 50 and len(rows_of(tmp_path / "validation.parquet")) == 5
    for row in rows:
        goal = row["reward_model"]["ground_truth"]
        assert row["prompt"] == [{"role": "user", "content": f"goal {goal}"}] and 2 <= int(goal) <= make_task.TOP


def test_the_sums_can_be_solved_in_the_form_that_is_shown(module, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    make_smollm2 = module("make_smollm2")
    make_smollm2.make_data(tmp_path, seed=1, train=40, validation=8)
    score = module("reasoning_gym_reward").compute_score
    rows = rows_of(tmp_path / "train.parquet") + rows_of(tmp_path / "validation.parquet")
    assert len({row["prompt"][-1]["content"] for row in rows}) == 48
    for row in rows:
        shown = row["prompt"][2]["content"]
        assert [message["role"] for message in row["prompt"]] == ["system", *["user", "assistant"] * 2, "user"]
        truth = row["reward_model"]["ground_truth"]
        given = (row["data_source"], truth, row["extra_info"])
        assert score(given[0], f"so it is <answer>{truth}</answer>", *given[1:])["score"] == 1.0
        assert score(given[0], truth, *given[1:])["score"] == 0.0, "no answer in the form asked for"
        if truth != "17":
            assert score(given[0], shown, *given[1:])["score"] < 1.0, "a copy of the solved sum is no answer"


def test_a_task_that_is_there_is_not_made_again(module, tmp_path: Path, monkeypatch, capsys) -> None:
    make_smollm2 = module("make_smollm2")
    made: list[str] = []
    monkeypatch.setattr(make_smollm2, "make_model", lambda folder: made.append("model") or 135_000_000)
    monkeypatch.setattr(make_smollm2, "make_data", lambda folder, seed: made.append("data"))
    monkeypatch.setattr(sys, "argv", ["make_smollm2.py", "--out", str(tmp_path)])
    make_smollm2.main()
    make_smollm2.main()
    assert made == ["data", "model"] and "already made" in capsys.readouterr().out
    (tmp_path / "task.json").write_text(json.dumps({"steps": 400, "seed": 1}))  # the walk's, in the same folder
    make_smollm2.main()
    assert made == ["data", "model"] * 2


def test_smollm2_says_which_package_is_missing(module, monkeypatch: pytest.MonkeyPatch) -> None:
    make_smollm2 = module("make_smollm2")
    monkeypatch.setattr(make_smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"setup_cpu\.sh --extras smollm2"):
        make_smollm2.gguf_folder()


@pytest.fixture
def given(tmp_path: Path):
    """Calls a training script of the quickstart with an interpreter that prints; returns key -> value for Hydra."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)

    def call(script: str, *words: str) -> dict[str, str]:
        done = subprocess.run(
            [str(QUICKSTART / script), *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHON": str(python), "TASK": "/task", "OUT": "/out"},
            check=True,
        )
        pairs = [line.partition("=") for line in done.stdout.splitlines() if "=" in line]
        return {key: value for key, _, value in pairs}  # as Hydra: the last wins

    return call


def test_train_names_the_run_and_its_folder(given) -> None:
    last = given("train.sh", "mine", "+sagc.budget=0.1", "actor_rollout_ref.rollout.n=4")
    assert last["trainer.experiment_name"] == "mine" and last["trainer.default_local_dir"] == "/out/mine"
    assert last["+sagc.budget"] == "0.1" and last["actor_rollout_ref.rollout.n"] == "4"


def test_train_without_a_name_takes_every_word_as_an_override(given) -> None:
    last = given("train.sh", "trainer.experiment_name=swept", "trainer.default_local_dir=/sweep/swept")
    assert last["trainer.experiment_name"] == "swept" and last["trainer.default_local_dir"] == "/sweep/swept"


def test_train_needs_a_word() -> None:
    done = subprocess.run([str(QUICKSTART / "train.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage" in done.stderr


def test_train_smollm2_hands_its_own_settings_to_train_sh(given) -> None:
    last = given("train_smollm2.sh", "mine", "trainer.total_training_steps=2")
    assert last["trainer.total_training_steps"] == "2" and last["trainer.experiment_name"] == "mine"
    assert last["trainer.default_local_dir"] == "/out/mine" and last["data.train_files"] == "/task/train.parquet"
    assert int(last["data.max_response_length"]) <= 96
    longest = int(last["data.max_prompt_length"]) + int(last["data.max_response_length"])
    assert longest <= int(last["actor_rollout_ref.rollout.max_model_len"])
    assert last["reward.custom_reward_function.path"].endswith("reasoning_gym_reward.py")
