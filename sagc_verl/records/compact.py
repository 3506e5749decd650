"""Many small files into few: a hundred steps into one file, ten of those into one again.

A merged file is written and renamed before its parts go, and names the range it covers; whoever reads between the two
sees both and ignores the parts (layout.without_covered).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sagc_verl.records.layout import FORMAT, FORMAT_KEY, RecordFile, file_name, list_files, without_covered
from sagc_verl.records.parquet import ROW_GROUP_ROWS, conform, write_file

STEPS_PER_FILE = 100
FILES_PER_MERGE = 10


def compact_table(directory: Path, attempt: int, fan_in: int | None = None) -> int:
    """Merge what is due among one attempt's files of one table; returns the number of files merged away.

    Single steps are merged once there are `fan_in` (STEPS_PER_FILE), their merged files once there are FILES_PER_MERGE.
    Raises OSError (disk) or pyarrow.ArrowException (a part is damaged); the parts stay then.
    """
    merged = 0
    files = [file for file in list_files(directory)[0] if file.attempt == attempt]
    remaining = without_covered(files)
    _remove([file for file in files if file not in remaining])
    for run in _same_level_runs(remaining):
        due = (fan_in or STEPS_PER_FILE) if _level(run[0]) == 0 else FILES_PER_MERGE
        if len(run) >= max(due, 2) and _level(run[0]) < 2:
            merge(run)
            merged += len(run)
    return merged


def compact_attempt(directory: Path, attempt: int) -> int:
    """Merge all single steps of an attempt that has ended."""
    return compact_table(directory, attempt, fan_in=2)


def merge(files: Sequence[RecordFile]) -> Path:
    """One file in place of several of the same attempt, in the order of their steps."""
    target = files[0].path.parent / file_name(files[0].first, files[-1].last, files[0].attempt)
    schema = pa.unify_schemas([pq.read_schema(file.path) for file in files], promote_options="permissive")
    write_file(target, schema.with_metadata({FORMAT_KEY: str(FORMAT).encode()}), _large_tables(files, schema))
    _remove(files)
    return target


def _level(file: RecordFile) -> int:
    steps = file.last - file.first + 1
    return 0 if steps == 1 else 1 if steps < STEPS_PER_FILE * FILES_PER_MERGE else 2


def _same_level_runs(files: Sequence[RecordFile]) -> list[list[RecordFile]]:
    # Only neighbours are merged: the range in the name must cover no file that is not inside.
    runs: list[list[RecordFile]] = []
    for file in files:
        if runs and _level(runs[-1][0]) == _level(file):
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


def _large_tables(files: Sequence[RecordFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of the files in tables of about ROW_GROUP_ROWS, so that merging needs little memory."""
    waiting: list[pa.Table] = []
    for file in files:
        with pq.ParquetFile(file.path) as source:
            for index in range(source.num_row_groups):
                waiting.append(conform(source.read_row_group(index), schema))
                if sum(table.num_rows for table in waiting) >= ROW_GROUP_ROWS:
                    yield _joined(waiting)
                    waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _remove(files: Sequence[RecordFile]) -> None:
    for file in files:
        file.path.unlink(missing_ok=True)
