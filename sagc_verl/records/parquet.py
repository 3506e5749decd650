"""From columns as the trainer has them to Parquet files that are whole or not there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sagc_verl.records.layout import FORMAT, FORMAT_KEY, TEMP_PREFIX
from sagc_verl.records.tables import SECONDS_PER_UNIT, Column, arrow_type, columns_of

ROW_GROUP_ROWS = 131_072
"""Rows of a row group in compacted files: large enough to read fast, small enough to merge in little memory."""

Note = Callable[[str], None]


def table_of_rows(table: str, rows: Mapping[str, Any], step: int, attempt: int, note: Note) -> pa.Table:
    """Arrow table of one step's rollouts or groups, in the table's schema.

    A scalar stands for every row; missing columns are null. What does not fit (an unknown name, a column of another
    length, values that cannot be cast) is left null or out, and told to `note`.
    """
    given = {name: _as_array(values) for name, values in rows.items() if values is not None}
    lengths = [len(values) for values in given.values() if values.ndim]
    count = max(set(lengths), key=lengths.count) if lengths else 0
    columns = columns_of(table)
    for name in given.keys() - {column.name for column in columns}:
        note(f"{table}.{name}: unknown column, left out")
    arrays = []
    for column in columns:
        values = given.get(column.name)
        if column.kind == "key":
            values = np.full(count, step if column.name == "step" else attempt)
        elif values is not None and not values.ndim:
            values = np.full(count, values[()])
        if values is not None and values.shape != (count,):
            note(f"{table}.{column.name}: shape {values.shape}, must be ({count},); left empty")
            values = None
        arrays.append(_arrow_array(table, column, values, count, note))
    return pa.table(arrays, schema=_schema(columns))


def table_of_step(step_row: Mapping[str, Any], step: int, attempt: int, note: Note) -> pa.Table:
    """Arrow table with the one row of the steps table: the fixed columns, then every other scalar as float64."""
    columns = list(columns_of("steps"))
    fixed = {column.name for column in columns}
    values: dict[str, Any] = {"step": step, "attempt": attempt}
    for name, value in step_row.items():
        if name in fixed:
            values.setdefault(name, value)
        elif (number := scalar(value)) is not None:
            columns.append(Column(str(name), "double", "", ""))
            values[str(name)] = number
    arrays = []
    for column in columns:
        value = values.get(column.name)
        array = None if value is None else np.asarray([value] if column.kind == "category" else [scalar(value)])
        arrays.append(_arrow_array("steps", column, array, 1, note))
    return pa.table(arrays, schema=_schema(columns))


def scalar(value: Any) -> float | int | None:
    """The number in a Python, numpy or torch scalar; None for anything else."""
    if isinstance(value, bool | int | float):
        return value
    try:
        array = np.asarray(value)
        return array.reshape(()).item() if array.size == 1 and array.dtype.kind in "biuf" else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _as_array(values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        array = np.empty(len(values), dtype=object)
        array[:] = values
    return array


def _schema(columns: Iterable[Column]) -> pa.Schema:
    fields = [pa.field(column.name, arrow_type(column.kind)) for column in columns]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT).encode()})


def _arrow_array(table: str, column: Column, values: np.ndarray | None, count: int, note: Note) -> pa.Array:
    kind = arrow_type(column.kind)
    if values is not None:
        try:
            return _cast(column, values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            note(f"{table}.{column.name}: {' '.join(str(error).split())[:200]}; left empty")
    return pa.nulls(count, kind) if column.kind != "category" else pa.nulls(count, pa.string()).dictionary_encode()


def _cast(column: Column, values: np.ndarray, kind: pa.DataType) -> pa.Array:
    if column.kind in ("category", "text"):
        try:
            texts = pa.array(values, type=pa.string(), from_pandas=True)
        except (pa.ArrowException, TypeError):  # numbers among them
            texts = pa.array([_text(item) for item in values.tolist()], type=pa.string())
        return texts.dictionary_encode() if column.kind == "category" else texts
    if values.dtype == object:
        return pa.array(values, from_pandas=True).cast(kind, safe=False)
    if column.kind == "seconds":
        values = (np.round(values.astype(np.float64) * SECONDS_PER_UNIT) / SECONDS_PER_UNIT).astype(np.float32)
    elif column.kind == "bool" and values.dtype.kind in "iu":
        values = values != 0
    # from_pandas: NaN becomes null.
    return pa.array(values, from_pandas=True).cast(kind, safe=False)


def _text(item: Any) -> str | None:
    if isinstance(item, float):
        return None if math.isnan(item) else f"{item:.15g}"
    return None if item is None else str(item)


def write_file(path: Path, schema: pa.Schema, tables: Iterable[pa.Table], compress: bool = True) -> None:
    """Write a Parquet file aside, flush it to the disk and rename it: the name only ever shows a whole file.

    Each table becomes row groups of its own. Without `compress` many columns of a few values are written in half the
    time. Raises OSError; nothing is left then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMP_PREFIX}{path.name}"
    try:
        with pq.ParquetWriter(temporary, schema, **_encoding(schema, compress)) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        _flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _encoding(schema: pa.Schema, compress: bool) -> dict[str, Any]:
    # Split bytes compress best for floats that hardly repeat; all else repeats, and is kept once in a dictionary.
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    return {
        "compression": "zstd" if compress else "none",
        "use_dictionary": [field.name for field in schema if field.name not in floats],
        "column_encoding": dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        "write_statistics": ["step"],
    }


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of the schema: missing ones null, others cast or left out."""
    if table.schema.equals(schema):
        return table.replace_schema_metadata(schema.metadata)
    names = set(table.schema.names)
    arrays = [
        table[field.name].cast(field.type) if field.name in names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
