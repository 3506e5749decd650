"""load_run: the records of one run, or of a directory of runs, as pandas DataFrames or Arrow batches.

Only what is asked for is read. Files that are damaged, foreign or of a newer version are named in `warnings` and
skipped; where nothing is left to read, RecordsError says so in one line.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sagc_verl.records.errors import RecordsError
from sagc_verl.records.layout import (
    FORMAT,
    FORMAT_KEY,
    RECORDS_DIR,
    RUN_FILE,
    TABLE_NAMES,
    RecordFile,
    list_files,
    live_limits,
    without_covered,
)
from sagc_verl.records.parquet import conform
from sagc_verl.records.runinfo import read_run_info, resume_steps
from sagc_verl.records.tables import TABLES, arrow_schema

Branch = Literal["live", "dead", "all"]
Steps = int | slice | Collection[int] | None

SEARCH_DEPTH = 4
_READERS = min(8, (os.cpu_count() or 1) + 2)


def load_run(path: str | Path) -> Run | Runs:
    """Open the records below a path.

    path: a run directory, its `sagc` folder (both give a Run), or a directory of runs (gives Runs, named by their paths
        from there). Nothing but run.json and file names is read yet.

    Raises RecordsError where there are no records, or only unreadable ones.
    """
    path = Path(path).expanduser()
    try:
        return _load(path)
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read ({error.strerror or _one_line(error)})") from None


def _load(path: Path) -> Run | Runs:
    if path.is_file():
        raise RecordsError(f"{path}: is a file; give a run directory (for veRL logs: sagc-verl import-log)")
    if not path.is_dir():
        raise RecordsError(f"{path}: no such directory")
    records = _records_dir(path)
    if records is not None:
        return Run(records)
    runs: dict[str, Run] = {}
    refused: list[str] = []
    for found in _find_runs(path, SEARCH_DEPTH):
        name = found.relative_to(path).as_posix()
        try:
            runs[name] = Run(_records_dir(found) or found, name)
        except RecordsError as error:
            refused.append(str(error))
    if not runs:
        raise RecordsError(refused[0] if refused else f"{path}: no records here (no {RECORDS_DIR}/{RUN_FILE})")
    return Runs(runs, refused)


def _records_dir(path: Path) -> Path | None:
    for candidate in (path, path / RECORDS_DIR):
        if (candidate / RUN_FILE).is_file() or any(list_files(candidate / name)[0] for name in TABLE_NAMES):
            return candidate
    return None


def _find_runs(path: Path, depth: int) -> Iterator[Path]:
    try:
        children = sorted(child for child in path.iterdir() if child.is_dir())
    except PermissionError:
        return
    for child in children:
        # Checkpoints are large trees without runs in them.
        if child.name.startswith((".", "global_step_")):
            continue
        if _records_dir(child) is not None:
            yield child
        elif depth > 1:
            yield from _find_runs(child, depth - 1)


class Run:
    """The records of one run.

    info: contents of run.json.   name: of the run directory.   path: of the records folder.
    steps, groups, rollouts: the live rows as DataFrames, in the order of steps, read at first use and kept.
    warnings: what was skipped and why, one line each.
    """

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.path = Path(path)
        self.info: dict[str, Any] = read_run_info(self.path)
        where = self.path.resolve()
        self.name = name or str(self.info.get("name") or (where.parent if where.name == RECORDS_DIR else where).name)
        self._files = {table: _TableFiles(self.path / table) for table in TABLE_NAMES}
        if not self.info and not any(files.files for files in self._files.values()):
            raise RecordsError(f"{path}: no records here (no {RUN_FILE})")

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {str(self.path)!r})"

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self.table("steps")

    @cached_property
    def groups(self) -> pd.DataFrame:
        return self.table("groups")

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        return self.table("rollouts")

    @property
    def warnings(self) -> list[str]:
        found = [] if self.info else [f"{self.path / RUN_FILE}: missing"]
        for table in TABLE_NAMES:
            found += self._files[table].warnings
        return found

    def columns(self, table: str) -> list[str]:
        """Names of the columns a table has in this run."""
        return self._schema(table).names

    def table(
        self, name: str, columns: Sequence[str] | None = None, steps: Steps = None, branch: Branch = "live"
    ) -> pd.DataFrame:
        """One table, or part of it, as a DataFrame with the dtypes of docs/metrics.md.

        name: rollouts, groups or steps.   columns: all by default, in the order asked for.
        steps: one step, a slice (end excluded, as in Python) or a collection of steps; all by default.
        branch: "live" rows; the "dead" ones that a resume superseded; or "all" (then told apart by `attempt`).

        Raises RecordsError for unknown columns or where all files of the table are unreadable.
        """
        return to_pandas(self.arrow(name, columns, steps, branch))

    def arrow(
        self, name: str, columns: Sequence[str] | None = None, steps: Steps = None, branch: Branch = "live"
    ) -> pa.Table:
        """As `table`, as an Arrow table."""
        while True:
            schema, files, rows = self._chosen(name, columns, steps, branch)
            every = self._schema(name)  # the filter may need columns that were not asked for
            try:
                dataset = ds.dataset([str(file.path) for file in files], schema=every, format="parquet")
                return dataset.to_table(columns=schema.names, filter=rows)
            except FileNotFoundError:
                self._files[name] = _TableFiles(self.path / name)  # a run at work has just merged files
            except (OSError, pa.ArrowException) as error:
                # Whole by its footer, damaged inside: found by reading, then left out as if half written.
                if not self._files[name].leave_out_damaged():
                    raise RecordsError(f"{self.path / name}: cannot be read ({_one_line(error)})") from None

    def scan(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        steps: Steps = None,
        branch: Branch = "live",
        batch_rows: int = 131_072,
    ) -> Iterator[pa.RecordBatch]:
        """As `arrow`, in batches of at most `batch_rows` rows: memory stays constant whatever the length of the run.

        Raises RecordsError too where a file turns out damaged or vanishes on the way (a run at work merges files).
        """
        schema, files, rows = self._chosen(name, columns, steps, branch)
        # File by file: a dataset's scanner reads ahead, which costs memory that grows with the run.
        for file in files:
            try:
                with pq.ParquetFile(file.path) as source:
                    wanted = [*schema.names, *(_NEVER_NULL if rows is not None else ("step",))]
                    found = [column for column in dict.fromkeys(wanted) if column in source.schema_arrow.names]
                    for batch in source.iter_batches(batch_rows, columns=found):
                        table = pa.Table.from_batches([batch])
                        yield from conform(table if rows is None else table.filter(rows), schema).to_batches()
            except (OSError, pa.ArrowException) as error:
                raise RecordsError(f"{file.path}: cannot be read ({_one_line(error)})") from None

    def _schema(self, name: str) -> pa.Schema:
        if name not in TABLES:
            raise RecordsError(f"no table {name!r}: must be one of {', '.join(TABLE_NAMES)}")
        return self._files[name].schema(name)

    def _chosen(
        self, name: str, columns: Sequence[str] | None, steps: Steps, branch: Branch
    ) -> tuple[pa.Schema, list[RecordFile], pc.Expression | None]:
        """The schema asked for, the files that have rows of it, and which of their rows (None: all)."""
        schema = self._schema(name)
        unknown = [column for column in columns or [] if column not in schema.names]
        if unknown:
            raise RecordsError(f"{self.name}: table {name} has no column {', '.join(map(repr, unknown))}")
        wanted = _step_filter(steps)
        readable = self._files[name].readable
        limits = live_limits(resume_steps(self.info), [file for table in self._files.values() for file in table.files])
        files = [
            file
            for file in readable
            if _may_have(file, limits[file.attempt], branch) and wanted.touches(file.first, file.last)
        ]
        rows = _all([_branch_filter(files, limits, branch), wanted.expression])
        return schema if columns is None else pa.schema([schema.field(column) for column in columns]), files, rows


class Runs(Mapping[str, Run]):
    """Several runs by name. `steps`, `groups`, `rollouts` are those of all runs, with a first column `run`."""

    def __init__(self, runs: Mapping[str, Run], refused: Sequence[str] = ()) -> None:
        self._runs = dict(runs)
        self._refused = list(refused)

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"Runs({', '.join(self._runs)})"

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self.table("steps")

    @cached_property
    def groups(self) -> pd.DataFrame:
        return self.table("groups")

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        return self.table("rollouts")

    @property
    def warnings(self) -> list[str]:
        return [*self._refused, *(line for run in self._runs.values() for line in run.warnings)]

    def table(
        self, name: str, columns: Sequence[str] | None = None, steps: Steps = None, branch: Branch = "live"
    ) -> pd.DataFrame:
        """As Run.table, of all runs. Columns that only some runs have are null in the others."""
        tables = []
        for label, run in self._runs.items():
            wanted = None if columns is None else [column for column in columns if column in run.columns(name)]
            table = run.arrow(name, wanted, steps, branch)
            label_array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), pa.array([label]))
            tables.append(table.add_column(0, "run", label_array))
        joined = pa.concat_tables(tables, promote_options="permissive")
        missing = [column for column in columns or [] if column not in joined.schema.names]
        if missing:
            raise RecordsError(f"table {name} has no column {', '.join(map(repr, missing))} in any run")
        return to_pandas(joined if columns is None else joined.select(["run", *columns]))


class _TableFiles:
    """The files of one table of one run; their footers are read at first use.

    A run at work may merge files at any moment. Listing and checking are repeated until nothing has changed meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.files, self._foreign = _settled_listing(directory)
        self._damaged: set[RecordFile] = set()

    @cached_property
    def _checked(self) -> list[tuple[RecordFile, pa.Schema | None, str]]:
        while True:
            try:
                with ThreadPoolExecutor(_READERS) as pool:
                    return list(pool.map(_check, self.files))
            except FileNotFoundError:
                self.files, self._foreign = _settled_listing(self._directory)

    @property
    def readable(self) -> list[RecordFile]:
        # Damaged files go first: the parts of a damaged merged file still count where they are there.
        found = [file for file, schema, _ in self._checked if schema is not None and file not in self._damaged]
        return without_covered(found)

    @property
    def warnings(self) -> list[str]:
        return [
            *(f"{path}: not a records file, skipped" for path in self._foreign),
            *(f"{file.path}: {problem}, skipped" for file, _, problem in self._checked if problem),
            *(f"{file.path}: damaged, skipped" for file in self.files if file in self._damaged),
        ]

    def leave_out_damaged(self) -> bool:
        """Read every file and leave out those that cannot be; whether there were any."""
        found = {file for file in self.readable if not _can_be_read(file)}
        self._damaged |= found
        return bool(found)

    def schema(self, table: str) -> pa.Schema:
        """The fixed columns of the table, then what else its files have. RecordsError where no file can be read."""
        if self.files and not self.readable:
            raise RecordsError(self.warnings[0])
        fields = {field.name: field for field in arrow_schema(table)}
        for _, schema, _ in self._checked:
            for field in schema or ():
                fields.setdefault(field.name, field)
        return pa.schema(list(fields.values()))


