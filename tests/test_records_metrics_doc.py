"""docs/metrics.md says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from sagc_verl.records.tables import SAGC_SCALARS, TABLES

ROOT = Path(__file__).resolve().parents[1]


def test_the_document_is_up_to_date():
    script = runpy.run_path(str(ROOT / "scripts" / "make_metrics_doc.py"))
    assert script["DOC"].read_text(encoding="utf-8") == script["render"](), "run python scripts/make_metrics_doc.py"


def test_every_scalar_that_is_logged_is_documented():
    documented = [scalar.name for scalar in SAGC_SCALARS]
    logged = set()
    for path in (ROOT / "sagc_verl" / "trainer").glob("*.py"):
        logged |= set(re.findall(r"""["'](sagc/[\w/{}]+)["']""", path.read_text(encoding="utf-8")))
    assert logged
    for name in logged:
        # What an f-string fills in stands in angle brackets in the document.
        pattern = "[^/]+".join(re.escape(part) for part in re.split(r"\{[^}]*\}", name))
        assert any(re.fullmatch(pattern, other) for other in documented), f"{name} is not in SAGC_SCALARS"


def test_every_column_is_described_once():
    for columns in TABLES.values():
        names = [column.name for column in columns]
        assert len(names) == len(set(names))
        assert all(column.meaning and "|" not in column.meaning + column.reading + column.unit for column in columns)
