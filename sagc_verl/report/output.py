"""Where a command writes: a file that is complete or absent, or stdout."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

STDOUT = "-"


@contextmanager
def binary_output(target: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write to: stdout for "-", else a file that appears under its name once it is complete.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    if str(target) == STDOUT:
        stream = cast(BinaryIO, sys.stdout.buffer)
        yield stream
        stream.flush()
        return
    path = Path(target)
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(path.parent))
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def _umask() -> int:
    # mkstemp makes files private; what a user asked for should have the rights of any file they make.
    mask = os.umask(0)
    os.umask(mask)
    return mask
