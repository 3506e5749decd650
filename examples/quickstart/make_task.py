"""Makes the quickstart's model and data: a tiny language model that walks to a goal, and wanders.

The prompt is a goal; the answer is a walk from 0, one position a word: "goal 4" -> "1 2 1 2 3 4". The model is taught
by next-token prediction on walks that drift to the goal but often turn round, sometimes walk past it and sometimes give
up. So it starts out right about half the time, and its walks have the long right tail of a random walk's hitting time:
a few rollouts of a group are many times as long as the others. Training rewards arriving; a walk cut off by the length
limit has not arrived, so straight walks pay.

    python examples/quickstart/make_task.py --out outputs/quickstart/task

Takes about half a minute on one core and needs no network.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

PAD, END, GOAL = "<pad>", "<end>", "goal"
TOP = 16
HIGHEST = TOP + 4
"""Goals are 2..TOP; positions 0..HIGHEST."""


def walk(goal: int, rng: random.Random, toward: float = 0.6, stop: float = 0.6, give_up: float = 0.015) -> list[int]:
    """A walk of the kind that the model is taught: positions after each step.

    Args:
        toward: probability of a step towards the goal.
        stop: probability to stop when at the goal.
        give_up: probability to stop after any other step.
    """
    position, positions = 0, []
    while len(positions) < 240:
        up = position < goal if rng.random() < toward else position >= goal
        if position in (0, HIGHEST):  # turned back: a step always goes one up or down, as the reward wants it
            up = position == 0
        position += 1 if up else -1
        positions.append(position)
        if rng.random() < (stop if position == goal else give_up):
            break
    return positions


def make_tokenizer(folder: Path):
    """A word tokenizer that writes positions and the goal in plain text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [PAD, END, "<user>", "<bot>", GOAL, *(str(position) for position in range(HIGHEST + 1))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=["<user>", "<bot>"],
        model_max_length=256,
    )
    fast.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}<user> {{ m['content'] }} "
        "{% else %}<bot> {{ m['content'] }} <end> {% endif %}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
    )
    fast.save_pretrained(folder)
    return fast


def make_model(folder: Path, steps: int, seed: int) -> float:
    """Train the model on random walks; returns the last loss, nats per token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(folder)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # so small a model only loses by sharing its work
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    loss = torch.tensor(float("nan"))
    for _ in range(steps):
        rows, starts = [], []
        for _ in range(32):
            goal = rng.randint(2, TOP)
            text = f"<user> {GOAL} {goal} <bot>"
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            answer = tokenizer(" ".join(map(str, walk(goal, rng))), add_special_tokens=False)["input_ids"]
            rows.append([*prompt, *answer, tokenizer.eos_token_id])
            starts.append(len(prompt))
        width = max(map(len, rows))
        inputs = torch.full((len(rows), width), tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), -100)
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            inputs[i, : len(row)] = torch.tensor(row)
            labels[i, start : len(row)] = torch.tensor(row[start:])
        loss = model(input_ids=inputs, attention_mask=(labels.ne(-100) | inputs.ne(0)).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    return float(loss.detach())


def make_data(folder: Path, seed: int, train: int = 2048, validation: int = 64) -> None:
    """Write train.parquet and validation.parquet in veRL's schema."""
    import pandas as pd

    rng = random.Random(seed)
    for split, count in (("train", train), ("validation", validation)):
        rows = []
        for index in range(count):
            goal = rng.randint(2, TOP)
            rows.append(
                {
                    "data_source": "walk",
                    "prompt": [{"role": "user", "content": f"{GOAL} {goal}"}],
                    "ability": "walk",
                    "reward_model": {"style": "rule", "ground_truth": str(goal)},
                    "extra_info": {"split": split, "index": index},
                }
            )
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--steps", type=int, default=400, help="teaching steps of 32 walks (default 400)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done = options.out / "task.json"
    if done.exists() and json.loads(done.read_text()) == {"steps": options.steps, "seed": options.seed}:
        print(f"{options.out}: already made")
        return
    done.unlink(missing_ok=True)  # what is about to change is not whole
    options.out.mkdir(parents=True, exist_ok=True)
    loss = make_model(options.out / "model", options.steps, options.seed)
    make_data(options.out, options.seed)
    done.write_text(json.dumps({"steps": options.steps, "seed": options.seed}))
    print(f"{options.out}: model (loss {loss:.3f} nats a token), train.parquet, validation.parquet")


if __name__ == "__main__":
    main()
