#!/usr/bin/env python3
"""Write the table of settings in README.md from sagc_verl/control/config.py.

python scripts/make_readme_table.py            # write
python scripts/make_readme_table.py --check    # exit 1 where the table is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sagc_verl.control.config import config_table

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- config:begin -->", "<!-- config:end -->"


def _cell(text: str) -> str:
    # A bare "<" begins an HTML tag in Markdown, "|" the next cell.
    return text.replace("<", "&lt;").replace("|", "\\|")


def render() -> str:
    """The table, one row per key."""
    rows = [
        f"| `{key}` | `{_cell(default)}` | {_cell(legal)} | {_cell(help)} |"
        for key, default, legal, help in config_table()
    ]
    return "\n".join(["| key | default | legal | what it is |", "|---|---|---|---|", *rows])


def with_table(readme: str) -> str:
    """The README with the table between its marks brought up to date.

    Raises:
        ValueError: a mark is missing, or there twice.
    """
    for mark in (BEGIN, END):
        if readme.count(mark) != 1:
            raise ValueError(f"{README.name} must hold {mark} once, holds it {readme.count(mark)} times")
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    current = README.read_text(encoding="utf-8")
    wanted = with_table(current)
    if "--check" in arguments:
        if current != wanted:
            print(f"{README} is out of date: run python scripts/make_readme_table.py", file=sys.stderr)
            return 1
        return 0
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