def _settled_listing(directory: Path) -> tuple[list[RecordFile], list[Path]]:
    # One pass over a folder can miss both a file that is being renamed in and its parts that are being removed.
    listing = list_files(directory)
    while (again := list_files(directory)) != listing:
        listing = again
    return listing


def _check(file: RecordFile) -> tuple[RecordFile, pa.Schema | None, str]:
    """The file's schema, or what is wrong with it. FileNotFoundError where it has gone."""
    try:
        schema = pq.read_schema(file.path)
    except FileNotFoundError:
        if file.path.is_symlink():
            return file, None, "a link to nothing"
        raise
    except pa.ArrowException:
        return file, None, "damaged or half written"
    except OSError as error:
        return file, None, f"cannot be read ({error.strerror or _one_line(error)})"
    version = (schema.metadata or {}).get(FORMAT_KEY, b"")
    if not version.isdigit() or "step" not in schema.names:
        return file, None, "not written by sagc-verl"
    if int(version) > FORMAT:
        return file, None, f"format {int(version)} of a newer sagc-verl (this one reads up to {FORMAT})"
    return file, schema, ""


def _can_be_read(file: RecordFile) -> bool:
    try:
        with pq.ParquetFile(file.path) as source:
            for _ in source.iter_batches():
                pass
    except (OSError, pa.ArrowException):
        return False
    return True


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _may_have(file: RecordFile, limit: float, branch: Branch) -> bool:
    if branch == "live":
        return file.first <= limit
    return branch == "all" or file.last > limit


