"""Accuracy with intervals, and output length, from a validation that veRL dumped.

    python3 examples/eval/score.py --generations eval/generations --out eval/step_200.json --model Qwen/Qwen3-8B

run_eval.sh calls it. Needs numpy, and transformers where --model is given (lengths in tokens rather than characters).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

LEVEL = 0.95
NORMAL_QUANTILE = 1.959963984540054  # of LEVEL, two-sided
RESAMPLES = 2000
KIND = "sagc_verl.eval"
VERSION = 1


class ScoreError(ValueError):
    """Input that cannot be scored. The text is one line for the user."""


@dataclass(frozen=True)
class Answer:
    """One answer of the model.

    Attributes:
        data_source: the benchmark.
        prompt: the prompt's id within this dump; answers to one prompt share it.
        correct: whether it is right.
        score: the scorer's own number.
        length: tokens or characters.
    """

    data_source: str
    prompt: str
    correct: bool
    score: float
    length: int


def read_answers(path: Path, measure: Callable[[list[str]], list[int]]) -> tuple[list[Answer], int]:
    """The answers in a dump of veRL's (trainer.validation_data_dir).

    Args:
        path: a JSON lines file, or a folder with one; of several, the highest step counts.
        measure: the lengths of texts.

    Returns:
        One answer per session (of a multi-turn session, the last output), and the training step of the dump.

    Raises:
        ScoreError: no file, or rows without the columns that eval_reward.py adds.
    """
    file = _dump_file(path)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not rows:
        raise ScoreError(f"{file}: empty")
    for column in ("uid", "output", "score", "acc", "benchmark"):
        if column not in rows[0]:
            raise ScoreError(f"{file}: no column {column!r}; validate with examples/eval/eval_reward.py as the reward")
    final: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
    for row in rows:
        prompt, session, output = row["uid"].rsplit("_", 2)
        if (prompt, session) not in final or int(output) > final[prompt, session][0]:
            final[prompt, session] = (int(output), row)
    lengths = measure([row["output"] for _, row in final.values()])
    answers = [
        Answer(row["benchmark"], prompt, bool(row["acc"] >= 1.0), float(row["score"]), length)
        for ((prompt, _), (_, row)), length in zip(final.items(), lengths, strict=True)
        if row["acc"] is not None and row["benchmark"] is not None
    ]
    return answers, int(rows[0].get("step", 0))


def _dump_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = [file for file in path.glob("*.jsonl") if file.stem.isdigit()]
    if not files:
        raise ScoreError(f"{path}: no <step>.jsonl in it; did the validation finish?")
    return max(files, key=lambda file: int(file.stem))


def summarise(answers: Sequence[Answer], asked: int | None, cap: int | None, seed: int = 1) -> dict[str, Any]:
    """Accuracy and length of one benchmark.

    Args:
        answers: of this benchmark alone.
        asked: answers that were asked for; those that never came count as wrong. None: as many as there are.
        cap: the largest length possible, for the share of answers cut off there. None: unknown.
        seed: of the bootstrap.

    Returns:
        accuracy and its 95% interval (low, high): Wilson's where every prompt has one answer, else a bootstrap over
        prompts, since answers to one prompt are not independent.
    """
    by_prompt: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        by_prompt[answer.prompt].append(answer.correct)
    missing = max((asked or 0) - len(answers), 0)
    total = len(answers) + missing
    right = sum(answer.correct for answer in answers)
    lengths = np.array([answer.length for answer in answers], dtype=float)
    correct = np.array([answer.correct for answer in answers], dtype=bool)
    if max(map(len, by_prompt.values())) == 1:
        interval, (low, high) = "wilson", wilson(right, total)
    else:
        per_prompt = max(map(len, by_prompt.values()))
        shares = [sum(marks) / per_prompt for marks in by_prompt.values()]
        shares += [0.0] * round((total - per_prompt * len(shares)) / per_prompt)
        interval, (low, high) = "bootstrap over prompts", bootstrap(shares, seed)
    return {
        "prompts": len(by_prompt),
        "answers": len(answers),
        "missing": missing,
        "accuracy": right / total,
        "low": low,
        "high": high,
        "level": LEVEL,
        "interval": interval,
        "score_mean": float(np.mean([answer.score for answer in answers])),
        "length_mean": float(lengths.mean()),
        "length_median": float(np.median(lengths)),
        "length_p95": float(np.quantile(lengths, 0.95)),
        "length_mean_right": float(lengths[correct].mean()) if correct.any() else None,
        "length_mean_wrong": float(lengths[~correct].mean()) if not correct.all() else None,
        "at_cap_share": float((lengths >= cap).mean()) if cap else None,
    }


def wilson(right: int, total: int) -> tuple[float, float]:
    """Wilson's score interval for a share (E. B. Wilson, JASA 1927), at LEVEL."""
    share = right / total
    spread = NORMAL_QUANTILE**2 / total
    centre = (share + spread / 2) / (1 + spread)
    half = NORMAL_QUANTILE * sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def bootstrap(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, at LEVEL."""
    sample = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).integers(0, len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def asked_answers(files: Sequence[Path], n: int) -> Counter[str]:
    """How many answers a validation on these parquet files asks for, per data source."""
    import pyarrow.parquet as pq

    asked: Counter[str] = Counter()
    for file in files:
        asked.update(pq.read_table(file, columns=["data_source"]).column("data_source").to_pylist())
    return Counter({source: rows * n for source, rows in asked.items()})


def token_counter(model: str) -> Callable[[list[str]], list[int]]:
    """Lengths in the model's tokens. The dump holds text, so it is encoded again: close to, not exactly, what ran."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda texts: [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def write_json(value: dict[str, Any], path: Path) -> None:
    """Writes beside the path and renames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


def _paths(text: str) -> list[Path]:
    """Hydra's list syntax or plain commas: ['a.parquet','b.parquet']."""
    return [Path(part.strip(" '\"")).expanduser() for part in text.strip("[] ").split(",") if part.strip(" '\"")]


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--generations", type=Path, required=True, help="trainer.validation_data_dir, or one file")
    options.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    options.add_argument("--model", default=None, help="whose tokens to count lengths in (default: characters)")
    options.add_argument("--checkpoint", default=None, help="noted in the file")
    options.add_argument("--step", type=int, default=None, help="training step of the model (default: the dump's)")
    options.add_argument("--val-files", type=_paths, default=[], help="to count answers that never came as wrong")
    options.add_argument("--n", type=int, default=1, help="answers asked for per prompt")
    options.add_argument("--temperature", type=float, default=None, help="noted in the file")
    options.add_argument("--max-response-length", type=int, default=None, help="tokens, for the share cut off there")
    arguments = options.parse_args()

    measure = token_counter(arguments.model) if arguments.model else lambda texts: [len(text) for text in texts]
    answers, step = read_answers(arguments.generations, measure)
    asked = asked_answers(arguments.val_files, arguments.n)
    by_source: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_source[answer.data_source].append(answer)
    cap = arguments.max_response_length if arguments.model else None
    sources = {name: summarise(group, asked.get(name), cap) for name, group in sorted(by_source.items())}
    result = {
        "kind": KIND,
        "version": VERSION,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "checkpoint": arguments.checkpoint,
        "step": step if arguments.step is None else arguments.step,
        "n": arguments.n,
        "temperature": arguments.temperature,
        "max_response_length": arguments.max_response_length,
        "length_unit": "tokens" if arguments.model else "characters",
        "sources": sources,
    }
    write_json(result, arguments.out)
    print(f"{'benchmark':32} {'accuracy':>8}  {'95% interval':>14}  {'answers':>7}  mean length")
    for name, row in sources.items():
        interval = f"{row['low']:.3f} - {row['high']:.3f}"
        print(
            f"{name:32} {row['accuracy']:8.3f}  {interval:>14}  {row['answers']:7d}  "
            f"{row['length_mean']:.0f} {result['length_unit']}"
        )
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    try:
        main()
    except (ScoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
