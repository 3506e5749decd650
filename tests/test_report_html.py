from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_runs import write_run

from sagc_verl.report.compare import compare_runs
from sagc_verl.report.html import render_html, write_html
from sagc_verl.report.plots import MAX_POINTS, figures

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;<b>'\"\x1b[31m"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "evil", name=HOSTILE, data_source=HOSTILE, actor_rollout_ref__model__path=HOSTILE, steps=12)
    write_run(place / "sagc", policy="sagc", sizes=(4, 8), steps=12)
    for seed in (1, 2):
        write_run(place / f"s5-seed{seed}", sizes=(5,), seed=seed, steps=12)
    return compare_runs([place / "evil", place / "sagc", place / "s5-seed1", place / "s5-seed2"])


@pytest.fixture(scope="module")
def page(comparison) -> str:
    return render_html(comparison)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)


@pytest.fixture(scope="module")
def elements(page: str) -> _Elements:
    parsed = _Elements()
    parsed.feed(page)
    return parsed


def test_the_page_is_well_formed_and_holds_only_its_own_elements(elements: _Elements) -> None:
    assert elements.unbalanced == []
    assert elements.open == []
    assert elements.tags["script"] == 3  # the figures, plotly.js, the page's own
    assert elements.tags["img"] == 0
    assert elements.tags["b"] == 0
    assert not [one for one in elements.attributes if one[1].startswith("on")]


def test_the_page_needs_nothing_from_elsewhere(elements: _Elements, page: str) -> None:
    assert not [one for one in elements.attributes if one[1] in ("src", "href", "srcset", "action")]
    assert "default-src 'none'" in page
    assert len(re.findall(r"plotly\.js v\d", page)) == 1


def test_hostile_names_are_shown_as_text(page: str) -> None:
    from plotly.offline import get_plotlyjs

    assert get_plotlyjs() in page
    ours = page.replace(get_plotlyjs(), "")  # some of its releases hold an escape character
    # Counted: pytest would compare a word with megabytes for hours.
    assert ours.count("alert(1)&lt;/script&gt;")
    assert not ours.count("<script>alert")
    assert not ours.count("\x1b")


def test_figures_are_valid_and_escape_names(comparison, page: str) -> None:
    import plotly.graph_objects as go

    stored = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert stored is not None
    drawn = json.loads(stored[1])
    assert len(drawn) == len(figures(comparison)) == page.count('class="plot"')
    for figure in drawn:
        go.Figure(_with_colours(figure))  # raises where plotly would not know a key or value
        for trace in figure["data"]:
            assert "<" not in trace.get("name", "")


def _with_colours(value: Any) -> Any:
    if isinstance(value, str):
        return "#123456" if re.fullmatch(r"@[a-z]+\d*", value) else value
    if isinstance(value, list):
        return [_with_colours(one) for one in value]
    if isinstance(value, dict):
        return {key: _with_colours(one) for key, one in value.items()}
    return value


def test_every_colour_named_by_a_figure_is_in_both_palettes(comparison) -> None:
    css = (Path(__file__).parents[1] / "sagc_verl/report/assets/report.css").read_text()
    light, dark = css.split("@media screen and (prefers-color-scheme: dark)")[:2]
    text = json.dumps([[figure.data, figure.layout] for figure in figures(comparison)])
    names = {name.replace("band", "series") for name in re.findall(r'"@([a-z]+\d*)"', text)}
    assert names
    for name in names:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark


def test_the_figures_asked_for_are_there(comparison) -> None:
    titles = [figure.title for figure in figures(comparison)]
    for title in (
        "Group size",
        "Straggler rate against the budget",
        "Reward against steps",
        "Reward against rollouts",
        "Reward against wall-clock",
        "Where a step's time goes",
        "Tail seconds",
        "Response length by outcome",
        "Response lengths",
        "Validation: val-core/gsm8k/reward/mean@1",
    ):
        assert title in titles


def test_lengths_are_shares_of_all_responses(comparison) -> None:
    (lengths,) = [figure for figure in figures(comparison) if figure.title == "Response lengths"]
    for trace in lengths.data:
        assert sum(trace["y"]) == pytest.approx(1, abs=1e-3)


def test_several_seeds_get_a_band(comparison) -> None:
    (reward,) = [figure for figure in figures(comparison) if figure.title == "Reward against steps"]
    assert sum(trace.get("fill") == "toself" for trace in reward.data) == 1


def test_long_runs_are_thinned(tmp_path: Path) -> None:
    from sagc_verl.records.importlog import import_log

    log = tmp_path / "long.log"
    log.write_text("\n".join(f"step:{step} - critic/score/mean:0.5 - timing_s/step:1.0" for step in range(1, 2001)))
    import_log(log).to_parquet(tmp_path / "long.parquet")
    (reward,) = [
        one for one in figures(compare_runs([tmp_path / "long.parquet"])) if one.title == "Reward against steps"
    ]
    assert len(reward.data[0]["x"]) == MAX_POINTS


def test_the_report_is_the_same_each_time_and_written_whole(comparison, page: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    write_html(comparison, out)
    assert out.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [out]
