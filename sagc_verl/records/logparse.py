"""veRL's logs, line by line: what was logged at which step.

Understood, plain or gzipped, also mixed and several at once:

- veRL's console (`step:12 - actor/loss:0.1 - ...`; veRL 0.9.1 utils/logger/aggregate_logger.py): with ANSI codes, Ray
  prefixes, progress bars on the same line, `np.float64(...)`, the names of old and new versions;
- the `file` logger (`{"step": 12, "data": {...}}`; utils/tracking.py);
- `trainer.rollout_data_dir` (`12.jsonl`, one rollout a line; trainer/ppo/v1/trainer_base.py).

Steps come in the order of the log. Where they go back, the run was resumed: the later steps supersede. Anything else in
a log is passed over; nothing in it is ever executed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from sagc_verl.records.errors import ImportLogError

LogPath = str | Path

RENAMED = {
    "mfu/actor": "perf/mfu/actor",
    "mfu/critic": "perf/mfu/critic",
    "total_num_tokens": "perf/total_num_tokens",
    "time_per_step": "perf/time_per_step",
    "Tokens/Sec/GPU": "perf/throughput",
    "actor/entropy_loss": "actor/entropy",
}
"""Names of old veRL versions -> names of today; `timing/...` and `val/test_score/...` are renamed by prefix."""

MAX_STEP = 10**12
_LONGEST_LINE = 2**24
_LONGEST_VALUE = 1000
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".jsonl", ".json")

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_STEP = re.compile(r"(?<![\w/.])step:([0-9]{1,12})(?= - )")
_NUMBER = (
    r"(?:np\.\w+\()?([-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|nan|inf)|True|False)\)?"
)
_METRIC = re.compile(rf"(\S.{{0,199}}?):{_NUMBER}\s*")
_METRIC_WITH_REST = re.compile(rf"([^\s:][^:]{{0,199}}):{_NUMBER}")  # a progress bar or Ray's "[repeated 2x]" behind it
_OVERRIDE = re.compile(r"(?<![\w.])\+{0,2}((?:data|actor_rollout_ref|algorithm|trainer|critic|reward)(?:\.\w+)+)=(\S+)")


class Rollout(NamedTuple):
    """One line of a rollout dump, lengths in characters."""

    uid: str
    session: int | None
    prompt_chars: int
    response_chars: int
    reward: float | None


@dataclass
class Log:
    """What the lines of a run's logs tell.

    rows: step -> metrics by veRL's present names.   validations: scores logged alone, before the first step.
    rollouts: of dumps, by step.   config: overrides by dotted name.   superseded: steps that a resume threw away.
    warnings: what could not be read.
    """

    sources: list[Path] = field(default_factory=list)
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    rollouts: dict[int, list[Rollout]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    dumped_here: set[int] = field(default_factory=set)
    superseded: int = 0
    warnings: list[str] = field(default_factory=list)
    last: int = -1

    def add_step(self, step: int, metrics: dict[str, float]) -> None:
        """One logged step; going back to a step means a restart, which supersedes it and all after it."""
        if all(name.startswith("val") for name in metrics):
            # Printed alone before the first step and after the last one, at the step the weights come from.
            self._drop_from(step + 1)
            self.validations.setdefault(step, {}).update(metrics)
        elif step != self.last or self.rows.get(step) != metrics:  # the same line twice is no restart
            self._drop_from(step)
            self.rows[step] = metrics
        self.last = step

    def _drop_from(self, step: int) -> None:
        if step > self.last:
            return
        gone = [other for other in self.rows if other >= step]
        self.superseded += len(gone)
        for other in gone:
            del self.rows[other]
        for other in [other for other in self.validations if other > step]:
            del self.validations[other]

    def place_validations(self) -> None:
        """Put scores that were logged alone into the row of the step whose weights they judge, where there is one.

        Old versions log the last validation one step late.
        """
        if not self.rows:
            self.rows, self.validations = self.validations, {}
            return
        for step in list(self.validations):
            row = self.rows.get(step)
            if row is None and step > max(self.rows):
                row = self.rows.get(step - 1)
            if row is not None:
                for name, value in self.validations.pop(step).items():
                    row.setdefault(name, value)


def read_logs(paths: LogPath | Sequence[LogPath]) -> Log:
    """Read logs in the order given (folders: by name). Raises ImportLogError where there are no steps in them."""
    log = Log()
    for path in [paths] if isinstance(paths, str | Path) else paths:
        for file in _files(Path(path).expanduser()):
            log.sources.append(file)
            log.dumped_here.clear()
            try:
                with _open(file) as lines:
                    _read_lines(_lines(lines), log)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                log.warnings.append(f"{file}: the gzip file is cut off or damaged, read up to there")
            except OSError as error:
                raise ImportLogError(f"{file}: cannot be read ({error.strerror or error})") from None
    log.place_validations()
    if not log.rows and not log.rollouts:
        problem = log.warnings[0] if log.warnings else f"{names(log.sources)}: no training steps found"
        raise ImportLogError(f"{problem} (no lines `step:N - key:value - ...`)")
    return log


def names(paths: Sequence[Path]) -> str:
    """The paths in few words."""
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "") if paths else "nothing given"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    names = [child for child in path.iterdir() if child.is_file()]
    found = [child for child in names if child.name.removesuffix(".gz").endswith(_LOG_SUFFIXES)]
    if not found:
        raise ImportLogError(f"{path}: no logs in this folder ({', '.join(_LOG_SUFFIXES)}, plain or .gz)")
    # Dumps are named by their step: 9.jsonl comes before 10.jsonl.
    return sorted(found, key=lambda child: _natural(child.name))


def _natural(name: str) -> list[str | int]:
    parts: list[str | int] = list(re.split("([0-9]+)", name))
    parts[1::2] = [int(part) for part in parts[1::2]]
    return parts


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open("rt", encoding="utf-8", errors="replace")


def _lines(file: IO[str]) -> Iterator[str]:
    # Text mode ends lines at \r too, which is how progress bars overwrite themselves.
    while line := file.readline(_LONGEST_LINE):
        yield line


def _read_lines(lines: Iterable[str], log: Log) -> None:
    for line in lines:
        if line.lstrip()[:1] == "{" and _read_json(line, log):
            continue
        if "step:" in line:
            _read_console(_ANSI.sub("", line), log)
        elif "=" in line:
            for name, value in _OVERRIDE.findall(line):
                log.config[name] = value.strip("'\"\\,")[:_LONGEST_VALUE]


def _read_console(line: str, log: Log) -> None:
    starts = list(_STEP.finditer(line))
    for start, end in zip(starts, [*(match.start() for match in starts[1:]), len(line)], strict=False):
        text = line[start.end() : end]
        metrics: dict[str, float] = {}
        for part in text.split(" - "):
            match = _METRIC.fullmatch(part) or _METRIC_WITH_REST.match(part)
            if match:
                metrics[_present_name(match[1])] = _number(match[2])
        if metrics:
            log.add_step(int(start[1]), metrics)


def _read_json(line: str, log: Log) -> bool:
    """Take a line of the file logger or of a rollout dump; False where it is neither."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    step = entry.get("step") if isinstance(entry, dict) else None
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        return False
    data = entry.get("data")
    if isinstance(data, dict):
        metrics = {_present_name(name): number for name, value in data.items() if (number := _float(value)) is not None}
        if metrics:
            log.add_step(step, metrics)
        return True
    if isinstance(entry.get("output"), str):
        _add_rollout(entry, step, log)
        return True
    return False


