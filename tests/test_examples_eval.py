"""Scoring a validation dump: accuracy with intervals, lengths, and what never came."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EVAL = Path(__file__).resolve().parent.parent / "examples" / "eval"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"examples_eval_{name}", EVAL / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


score = load("score")


def dump(folder: Path, rows: list[tuple[str, str, float, str]], step: int = 20) -> Path:
    """rows: uid, benchmark, acc, output: as veRL writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "input": "?",
            "output": output,
            "gts": "1",
            "score": acc,
            "step": step,
            "acc": acc,
            "benchmark": name,
            "uid": uid,
        }
        for uid, name, acc, output in rows
    ]
    (folder / f"{step}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def run(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, str(EVAL / "score.py"), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def test_accuracy_per_benchmark(tmp_path: Path) -> None:
    rows = [(f"p{i}_0_0", "gsm8k", float(i < 8), "x" * (i + 1)) for i in range(10)] + [("q_0_0", "aime", 0.0, "long")]
    done = run("--generations", dump(tmp_path / "dump", rows), "--out", tmp_path / "eval" / "step_20.json")
    assert "gsm8k" in done.stdout
    result = json.loads((tmp_path / "eval" / "step_20.json").read_text())
    assert result["kind"] == "sagc_verl.eval" and result["step"] == 20 and result["length_unit"] == "characters"
    found = result["sources"]["gsm8k"]
    assert found["accuracy"] == 0.8 and found["interval"] == "wilson"
    assert found["length_mean"] == 5.5 and found["length_mean_right"] == 4.5 and found["length_mean_wrong"] == 9.5
    assert result["sources"]["aime"]["length_mean_right"] is None
    assert found["at_cap_share"] is None


def test_answers_that_never_came_are_wrong(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"data_source": ["gsm8k"] * 4}), tmp_path / "val.parquet")
    generations = dump(tmp_path / "dump", [("p_0_0", "gsm8k", 1.0, "x"), ("q_0_0", "gsm8k", 1.0, "x")])
    run("--generations", generations, "--out", tmp_path / "o.json", "--val-files", f"['{tmp_path}/val.parquet']")
    found = json.loads((tmp_path / "o.json").read_text())["sources"]["gsm8k"]
    assert (found["answers"], found["missing"], found["accuracy"]) == (2, 2, 0.5)


def test_several_answers_per_prompt_are_resampled_by_prompt() -> None:
    def answers(correct: list[bool]) -> list[Any]:
        return [score.Answer("aime", str(i // 4), mark, float(mark), 5) for i, mark in enumerate(correct)]

    clustered = score.summarise(answers(([True] * 4 + [False] * 4) * 10), None, None)
    spread = score.summarise(answers([True, False] * 40), None, None)
    assert clustered["interval"] == "bootstrap over prompts"
    assert clustered["accuracy"] == spread["accuracy"] == 0.5
    assert clustered["low"] < 0.4 < 0.6 < clustered["high"]
    assert spread["low"] == spread["high"] == 0.5
    assert score.summarise(answers([True] * 8), asked=12, cap=None)["accuracy"] == pytest.approx(8 / 12)


def test_only_the_last_output_of_a_session_counts(tmp_path: Path) -> None:
    folder = dump(tmp_path, [("p_0_0", "gsm8k", 0.0, "first"), ("p_0_1", "gsm8k", 1.0, "last one")])
    (answer,), step = score.read_answers(folder, lambda texts: [len(text) for text in texts])
    assert answer.correct and answer.length == len("last one") and step == 20


def test_the_latest_dump_counts(tmp_path: Path) -> None:
    dump(tmp_path, [("p_0_0", "gsm8k", 0.0, "x")], step=9)
    dump(tmp_path, [("p_0_0", "gsm8k", 1.0, "x")], step=10)
    assert score.read_answers(tmp_path, lambda texts: [1] * len(texts))[1] == 10


@pytest.mark.parametrize(("right", "total"), [(8, 10), (1, 20), (150, 500), (499, 500)])
def test_wilson_bounds_lie_one_quantile_from_the_share(right: int, total: int) -> None:
    """What defines the interval: at a bound p, the share is z standard errors of p away."""
    for bound in score.wilson(right, total):
        away = abs(right / total - bound) / (bound * (1 - bound) / total) ** 0.5
        assert away == pytest.approx(score.NORMAL_QUANTILE)


def test_wilson_stays_within_zero_and_one() -> None:
    assert score.wilson(0, 20)[0] == 0.0 and 0.1 < score.wilson(0, 20)[1] < 0.2
    assert score.wilson(20, 20)[1] == 1.0


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    assert "did the validation finish?" in run("--generations", tmp_path, "--out", tmp_path / "o", code=2).stderr
    (tmp_path / "1.jsonl").write_text('{"uid": "p_0_0", "output": "x", "score": 1}\n')
    said = run("--generations", tmp_path, "--out", tmp_path / "o", code=2).stderr
    assert said.startswith("error: ") and "no column 'acc'; validate with examples/eval/eval_reward.py" in said


def test_the_reward_names_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    reward = load("eval_reward")
    info = {"info": json.dumps({"question": "1 + 1 =", "answer": "2", "metadata": {}})}
    found = reward.compute_score("reasoning_gym/chain_sum", "<answer>2</answer>", "2", info)
    assert found == {"score": 1.0, "acc": 1.0, "pred": "2", "benchmark": "reasoning_gym/chain_sum"}


def test_the_reward_leaves_other_benchmarks_to_verl() -> None:
    pytest.importorskip("verl")
    reward = load("eval_reward")
    assert reward.compute_score("openai/gsm8k", "so #### 72", "72")["acc"] == 1.0
    found = reward.compute_score("aime2024", "Answer: 34", "33")
    assert found["acc"] == 0.0 and found["score"] == -1.0 and found["benchmark"] == "aime2024"
