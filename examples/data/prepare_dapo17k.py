"""DAPO-Math-17k and AIME 2024 as veRL's parquet files: train.parquet and aime2024.parquet.

    python3 examples/data/prepare_dapo17k.py --out ~/data/dapo17k

The published training file holds every problem a hundred times and the AIME file every problem 32 times. Here each
problem stands once: epochs repeat training data, and `actor_rollout_ref.rollout.val_kwargs.n` the answers to AIME.
veRL scores both by "Answer:" or the last \\boxed{} (verl.utils.reward_score.math_dapo); the prompts ask for the former.
"""

from __future__ import annotations

from collections.abc import Iterable

from verl_rows import Row, field, parser, read_source, refuse_existing, report, run, sample, verl_row, write_parquet

TRAIN = "BytedTsinghua-SIA/DAPO-Math-17k"
AIME = "BytedTsinghua-SIA/AIME-2024"
SCORER = "math_dapo"  # veRL picks the scorer by this name, and by any that starts with "aime"


def dapo_rows(rows: Iterable[Row], split: str, data_source: str) -> list[Row]:
    """Source rows, already in veRL's schema, each problem once, in order of first appearance."""
    converted: list[Row] = []
    seen: set[str] = set()
    for row in rows:
        question = field(row, "prompt", data_source)[-1]["content"]
        if question in seen:
            continue
        seen.add(question)
        converted.append(
            verl_row(
                data_source=data_source,
                question=question,
                ability="math",
                ground_truth=str(field(row, "reward_model", data_source)["ground_truth"]),
                index=len(converted),
                split=split,
                info={"source_index": (row.get("extra_info") or {}).get("index")},
            )
        )
    return converted


def main() -> None:
    """The command."""
    options = parser(__doc__, out="~/data/dapo17k", source=TRAIN)
    options.add_argument("--aime", default=AIME, metavar="SOURCE", help="AIME 2024; empty for none")
    arguments = options.parse_args()
    folder = arguments.out.expanduser()
    names = ["train"] + (["aime2024"] if arguments.aime else [])
    refuse_existing([folder / f"{name}.parquet" for name in names], arguments.overwrite)
    training = dapo_rows(read_source(arguments.source, _split(arguments.source, "train")), "train", SCORER)
    tables = {"train": sample(training, arguments.train_limit, arguments.seed)}
    if arguments.aime:
        tables["aime2024"] = dapo_rows(read_source(arguments.aime, _split(arguments.aime, "train")), "test", "aime2024")
    for name, rows in tables.items():
        report(folder / f"{name}.parquet", write_parquet(rows, folder / f"{name}.parquet", arguments.overwrite))


def _split(source: str, split: str) -> str:
    """Both sets have one file, named after themselves: in a local folder any file counts."""
    from pathlib import Path

    return "" if Path(source).expanduser().is_dir() else split


if __name__ == "__main__":
    run(main)
