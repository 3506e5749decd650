"""GSM8K as veRL's parquet files: train.parquet (7,473 problems) and test.parquet (1,319).

    python3 examples/data/prepare_gsm8k.py --out ~/data/gsm8k

veRL scores it by the number after the last "####" (verl.utils.reward_score.gsm8k), which the prompt asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

from verl_rows import (
    DataError,
    Row,
    field,
    parser,
    read_source,
    refuse_existing,
    report,
    run,
    sample,
    verl_row,
    write_parquet,
)

DATA_SOURCE = "openai/gsm8k"  # veRL picks the scorer by this name
INSTRUCTION = 'Reason step by step and give the final answer, a number, after "####".'


def gsm8k_rows(rows: Iterable[Row], split: str) -> list[Row]:
    """Source rows (question, answer) as veRL rows.

    Raises:
        DataError: an answer without "####".
    """
    converted = []
    for index, row in enumerate(rows):
        answer = field(row, "answer", "GSM8K")
        solution, mark, number = answer.rpartition("####")
        if not mark:
            raise DataError(f"GSM8K {split} row {index}: the answer has no '####'")
        converted.append(
            verl_row(
                data_source=DATA_SOURCE,
                question=f"{field(row, 'question', 'GSM8K')} {INSTRUCTION}",
                ability="math",
                ground_truth=number.strip().replace(",", ""),
                index=index,
                split=split,
                info={"solution": solution.strip()},
            )
        )
    return converted


def main() -> None:
    """The command."""
    options = parser(__doc__, out="~/data/gsm8k", source="openai/gsm8k").parse_args()
    folder = options.out.expanduser()
    refuse_existing([folder / "train.parquet", folder / "test.parquet"], options.overwrite)
    splits = {split: gsm8k_rows(read_source(options.source, split, "main"), split) for split in ("train", "test")}
    splits["train"] = sample(splits["train"], options.train_limit, options.seed)
    for split, rows in splits.items():
        report(folder / f"{split}.parquet", write_parquet(rows, folder / f"{split}.parquet", options.overwrite))


if __name__ == "__main__":
    run(main)
