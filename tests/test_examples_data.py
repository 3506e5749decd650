"""Data preparation: from local files, and reasoning-gym end to end. Nothing is downloaded."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pq = pytest.importorskip("pyarrow.parquet")

DATA = Path(__file__).resolve().parent.parent / "examples" / "data"
COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DATA))
    return lambda name: importlib.import_module(name)


def prepare(script: str, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DATA / f"{script}.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def rows_of(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path)
    assert table.column_names == COLUMNS
    rows = table.to_pylist()
    for row in rows:
        assert row["prompt"][-1]["role"] == "user" and row["prompt"][-1]["content"]
        assert row["reward_model"]["style"] == "rule"
        assert set(row["extra_info"]) == {"index", "split", "info"}
        json.loads(row["extra_info"]["info"])
    return rows


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def gsm8k_source(folder: Path) -> Path:
    row = {"question": "How many?", "answer": "Two and a thousand.\n#### 1,002"}
    write_lines(folder / "main" / "train-00000-of-00001.jsonl", [row] * 30)
    write_lines(folder / "main" / "test-00000-of-00001.jsonl", [row])
    write_lines(folder / "socratic" / "train-00000-of-00001.jsonl", [{"other": 1}])
    return folder


def test_gsm8k(tmp_path: Path) -> None:
    source = gsm8k_source(tmp_path / "source")
    prepare("prepare_gsm8k", "--source", source, "--out", tmp_path / "out", "--train-limit", "7")
    train, test = rows_of(tmp_path / "out" / "train.parquet"), rows_of(tmp_path / "out" / "test.parquet")
    assert len(train) == 7 and len(test) == 1
    assert test[0]["data_source"] == "openai/gsm8k"
    assert test[0]["reward_model"]["ground_truth"] == "1002"
    assert "####" in test[0]["prompt"][0]["content"]
    assert test[0]["extra_info"]["split"] == "test"


def test_what_is_there_is_kept_unless_told(tmp_path: Path) -> None:
    source = gsm8k_source(tmp_path / "source")
    words = ("--source", source, "--out", tmp_path / "out")
    prepare("prepare_gsm8k", *words)
    refused = prepare("prepare_gsm8k", *words, code=2)
    assert "exists: pass --overwrite" in refused.stderr and refused.stderr.count("\n") == 1
    prepare("prepare_gsm8k", *words, "--overwrite")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["test.parquet", "train.parquet"]


def test_a_failed_preparation_leaves_nothing(tmp_path: Path, module: Any) -> None:
    shared = module("verl_rows")

    def broken():
        yield {"data_source": 3}

    with pytest.raises(TypeError):
        shared.write_parquet(broken(), tmp_path / "train.parquet")
    assert list(tmp_path.iterdir()) == []


def test_the_wrong_data_set_is_said_in_one_line(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", [{"text": "no"}])
    write_lines(tmp_path / "test.jsonl", [{"text": "no"}])
    said = prepare("prepare_gsm8k", "--source", tmp_path, "--out", tmp_path / "out", code=2).stderr
    assert said == "error: GSM8K: no column 'answer' (it has text): is this the right data set?\n"
    said = prepare("prepare_gsm8k", "--source", "./nowhere", "--out", tmp_path / "out", code=2).stderr
    assert said == "error: --source ./nowhere: no such file or folder\n"


def test_no_network_is_said_plainly(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    shared = module("verl_rows")

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(shared.DataError, match="hf download openai/gsm8k") as caught:
        list(shared.read_source("openai/gsm8k", "train"))
    assert "\n" not in str(caught.value)


def test_math_and_math500(tmp_path: Path) -> None:
    row = {"problem": "x?", "solution": "So \\boxed{\\frac{1}{2}}.", "level": "Level 1", "type": "Algebra"}
    write_lines(tmp_path / "math" / "train.jsonl", [row])
    write_lines(tmp_path / "math" / "test.jsonl", [row])
    write_lines(tmp_path / "math500" / "test.jsonl", [{**row, "answer": "0.5"}])
    words = ("--source", tmp_path / "math", "--math500", tmp_path / "math500", "--out", tmp_path / "out")
    prepare("prepare_math", *words)
    assert rows_of(tmp_path / "out" / "train.parquet")[0]["reward_model"]["ground_truth"] == "\\frac{1}{2}"
    chosen = rows_of(tmp_path / "out" / "math500.parquet")[0]
    assert chosen["reward_model"]["ground_truth"] == "0.5"
    assert chosen["data_source"] == "HuggingFaceH4/MATH-500"


@pytest.mark.parametrize(
    ("text", "answer"),
    [("\\boxed{1} then \\boxed{a{b}c}", "a{b}c"), ("\\boxed{open", None), ("none", None), ("\\boxed{}", "")],
)
def test_last_boxed(module: Any, text: str, answer: str | None) -> None:
    assert module("verl_rows").last_boxed(text) == answer


def test_dapo17k_holds_each_problem_once(tmp_path: Path) -> None:
    def row(text: str) -> dict[str, Any]:
        return {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"ground_truth": 34, "style": "rule"},
            "extra_info": {"index": text},
        }

    write_lines(tmp_path / "dapo" / "data" / "dapo-math-17k.jsonl", [row("a"), row("b"), row("a")])
    write_lines(tmp_path / "aime" / "aime-2024.jsonl", [row("c"), row("c")])
    prepare("prepare_dapo17k", "--source", tmp_path / "dapo", "--aime", tmp_path / "aime", "--out", tmp_path / "out")
    train = rows_of(tmp_path / "out" / "train.parquet")
    assert [item["prompt"][0]["content"] for item in train] == ["a", "b"]
    assert train[0]["reward_model"]["ground_truth"] == "34"
    (aime,) = rows_of(tmp_path / "out" / "aime2024.parquet")
    assert aime["data_source"] == "aime2024"


def test_files_of_different_origin_can_be_mixed(tmp_path: Path) -> None:
    """veRL concatenates the files of data.train_files, which needs one schema."""
    test_gsm8k(tmp_path / "gsm8k")
    test_math_and_math500(tmp_path / "math")
    first = pq.read_schema(tmp_path / "gsm8k" / "out" / "train.parquet")
    assert first == pq.read_schema(tmp_path / "math" / "out" / "train.parquet")


def in_process(script: Any, monkeypatch: pytest.MonkeyPatch):
    """Calls a script's main() with these arguments: importing reasoning-gym takes seconds."""

    def call(*words: str | Path) -> None:
        monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, words)])
        script.main()

    return call


