"""MATH as veRL's parquet files: train.parquet (7,500), test.parquet (5,000), and math500.parquet on request.

    python3 examples/data/prepare_math.py --out ~/data/math
    python3 examples/data/prepare_math.py --out ~/data/math --math500 HuggingFaceH4/MATH-500 --overwrite

veRL scores it by the last \\boxed{} (verl.utils.reward_score.math_reward), which the prompt asks for. MATH-500 is a
part of the test problems: validate on one or the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from verl_rows import (
    DataError,
    Row,
    field,
    last_boxed,
    parser,
    read_source,
    refuse_existing,
    report,
    run,
    sample,
    verl_row,
    write_parquet,
)

MATH = "DigitalLearningGmbH/MATH-lighteval"  # veRL picks the scorer by these names
MATH500 = "HuggingFaceH4/MATH-500"
INSTRUCTION = "Reason step by step and put the final answer within \\boxed{}."


def math_rows(rows: Iterable[Row], split: str, data_source: str) -> list[Row]:
    """Source rows (problem, solution and maybe answer) as veRL rows.

    Raises:
        DataError: a solution without \\boxed{} and no answer beside it.
    """
    converted = []
    for index, row in enumerate(rows):
        solution = field(row, "solution", data_source)
        answer = row.get("answer") or last_boxed(solution)
        if answer is None:
            raise DataError(f"{data_source} {split} row {index}: the solution has no \\boxed{{}}")
        converted.append(
            verl_row(
                data_source=data_source,
                question=f"{field(row, 'problem', data_source)} {INSTRUCTION}",
                ability="math",
                ground_truth=answer,
                index=index,
                split=split,
                info={"level": row.get("level"), "type": row.get("type") or row.get("subject"), "solution": solution},
            )
        )
    return converted


def main() -> None:
    """The command."""
    options = parser(__doc__, out="~/data/math", source=MATH)
    options.add_argument("--math500", default=None, metavar="SOURCE", help=f"also write MATH-500, from e.g. {MATH500}")
    arguments = options.parse_args()
    folder = arguments.out.expanduser()
    names = ["train", "test"] + (["math500"] if arguments.math500 else [])
    refuse_existing([folder / f"{name}.parquet" for name in names], arguments.overwrite)
    tables = {split: math_rows(read_source(arguments.source, split), split, MATH) for split in ("train", "test")}
    tables["train"] = sample(tables["train"], arguments.train_limit, arguments.seed)
    if arguments.math500:
        tables["math500"] = math_rows(read_source(arguments.math500, "test"), "test", MATH500)
    for name, rows in tables.items():
        report(folder / f"{name}.parquet", write_parquet(rows, folder / f"{name}.parquet", arguments.overwrite))


if __name__ == "__main__":
    run(main)
