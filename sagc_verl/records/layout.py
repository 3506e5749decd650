"""Names of record files, and which of them count.

A run directory holds `sagc/run.json` and the folders `sagc/rollouts`, `sagc/groups`, `sagc/steps`. Every file in them
is named `<first step>-<last step>.a<attempt>.parquet`: one step when freshly written, a range once compacted. Names
alone decide what counts, so that a crash at any point leaves a readable run:

- A file whose range lies within another file of the same attempt is a leftover of a compaction, and is ignored.
- Each start of the trainer is an attempt. An attempt that resumed from step k supersedes the steps after k of all
  earlier attempts; those rows are the dead branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FORMAT = 1
"""Version of the files; readers refuse larger ones."""

KIND = "sagc-verl records"
RECORDS_DIR = "sagc"
RUN_FILE = "run.json"
TABLE_NAMES = ("rollouts", "groups", "steps")
TEMP_PREFIX = ".tmp-"
FORMAT_KEY = b"sagc_format"

_NAME = re.compile(r"(\d{8,})-(\d{8,})\.a(\d{3,})\.parquet")


@dataclass(frozen=True)
class RecordFile:
    """One Parquet file: the steps `first`..`last` (both included) of one attempt."""

    path: Path
    first: int
    last: int
    attempt: int

    def covers(self, other: RecordFile) -> bool:
        """Whether this is the compacted file that holds what `other` holds."""
        return (
            self.attempt == other.attempt
            and self.first <= other.first
            and other.last <= self.last
            and (self.first, self.last) != (other.first, other.last)
        )


def file_name(first: int, last: int, attempt: int) -> str:
    """Name of the file of the steps `first`..`last` of an attempt."""
    return f"{first:08d}-{last:08d}.a{attempt:03d}.parquet"


def list_files(directory: Path) -> tuple[list[RecordFile], list[Path]]:
    """Record files of one table, by step and attempt, and the files in its folder that are none.

    Temporary files are neither. A missing folder is an empty one.
    """
    files: list[RecordFile] = []
    foreign: list[Path] = []
    if not directory.is_dir():
        return files, foreign
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            first, last, attempt = (int(text) for text in match.groups())
            files.append(RecordFile(path, first, last, attempt))
        elif not path.name.startswith("."):
            foreign.append(path)
    files.sort(key=lambda file: (file.first, file.attempt, file.last))
    return files, sorted(foreign)


def without_covered(files: Iterable[RecordFile]) -> list[RecordFile]:
    """The files less those that a compacted file of the same attempt covers, in the same order."""
    files = list(files)
    spans = [file for file in files if file.last > file.first]
    return [file for file in files if not any(span.covers(file) for span in spans)]


def live_limits(resumes: Mapping[int, int], files: Iterable[RecordFile]) -> dict[int, float]:
    """Last live step of each attempt (infinite for the newest).

    `resumes` maps an attempt to the step it resumed from (0: from the start). An attempt that only the file names know
    (its run.json could not be written) is taken to have resumed just before its first step.
    """
    start = dict(resumes)
    for file in files:
        if file.attempt not in resumes:
            start[file.attempt] = min(start.get(file.attempt, file.first - 1), file.first - 1)
    limits: dict[int, float] = {}
    limit = float("inf")
    for attempt in sorted(start, reverse=True):
        limits[attempt] = limit
        limit = min(limit, start[attempt])
    return limits
