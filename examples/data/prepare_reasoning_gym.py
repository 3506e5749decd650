"""reasoning-gym tasks as veRL's parquet files: train.parquet and test.parquet. Nothing is downloaded.

    pip install reasoning-gym
    python3 examples/data/prepare_reasoning_gym.py --out ~/data/reasoning_gym
    python3 examples/data/prepare_reasoning_gym.py --tasks countdown,sudoku --train-size 20000 \\
        --task-config '{"countdown": {"max_numbers": 4}}' --out ~/data/countdown_sudoku

Train with reward.custom_reward_function.path=examples/data/reasoning_gym_reward.py.
"""

from __future__ import annotations

import argparse
import json
import random

from reasoning_gym_reward import PREFIX, compute_score, load_reasoning_gym
from verl_rows import DataError, Row, parser, refuse_existing, report, run, verl_row, write_parquet

DEFAULT_TASKS = "chain_sum,basic_arithmetic,leg_counting,simple_equations,number_sequence,countdown,letter_counting"
INSTRUCTION = "Reason step by step, then give the final answer alone between <answer> and </answer>."
SEED_STRIDE = 10_000_000  # a generator's problem is made from its seed + index: seeds must lie further apart than sizes
DRAWS_PER_PROBLEM = 16  # how often a generator may repeat itself before a task counts as exhausted


def task_rows(task: str, size: int, seed: int, split: str, config: Row, exclude: set[str]) -> list[Row]:
    """`size` problems of one task, none in `exclude` (questions; those chosen are added to it).

    Raises:
        DataError: unknown setting, a task that runs out of different problems, or one whose scorer cannot judge an
            entry that has been through JSON.
    """
    generator_seed = (2 * seed + (split == "test")) * SEED_STRIDE
    rows: list[Row] = []
    try:
        problems = load_reasoning_gym().create_dataset(
            task, size=DRAWS_PER_PROBLEM * size, seed=generator_seed, **config
        )
        for position in range(DRAWS_PER_PROBLEM * size):
            entry = problems[position]
            if entry["question"] not in exclude:
                exclude.add(entry["question"])
                rows.append(_row(task, entry, len(rows), split))
            if len(rows) == size:
                return rows
    except (TypeError, AssertionError) as error:
        raise DataError(f"task {task!r} with {config or 'its defaults'}: {error}") from None
    raise DataError(
        f"task {task!r}: only {len(rows)} different {split} problems of {size} asked for; "
        f"lower the size or widen the task with --task-config"
    )


def _row(task: str, entry: Row, index: int, split: str) -> Row:
    row = verl_row(
        data_source=f"{PREFIX}{task}",
        question=f"{entry['question']}\n\n{INSTRUCTION}",
        ability="reasoning",
        ground_truth="" if entry["answer"] is None else str(entry["answer"]),
        index=index,
        split=split,
        info={"question": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]},
    )
    if entry["answer"] is not None:
        reference = f"<answer>{entry['answer']}</answer>"
        if compute_score(row["data_source"], reference, "", row["extra_info"])["score"] < 1.0:
            raise DataError(f"task {task!r}: its scorer rejects its own answer once stored as JSON; leave it out")
    return row


def main() -> None:
    """The command."""
    options = parser(__doc__, out="~/data/reasoning_gym")
    options.add_argument("--tasks", default=DEFAULT_TASKS, help="comma-separated task names, equal shares of each")
    options.add_argument("--train-size", type=int, default=8000, help="training problems, all tasks together")
    options.add_argument("--test-size", type=int, default=400, help="test problems, all tasks together")
    options.add_argument("--task-config", type=_json_object, default={}, help="JSON: task name -> its settings")
    options.add_argument("--list-tasks", action="store_true", help="print the names of all tasks and stop")
    arguments = options.parse_args()
    try:
        known = load_reasoning_gym().factory.DATASETS
    except ModuleNotFoundError as error:
        raise DataError(f"needs the package reasoning-gym: pip install reasoning-gym ({error})") from None
    if arguments.list_tasks:
        print("\n".join(sorted(known)))
        return

    tasks = [name.strip() for name in arguments.tasks.split(",") if name.strip()]
    for name in [*tasks, *arguments.task_config]:
        if name not in known:
            raise DataError(f"task {name!r}: unknown; --list-tasks prints the {len(known)} names")
    folder = arguments.out.expanduser()
    refuse_existing([folder / "train.parquet", folder / "test.parquet"], arguments.overwrite)

    seen: set[str] = set()
    # The test problems are drawn first: a larger training set then never changes them.
    for split, total in (("test", arguments.test_size), ("train", arguments.train_size)):
        rows: list[Row] = []
        for position, task in enumerate(tasks):
            share = total // len(tasks) + (position < total % len(tasks))
            if share:
                rows += task_rows(task, share, arguments.seed, split, arguments.task_config.get(task, {}), seen)
        random.Random(arguments.seed).shuffle(rows)
        for index, row in enumerate(rows):
            row["extra_info"]["index"] = index
        report(folder / f"{split}.parquet", write_parquet(rows, folder / f"{split}.parquet", arguments.overwrite))


def _json_object(text: str) -> Row:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error.msg}") from None
    if not isinstance(value, dict) or not all(isinstance(settings, dict) for settings in value.values()):
        raise argparse.ArgumentTypeError('must look like {"countdown": {"max_numbers": 4}}')
    return value


if __name__ == "__main__":
    run(main)
