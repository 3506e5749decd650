"""Tables of lengths from other people: one row per sampled response, csv (also .gz) or parquet.

| column | any of these names | needed |
|---|---|---|
| prompt | prompt_id, prompt_index, prompt, question_id, uid, group | yes |
| length | length, response_tokens, response_length, num_tokens, tokens, characters, chars, seconds, generate_s | yes |
| score | score, reward, correct | for dynamic sampling |
| data source | data_source, source | no |
| truncated | truncated, clipped | no |
| unit | unit | no: tokens, or what the name of the length column says |
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.lengths import UNITS, LengthTable

if TYPE_CHECKING:
    import pandas as pd

PROMPT_NAMES = ("prompt_id", "prompt_index", "prompt", "question_id", "uid", "group")
LENGTH_UNITS = {
    "length": None,
    "response_tokens": "tokens",
    "response_length": None,
    "num_tokens": "tokens",
    "tokens": "tokens",
    "characters": "characters",
    "chars": "characters",
    "seconds": "seconds",
    "generate_s": "seconds",
}
SCORE_NAMES = ("score", "reward", "correct")
SOURCE_NAMES = ("data_source", "source")
TRUNCATED_NAMES = ("truncated", "clipped")
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")


def read_frame(path: Path) -> pd.DataFrame:
    """A csv or parquet file.

    Raises:
        SourceError: it is not one, is empty or cannot be parsed.
    """
    import pandas as pd

    try:
        frame = pd.read_parquet(path) if path.name.endswith(".parquet") else pd.read_csv(path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, zlib.error) as error:  # pandas and pyarrow raise kinds of ValueError for bad content
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceError(f"{path}: cannot be read as a table: {what}") from None
    if frame.empty:
        raise SourceError(f"{path}: the table holds no rows")
    return frame


def table_from_frame(
    frame: pd.DataFrame, name: str, unit: str | None = None, cap: float | None = None, keyed: bool = True
) -> tuple[LengthTable, str, list[str]]:
    """Check a table of lengths.

    Args:
        frame: with the columns of the module's box.
        name: how errors call it.
        unit: what lengths are counted in, where the table does not say; None for what it says, else tokens.
        cap: the largest length possible; None: the longest truncated rollout where the table marks such.
        keyed: prompts are recognised when they come back.

    Returns:
        The table, its unit, and notes for the user.

    Raises:
        SourceError: one line saying what is wrong with it.
    """
    import pandas as pd

    prompt_column = _column(frame, name, PROMPT_NAMES, "prompts")
    length_column = _column(frame, name, LENGTH_UNITS, "lengths")
    lengths = _numbers(frame[length_column])
    _refuse_rows(name, length_column, frame, ~np.isfinite(lengths), "is not a number")
    _refuse_rows(name, length_column, frame, lengths <= 0, "is not above zero")
    if frame[prompt_column].isna().any():
        _refuse_rows(name, prompt_column, frame, frame[prompt_column].isna().to_numpy(), "is empty")
    unit = _unit(frame, name, length_column, lengths, unit)

    prompt_of, prompts = pd.factorize(frame[prompt_column])
    counts = np.bincount(prompt_of)
    notes: list[str] = []
    if counts.max() < 2:
        raise SourceError(f"{name}: one sample per prompt: groups need at least 2 responses to the same prompt")
    alone = int((counts < 2).sum())
    kept = counts[prompt_of] >= 2
    if alone:
        notes.append(f"{name}: {alone} of {len(counts)} prompts have a single sample and are left out")

    def column(names: Iterable[str]) -> np.ndarray | None:
        found = [column for column in names if column in frame.columns]
        return frame[found[0]].to_numpy()[kept] if found else None

    scores, truncated, sources = column(SCORE_NAMES), column(TRUNCATED_NAMES), column(SOURCE_NAMES)
    if scores is not None:
        scores = _numbers(pd.Series(scores))
        if np.isnan(scores).any():
            notes.append(f"{name}: scores are missing in {int(np.isnan(scores).sum())} rows, so none are used")
            scores = None
    lengths, prompt_of = lengths[kept], pd.factorize(prompt_of[kept])[0]
    first = np.unique(prompt_of, return_index=True)[1]
    flags = None if truncated is None else _flags(truncated, name)
    if cap is not None and (lengths > cap).any():
        raise SourceError(f"{name}: cap {cap:g} is below the longest length, {lengths.max():g}")
    if cap is not None and flags is None:
        flags = lengths >= cap
    if cap is None and flags is not None and flags.any():
        cap = float(lengths[flags].max())
    table = LengthTable(
        prompt_of,
        lengths,
        scores=scores,
        truncated=flags,
        keys=np.array([str(key) for key in prompts[counts >= 2]], dtype=object) if keyed else None,
        sources=None if sources is None else np.array([_text(value) for value in sources[first]], dtype=object),
        cap=cap,
    )
    if table.num_prompts == 1:
        notes.append(f"{name}: a single prompt: what it says holds for that prompt only")
    return table, unit, notes


def _numbers(column: Any) -> np.ndarray:
    """float64 (R,), NaN for whatever is no number."""
    import pandas as pd

    numeric: Any = pd.to_numeric(column, errors="coerce")
    return numeric.to_numpy(np.float64, na_value=np.nan)


def _flags(values: Any, name: str) -> np.ndarray:
    """bool (R,); empty ones are false."""
    import pandas as pd

    try:
        found: Any = pd.array(values, dtype="boolean")
    except (TypeError, ValueError):
        raise SourceError(f"{name}: the column of truncated rollouts must hold true and false") from None
    return found.fillna(False).to_numpy(bool)


def _text(value: Any) -> str | None:
    return None if value is None or value != value else str(value)


def _column(frame: pd.DataFrame, name: str, legal: Iterable[str], what: str) -> str:
    for column in legal:
        if column in frame.columns:
            return column
    shown = ", ".join(str(column) for column in frame.columns[:8]) + (", ..." if len(frame.columns) > 8 else "")
    raise SourceError(f"{name}: no column of {what} (one of {', '.join(legal)}); it has {shown}")


def _refuse_rows(name: str, column: str, frame: pd.DataFrame, bad: np.ndarray, wrong: str) -> None:
    if not bad.any():
        return
    row = int(np.flatnonzero(bad)[0])
    others = f" (and {int(bad.sum()) - 1} more rows)" if bad.sum() > 1 else ""
    raise SourceError(f"{name}: row {row + 1}: {column}={frame[column].iloc[row]} {wrong}{others}")


def _unit(frame: pd.DataFrame, name: str, column: str, lengths: np.ndarray, asked: str | None) -> str:
    if asked is not None and asked not in UNITS:
        raise SourceError(f"unit {asked!r}: must be one of {', '.join(UNITS)}")
    stated = LENGTH_UNITS[column]
    if "unit" in frame.columns:
        units = sorted({str(value) for value in frame["unit"].dropna().unique()})
        if len(units) > 1:
            raise SourceError(f"{name}: mixed units ({', '.join(units)}): one table must count in one unit")
        if units and units[0] not in UNITS:
            raise SourceError(f"{name}: unit {units[0]!r}: must be one of {', '.join(UNITS)}")
        stated = units[0] if units else stated
    if stated is not None and asked is not None and stated != asked:
        raise SourceError(f"{name}: mixed units: the table says {stated}, asked for {asked}")
    unit = asked or stated
    whole = float((lengths == np.floor(lengths)).mean())
    if unit != "seconds" and whole < 1.0:
        if unit is None and whole < 0.05:
            return "seconds"
        raise SourceError(
            f"{name}: mixed units: {100 * (1 - whole):.0f}% of {column} are fractions, which counts of "
            f"{unit or 'tokens'} cannot be; split the table, or say --unit seconds if all are seconds"
        )
    return unit or "tokens"
