"""What the data preparation scripts share: one row schema, reading a source, writing a file whole or not at all."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class DataError(ValueError):
    """A source or a target that cannot be used. The text is one line for the user."""


def verl_row(
    *,
    data_source: str,
    question: str,
    ability: str,
    ground_truth: str,
    index: int,
    split: str,
    info: Row,
    system: str | None = None,
) -> Row:
    """One row of veRL's dataset. All scripts here write the same columns, so their files can be mixed.

    `info` is whatever a reader or a scorer may want to know of the problem; it is stored as a JSON text.
    """
    messages = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": data_source,
        "prompt": [*messages, {"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"index": index, "split": split, "info": json.dumps(info, ensure_ascii=False, default=str)},
    }


def last_boxed(solution: str) -> str | None:
    """The content of the last `\\boxed{...}` of a solution, braces balanced; None where there is none."""
    start = solution.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for position in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[begin:position]
    return None


def read_source(source: str, split: str, config: str | None = None) -> Iterator[Row]:
    """The rows of one split of a data set.

    Args:
        source: a name on the Hugging Face hub, or a local parquet or JSON lines file, or a local folder with such
            files (a snapshot of the hub's repository, say). In a folder, the files whose name holds `split` count,
            those under a folder named `config` first.
        split: "train" or "test".
        config: the hub's configuration name, e.g. "main".

    Raises:
        DataError: the source cannot be reached or holds no such split.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _file_rows(path)
    if path.is_dir():
        files = _split_files(path, split, config)
        return (row for file in files for row in _file_rows(file))
    if source.startswith((".", "/", "~")):
        raise DataError(f"--source {source}: no such file or folder")
    return _hub_rows(source, split, config)


def _split_files(folder: Path, split: str, config: str | None) -> list[Path]:
    def matching(base: Path) -> list[Path]:
        return sorted(
            file
            for file in base.rglob("*")
            if file.suffix in {".parquet", ".jsonl", ".json"} and split in file.name.lower()
        )

    files = matching(folder / config) if config and (folder / config).is_dir() else matching(folder)
    if not files:
        raise DataError(f"--source {folder}: no parquet or JSON lines file with {split!r} in its name")
    return files


def _file_rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}, line {number}: not JSON ({error.msg})") from None


def _hub_rows(name: str, split: str, config: str | None) -> Iterator[Row]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError("reading from the hub needs the package 'datasets': pip install datasets") from None
    try:
        yield from datasets.load_dataset(name, config, split=split)  # type: ignore[misc]
    except Exception as error:  # the hub's client raises many kinds, all of which mean the same to the user
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"cannot read {name!r} from the Hugging Face hub ({reason}). No network here? On a machine that has it: "
            f"`hf download {name} --repo-type dataset --local-dir DIR`, copy DIR, and pass --source DIR"
        ) from None


def field(row: Row, name: str, source: str) -> Any:
    """A column of a source row, with a plain message where it is missing."""
    if name not in row:
        raise DataError(f"{source}: no column {name!r} (it has {', '.join(sorted(row))}): is this the right data set?")
    return row[name]


def sample(rows: Sequence[Row], limit: int | None, seed: int) -> list[Row]:
    """At most `limit` of the rows, drawn at random by `seed`, in their original order. None or 0: all."""
    if not limit or limit >= len(rows):
        return list(rows)
    import random

    chosen = sorted(random.Random(seed).sample(range(len(rows)), limit))
    return [rows[position] for position in chosen]


def write_parquet(rows: Iterable[Row], path: Path, overwrite: bool = False) -> int:
    """Writes the rows beside `path` and renames: the file is there whole, or not at all.

    Returns:
        The number of rows.

    Raises:
        DataError: there are no rows, or the file exists and `overwrite` is not set.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    refuse_existing([path], overwrite)
    table = pa.Table.from_pylist(list(rows), schema=_schema())
    if table.num_rows == 0:
        raise DataError(f"{path}: no rows to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table, aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return table.num_rows


def refuse_existing(paths: Iterable[Path], overwrite: bool) -> None:
    """Raises DataError for the first path that exists, so that nothing is prepared in vain."""
    for path in paths:
        if path.exists() and not overwrite:
            raise DataError(f"{path} exists: pass --overwrite to replace it, or --out for another folder")


def _schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", text), ("info", text)])),
        ]
    )


def parser(doc: str | None, out: str, source: str | None = None) -> argparse.ArgumentParser:
    """The options that all scripts have; the first line of `doc` is the description."""
    description = (doc or "").partition("\n")[0]
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--out", type=Path, default=Path(out), help="folder for the parquet files")
    if source is not None:
        options.add_argument("--source", default=source, help="hub name, or a local file or folder")
        options.add_argument("--train-limit", type=int, default=0, help="keep so many training rows (0: all)")
    options.add_argument("--seed", type=int, default=1, help="what is drawn or generated depends on it alone")
    options.add_argument("--overwrite", action="store_true", help="replace files that exist")
    return options


def run(main: Any) -> None:
    """Runs a script's `main()`; errors that the user can act on become one line and exit code 2."""
    try:
        main()
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def report(path: Path, rows: int) -> None:
    """Says what was written."""
    print(f"{path}: {rows} rows")
