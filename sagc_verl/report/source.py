"""Runs as the reports read them: opened from paths, and read in batches."""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from sagc_verl.records.reader import Run


logger = logging.getLogger(__name__)


def open_runs(path: str | Path) -> list[Run]:
    """The run at `path`, every run of a directory of runs, or the run in a steps table that `import-log` wrote.

    Of a directory, runs that cannot be read are left out and logged as warnings.

    Raises:
        RecordsError: there is none, or it cannot be read.
        ValueError: `path` is a Parquet file that is no steps table.
    """
    from sagc_verl.records.reader import Run, load_run

    if Path(path).suffix == ".parquet" and Path(path).is_file():
        return [_run_of_table(Path(path))]
    found = load_run(path)
    if isinstance(found, Run):
        return [found]
    told = {line for run in found.values() for line in run.warnings}
    for line in found.warnings:
        if line not in told:
            logger.warning("left out: %s", line)
    return list(found.values())


def _run_of_table(path: Path) -> Run:
    import pandas as pd
    import pyarrow as pa

    from sagc_verl.records.importlog import write_imported_run
    from sagc_verl.records.reader import Run

    try:
        steps = pd.read_parquet(path)
    except pa.ArrowException:
        raise ValueError(f"{path}: not a Parquet file, or damaged") from None
    if "step" not in steps.columns or steps["step"].duplicated().any():
        raise ValueError(f"{path}: not a steps table: one row per step, with a column step, is needed")
    folder = tempfile.TemporaryDirectory(prefix="sagc-verl-")
    run = Run(write_imported_run(steps, folder.name, name=path.stem))
    # The run reads its files when it is asked, so they stay until it goes.
    weakref.finalize(run, folder.cleanup)
    return run


def open_run(path: str | Path) -> Run:
    """The one run at `path`.

    Raises:
        RecordsError: there is none, or it cannot be read.
        ValueError: `path` holds several runs.
    """
    runs = open_runs(path)
    if len(runs) != 1:
        names = ", ".join(run.name for run in runs[:5]) + (", ..." if len(runs) > 5 else "")
        raise ValueError(f"{path} holds {len(runs)} runs ({names}): name one of them")
    return runs[0]


def batches(run: Run, table: str, columns: Sequence[str], steps: slice | None = None) -> Iterator[pd.DataFrame]:
    """A table in pieces of limited size, as DataFrames with `columns`.

    Categories come as plain text: pieces of one table have different categories.
    """
    import pandas as pd

    from sagc_verl.records.reader import to_pandas

    for batch in run.scan(table, columns=columns, steps=steps):
        frame = to_pandas(pa_table(batch))
        for name in frame.columns:
            if isinstance(frame[name].dtype, pd.CategoricalDtype):
                frame[name] = frame[name].astype(object)
        yield frame


def pa_table(batch: pa.RecordBatch) -> pa.Table:
    """The batch as a table."""
    import pyarrow as pa

    return pa.Table.from_batches([batch])