def _add_rollout(entry: Mapping[str, Any], step: int, log: Log) -> None:
    prompt = entry.get("input")
    prompt = prompt if isinstance(prompt, str) else ""
    uid, session = entry.get("uid"), None
    if isinstance(uid, str):
        parts = uid.rsplit("_", 2)  # {uid}_{session}_{output}
        if len(parts) == 3 and re.fullmatch("[0-9]{1,9}", parts[1]):
            uid, session = parts[0], int(parts[1])
        if uid.startswith("pad"):
            return
    else:
        uid = hashlib.sha1(prompt.encode("utf-8", "replace")).hexdigest()[:16]
    if step not in log.dumped_here:  # a later dump of the same step is of a resumed run
        log.dumped_here.add(step)
        log.rollouts[step] = []
    log.rollouts[step].append(Rollout(uid, session, len(prompt), len(entry["output"]), _float(entry.get("score"))))


def _float(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _number(text: str) -> float:
    return float(text == "True") if text in ("True", "False") else float(text)


def _present_name(name: str) -> str:
    if name.startswith("timing/"):
        return "timing_s/" + name.removeprefix("timing/")
    if name.startswith("val/test_score/"):
        return f"val-core/{name.removeprefix('val/test_score/')}/reward/mean@1"
    return RENAMED.get(name, name)