def _branch_filter(files: Sequence[RecordFile], limits: Mapping[int, float], branch: Branch) -> pc.Expression | None:
    """Which rows of the files belong to the branch; None where all do."""
    mixed = {file.attempt for file in files if file.first <= limits[file.attempt] < file.last}
    if branch == "all" or not mixed:
        return None
    # Files that are not mixed were chosen whole, so only attempts with a mixed file need a condition.
    step, attempt = pc.field("step"), pc.field("attempt")
    compare = operator.le if branch == "live" else operator.gt
    return _all([(attempt != number) | compare(step, int(limits[number])) for number in sorted(mixed)])


def _all(conditions: Sequence[pc.Expression | None]) -> pc.Expression | None:
    given = [condition for condition in conditions if condition is not None]
    return reduce(operator.and_, given) if given else None


@dataclass(frozen=True)
class _StepFilter:
    """The steps asked for: `first`..`last`, of these only `chosen` where that is given."""

    first: float = float("-inf")
    last: float = float("inf")
    chosen: tuple[int, ...] | None = None

    def touches(self, first: int, last: int) -> bool:
        if first > self.last or last < self.first:
            return False
        return self.chosen is None or any(first <= step <= last for step in self.chosen)

    @property
    def expression(self) -> pc.Expression | None:
        step = pc.field("step")
        if self.chosen is not None:
            return step.isin(list(self.chosen))
        return _all(
            [
                step >= int(self.first) if self.first != float("-inf") else None,
                step <= int(self.last) if self.last != float("inf") else None,
            ]
        )


