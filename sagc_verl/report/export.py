"""A table of a run as csv, parquet or json lines, in pieces: a run of any length is exported in little memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from sagc_verl.report.output import STDOUT, binary_output

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from sagc_verl.records.reader import Run

TABLES = ("steps", "groups", "rollouts")
FORMATS = ("csv", "parquet", "jsonl")
_LINES_AT_ONCE = 16_384
_BY_SUFFIX = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def pick_format(target: str, wanted: str | None) -> str:
    """The format of an export: what was asked for, else what the file's suffix says; csv on stdout.

    Raises:
        ValueError: neither says.
    """
    if wanted is not None:
        if wanted not in FORMATS:
            raise ValueError(f"format {wanted!r} is unknown: must be one of {', '.join(FORMATS)}")
        return wanted
    if target == STDOUT:
        return "csv"
    found = _BY_SUFFIX.get(Path(target).suffix.lower())
    if found is None:
        raise ValueError(f"{target}: the suffix names no format; use .csv, .parquet or .jsonl, or --format")
    return found


def export_table(
    runs: Sequence[Run],
    table: str,
    target: str,
    file_format: str,
    columns: Sequence[str] | None = None,
    steps: tuple[int | None, int | None] = (None, None),
) -> int:
    """Writes a table of one run, or of several with a `run` column in front.

    Args:
        runs: Runs of `sagc_verl.records`.
        table: "steps", "groups" or "rollouts".
        target: a path, or "-" for stdout.
        file_format: "csv", "parquet" or "jsonl".
        columns: the columns wanted, in this order; None for all.
        steps: first and last step wanted, both included; None for open ends.

    Returns:
        Rows written.

    Raises:
        ValueError: no such table or column, or nothing to export.
        OSError: the target cannot be written.
    """
    if table not in TABLES:
        raise ValueError(f"no table {table!r}: must be one of {', '.join(TABLES)}")
    pieces = _pieces(runs, table, columns, steps)
    first = next(pieces, None)
    if first is None or first.num_rows == 0:
        raise ValueError(f"{', '.join(run.name for run in runs)}: no rows in the table {table} for these steps")
    rows = 0
    with binary_output(target) as file, _writer(file_format, file, first.schema) as writer:
        for piece in _chain(first, pieces):
            writer.write(piece)
            rows += piece.num_rows
    return rows


class _Writer(Protocol):
    def write(self, piece: pa.Table) -> None: ...
    def __enter__(self) -> _Writer: ...
    def __exit__(self, *stopped: object) -> None: ...


class _ArrowWriter:
    """Passes tables on to a pyarrow writer."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, piece: pa.Table) -> None:
        self._writer.write_table(piece)

    def __enter__(self) -> _ArrowWriter:
        return self

    def __exit__(self, *stopped: object) -> None:
        self._writer.close()


class _LinesWriter:
    """One JSON object a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, piece: pa.Table) -> None:
        # Text is many times as large as the columns, so it is made a little at a time.
        for part in piece.to_batches(max_chunksize=_LINES_AT_ONCE):
            frame = _readable_floats(part.to_pandas())
            lines = frame.to_json(orient="records", lines=True, double_precision=15, force_ascii=False)
            self._file.write((lines or "").encode())

    def __enter__(self) -> _LinesWriter:
        return self

    def __exit__(self, *stopped: object) -> None:
        self._file.flush()


def _writer(file_format: str, file: BinaryIO, schema: pa.Schema) -> _Writer:
    if file_format == "jsonl":
        return _LinesWriter(file)
    if file_format == "parquet":
        from pyarrow.parquet import ParquetWriter

        return _ArrowWriter(ParquetWriter(file, schema, compression="zstd"))
    from pyarrow.csv import CSVWriter

    return _ArrowWriter(CSVWriter(file, schema))


def _pieces(
    runs: Sequence[Run], table: str, columns: Sequence[str] | None, steps: tuple[int | None, int | None]
) -> Iterator[pa.Table]:
    """The rows wanted of all runs, in pieces that share one schema."""
    known = list(dict.fromkeys(name for run in runs for name in run.columns(table)))
    _check_columns(table, columns, known)
    names = list(columns) if columns else known
    first, last = steps
    wanted = slice(first, None if last is None else last + 1)
    schema = _flat_schema(runs, table, names)
    for run in runs:
        there = set(run.columns(table))
        for batch in run.scan(table, columns=[name for name in names if name in there], steps=wanted):
            yield _fitted(batch, schema, run.name)


def _flat_schema(runs: Sequence[Run], table: str, names: Sequence[str]) -> pa.Schema:
    """Types without dictionaries, which csv and json lines know nothing of; `run` in front where there are several."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    for run in runs:
        empty = run.arrow(table, steps=[])
        for field in empty.schema:
            plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            types.setdefault(field.name, plain)
    fields = [pa.field(name, types[name]) for name in names]
    return pa.schema([pa.field("run", pa.string()), *fields] if len(runs) > 1 else fields)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, run: str) -> pa.Table:
    import pyarrow as pa

    there = set(batch.schema.names)
    arrays = []
    for field in schema:
        if field.name in there:
            arrays.append(batch.column(field.name).cast(field.type))
        elif field.name == "run":
            arrays.append(pa.array([run] * batch.num_rows, pa.string()))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.table(arrays, schema=schema)


def _check_columns(table: str, wanted: Sequence[str] | None, known: list[str]) -> None:
    for name in wanted or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known[:40])}"
            raise ValueError(f"no column {name!r} in {table}: {hint}")


def _readable_floats(frame: pd.DataFrame) -> pd.DataFrame:
    # float32 written as float64 would read .10000000149 for .1: seven decimals are all that it holds.
    narrow = [name for name in frame.columns if str(frame[name].dtype) in ("float32", "Float32")]
    return frame.assign(**{name: frame[name].astype("float64").round(7) for name in narrow})


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest
