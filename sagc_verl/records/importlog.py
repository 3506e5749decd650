"""Runs made without SAGC, from the logs people have: into the same tables, so that they can be compared too.

`logparse` tells which logs are understood.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagc_verl.records.errors import ImportLogError, RecordsError
from sagc_verl.records.layout import FORMAT, FORMAT_KEY, KIND, RECORDS_DIR, RUN_FILE, TABLE_NAMES, file_name, list_files
from sagc_verl.records.logparse import Log, LogPath, Rollout, names, read_logs
from sagc_verl.records.tables import IMPORTED_COLUMNS, ROLLOUTS, STEPS, Column, arrow_type, columns_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_LARGEST_INT = 2**31


def import_log(paths: LogPath | Sequence[LogPath]) -> pd.DataFrame:
    """The steps of a run from its logs.

    paths: log files, or folders of logs or of rollout dumps, in the order in which they were written.

    Returns a DataFrame with the columns of the steps table: one row per training step, ascending, every metric logged
    as float64 under veRL's present name; wall_s, tokens, rollouts and n where they follow from the log. `attrs` has
    `sources` (paths), `config` (overrides found in the log), `superseded` (number of steps that a resume threw away),
    `validations` (step -> scores, for validations before the first step) and `warnings` (what could not be read).

    Raises ImportLogError where there are no steps or a path cannot be read.
    """
    from sagc_verl.records.reader import to_pandas

    log = read_logs(paths)
    frame = to_pandas(_steps_table(log))
    frame.attrs = {
        "sources": [str(path) for path in log.sources],
        "config": log.config,
        "superseded": log.superseded,
        "validations": {str(step): scores for step, scores in log.validations.items()},
        "warnings": log.warnings,
    }
    return frame


def import_rollouts(paths: LogPath | Sequence[LogPath]) -> pd.DataFrame:
    """The rollouts of a run from its rollout dumps: the rollouts table, with `prompt_chars` and `response_chars`.

    Dumps hold texts: lengths are in characters, token counts null. Groups are told apart by `uid`; dumps of old
    versions have none, and there the rollouts of a step with the same prompt are one group.

    Raises ImportLogError where there are none or a path cannot be read.
    """
    from sagc_verl.records.reader import to_pandas

    log = read_logs(paths)
    if not log.rollouts:
        raise ImportLogError(f"{names(log.sources)}: no rollout dumps (N.jsonl with input, output, score, step)")
    return to_pandas(_rollouts_table(log.rollouts))


def write_imported_run(
    steps: pd.DataFrame, directory: str | Path, rollouts: pd.DataFrame | None = None, name: str | None = None
) -> Path:
    """Write what was imported as a run that `load_run(directory)` opens. Returns `<directory>/sagc`.

    steps: as import_log gave it (its `attrs` go to run.json under `imported`).   rollouts: as import_rollouts gave it.

    Raises RecordsError where the directory holds records already; OSError.
    """
    import pyarrow as pa

    from sagc_verl.records.parquet import write_file
    from sagc_verl.records.runinfo import describe_process, write_run_info

    target = Path(directory) / RECORDS_DIR
    if (target / RUN_FILE).exists() or any(list_files(target / table)[0] for table in TABLE_NAMES):
        raise RecordsError(f"{target}: holds records already; choose another directory")
    for table, frame in (("steps", steps), ("rollouts", rollouts)):
        if frame is None or frame.empty:
            continue
        rows = pa.Table.from_pandas(frame, schema=_schema_of(table, frame), preserve_index=False)
        rows = rows.replace_schema_metadata({FORMAT_KEY: str(FORMAT).encode()})
        path = target / table / file_name(int(frame["step"].min()), int(frame["step"].max()), 1)
        write_file(path, rows.schema, [rows])
    info = {
        "kind": KIND,
        "format": FORMAT,
        "name": name or Path(directory).resolve().name,
        "imported": dict(steps.attrs),
        "importer": describe_process(),
        "config": _nested(steps.attrs.get("config", {})),
        "resumes": [{"attempt": 1, "step": 0}],
    }
    write_run_info(target, info)
    return target


def _steps_table(log: Log) -> pa.Table:
    import pyarrow as pa

    rows = {step: log.rows.get(step, {}) for step in sorted(log.rows or log.rollouts)}
    asked = _value(log.config.get("actor_rollout_ref.rollout.n", ""))
    fixed: list[dict[str, Any]] = []
    for step, row in rows.items():
        dump = log.rollouts.get(step, [])
        for name, value in _of_dump(dump).items():
            row.setdefault(name, value)
        fixed.append({"n": asked, **_of_metrics(row), **_counts(dump), "step": step, "attempt": 1})
    columns = {column.name: _array([row.get(column.name) for row in fixed], column) for column in STEPS}
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        if name not in columns:
            values = [row.get(name) for row in rows.values()]
            columns[name] = pa.array(values, type=pa.float64(), from_pandas=True)
    return pa.table(columns)


def _array(values: list[Any], column: Column) -> pa.Array:
    import pyarrow as pa

    if column.kind == "category":
        return pa.nulls(len(values), pa.string()).dictionary_encode()
    known = [value if isinstance(value, int | float) and math.isfinite(value) else None for value in values]
    if column.kind in ("key", "int", "count"):
        known = [None if value is None or abs(value) >= _LARGEST_INT else round(value) for value in known]
    return pa.array(known, type=arrow_type(column.kind))


def _of_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """The fixed columns that follow from veRL's metrics of a step, and from SAGC's where it was there."""
    values: dict[str, float] = {"wall_s": row.get("timing_s/step", row.get("perf/time_per_step", math.nan))}
    total = row.get("perf/total_num_tokens", math.nan)
    prompt, response = row.get("prompt_length/mean", math.nan), row.get("response_length/mean", math.nan)
    if prompt + response > 0:
        # The total is over prompts and responses, the means are per rollout.
        values["rollouts"] = total / (prompt + response)
        values["tokens"] = values["rollouts"] * response
    for column in STEPS:
        name = {"n": "size", "next_n": "next_size"}.get(column.name, column.name)
        if f"sagc/{name}" in row:
            values[column.name] = row[f"sagc/{name}"]
    return values


def _of_dump(rollouts: Sequence[Rollout]) -> dict[str, float]:
    scores = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    metrics: dict[str, float] = {}
    for name, values in (
        ("critic/score", scores),
        ("response_chars", [rollout.response_chars for rollout in rollouts]),
        ("prompt_chars", [rollout.prompt_chars for rollout in rollouts]),
    ):
        if values:
            metrics |= {
                f"{name}/mean": sum(values) / len(values),
                f"{name}/max": max(values),
                f"{name}/min": min(values),
            }
    return metrics


def _counts(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """rollouts, and n where all groups have the same size."""
    if not rollouts:
        return {}
    sizes = set(Counter(rollout.uid for rollout in rollouts).values())
    return {"rollouts": len(rollouts), **({"n": sizes.pop()} if len(sizes) == 1 else {})}


def _rollouts_table(rollouts: Mapping[int, Sequence[Rollout]]) -> pa.Table:
    import pyarrow as pa

    from sagc_verl.records.parquet import conform

    rows = [(step, rollout) for step in sorted(rollouts) for rollout in rollouts[step]]
    sizes = Counter((step, rollout.uid) for step, rollout in rows)
    schema = _schema_of("rollouts", [*(column.name for column in ROLLOUTS), *Rollout._fields])
    known: dict[str, list[Any]] = {
        "step": [step for step, _ in rows],
        "attempt": [1] * len(rows),
        "n": [sizes[step, rollout.uid] for step, rollout in rows],
        **{name: [getattr(rollout, name) for _, rollout in rows] for name in Rollout._fields},
    }
    return conform(pa.table({name: pa.array(values, from_pandas=True) for name, values in known.items()}), schema)


def _schema_of(table: str, names: Iterable[str]) -> pa.Schema:
    """Arrow schema of columns of a table by name: the documented types, float64 for metrics."""
    import pyarrow as pa

    known = {column.name: column for column in (*columns_of(table), *(IMPORTED_COLUMNS if table == "rollouts" else ()))}
    names = dict.fromkeys(str(name) for name in names)
    return pa.schema([(name, arrow_type(known[name].kind) if name in known else pa.float64()) for name in names])


def _nested(config: Mapping[str, str]) -> dict[str, Any]:
    """Dotted overrides as a nested configuration, numbers and booleans as such."""
    nested: dict[str, Any] = {}
    for name, text in config.items():
        *parents, key = name.split(".")
        level = nested
        for parent in parents:
            below = level.setdefault(parent, {})
            level = below if isinstance(below, dict) else {}
        level[key] = _value(text)
    return nested


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch("[-+]?[0-9]{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]{1,3})?", text) else text