def _step_filter(steps: Steps) -> _StepFilter:
    if steps is None:
        return _StepFilter()
    if isinstance(steps, slice):
        if steps.step not in (None, 1):
            raise RecordsError("steps: a slice must have step 1; give a range for others")
        first = float("-inf") if steps.start is None else steps.start
        return _StepFilter(first, float("inf") if steps.stop is None else steps.stop - 1)
    chosen = sorted({int(step) for step in ([steps] if isinstance(steps, int) else steps)})
    return _StepFilter(chosen[0], chosen[-1], tuple(chosen)) if chosen else _StepFilter(0, -1)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """A DataFrame with the documented dtypes, whatever the data.

    Ints and bools are nullable (step and attempt plain), floats have NaN, labels are categorical, ids str.
    """
    nullable = [field.name for field in table.schema if field.type in _NULLABLE and field.name not in _NEVER_NULL]
    frame = table.drop_columns(nullable).to_pandas(types_mapper=_PANDAS_TYPES.get, split_blocks=True)
    columns = {name: _nullable(table[name]) if name in nullable else frame[name] for name in table.schema.names}
    return pd.DataFrame(columns, index=frame.index if len(frame.columns) else None, copy=False)


def _nullable(column: pa.ChunkedArray) -> pd.arrays.IntegerArray | pd.arrays.BooleanArray:
    # What types_mapper would give, several times as fast.
    mask = column.is_null().to_numpy() if column.null_count else np.zeros(len(column), dtype=bool)
    values = (
        column.fill_null(False if pa.types.is_boolean(column.type) else 0) if column.null_count else column
    ).to_numpy()
    values = values if values.flags.writeable else values.copy()
    return _NULLABLE[column.type](values, mask)


_NEVER_NULL = ("step", "attempt")
_NULLABLE = {
    pa.int32(): pd.arrays.IntegerArray,
    pa.int64(): pd.arrays.IntegerArray,
    pa.bool_(): pd.arrays.BooleanArray,
}
_PANDAS_TYPES: dict[pa.DataType, Any] = {}
if int(pd.__version__.split(".")[0]) < 3:
    _PANDAS_TYPES[pa.string()] = pd.StringDtype("pyarrow")  # pandas 3 does so by itself