def test_reasoning_gym_end_to_end(tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    sizes = ("--train-size", "10", "--test-size", "4", "--tasks", "chain_sum,countdown")
    make = in_process(module("prepare_reasoning_gym"), monkeypatch)
    make(*sizes, "--out", tmp_path / "a")
    make(*sizes, "--out", tmp_path / "b")
    make(*sizes, "--out", tmp_path / "c", "--seed", "2")
    train, test = rows_of(tmp_path / "a" / "train.parquet"), rows_of(tmp_path / "a" / "test.parquet")
    assert train == rows_of(tmp_path / "b" / "train.parquet"), "the seed alone decides"

    def questions(rows: list[dict[str, Any]]) -> set[str]:
        return {row["prompt"][-1]["content"] for row in rows}

    assert len(questions(train)) == 10 and len(questions(test)) == 4
    assert not questions(train) & questions(test)
    assert not questions(train) & questions(rows_of(tmp_path / "c" / "train.parquet"))
    assert {row["data_source"] for row in train} == {"reasoning_gym/chain_sum", "reasoning_gym/countdown"}
    assert [row["extra_info"]["index"] for row in train] == list(range(10))

    score = module("reasoning_gym_reward").compute_score
    for row in train + test:
        truth = row["reward_model"]["ground_truth"]
        right = score(
            row["data_source"], f"Well, <answer>0</answer> no: <answer> {truth} </answer>", truth, row["extra_info"]
        )
        assert right == {"score": 1.0, "acc": 1.0, "pred": truth}
        silent = score(row["data_source"], f"It is {truth}.", truth, row["extra_info"])
        assert silent == {"score": 0.0, "acc": 0.0, "pred": ""}
        nonsense = score(row["data_source"], "<answer>((?</answer>", truth, row["extra_info"])
        assert nonsense["acc"] == 0.0 and nonsense["score"] < 1.0


def test_reasoning_gym_refuses_what_it_cannot_make(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("reasoning_gym")
    make = in_process(module("prepare_reasoning_gym"), monkeypatch)

    def refused(*words: str) -> str:
        with pytest.raises(module("verl_rows").DataError) as caught:
            make("--out", tmp_path / "out", *words)
        return str(caught.value)

    assert "task 'chain_summ': unknown" in refused("--tasks", "chain_summ")
    assert "unexpected keyword" in refused("--tasks", "chain_sum", "--task-config", '{"chain_sum": {"x": 1}}')
    narrow = '{"chain_sum": {"min_terms": 2, "max_terms": 2, "max_digits": 1}}'
    assert "different test problems" in refused(
        "--tasks", "chain_sum", "--task-config", narrow, "--test-size", "2000", "--train-size", "1"
    )
    assert not (tmp_path / "out").exists()
