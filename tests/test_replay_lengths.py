"""Groups drawn from samples on record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.lengths import LengthTable
from sagc_verl.replay.workloads import Epochs, Mixture, Succession, TableWorkload, generator


def table(counts: list[int], **how: object) -> LengthTable:
    """Prompt p has the samples 100 p + 1, 100 p + 2, ..."""
    prompt_of = np.repeat(np.arange(len(counts)), counts)
    within = np.concatenate([np.arange(count) for count in counts])
    return LengthTable(prompt_of, 100.0 * prompt_of + within + 1, **how)  # type: ignore[arg-type]


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.integers(2, 9), st.integers(0, 5))
def test_a_group_holds_different_samples_of_its_own_prompt(counts: list[int], n: int, seed: int):
    prompts = np.arange(len(counts))
    draw = table(counts).draw(prompts, n, generator(seed))
    for p, row in enumerate(draw.lengths):
        recorded = row[: counts[p]] if n > counts[p] else row
        assert len(set(recorded)) == len(recorded)
        assert set(recorded) <= {100.0 * p + i + 1 for i in range(counts[p])}
    assert draw.modelled == sum(max(0, n - count) for count in counts)
    assert (draw.lengths > 0).all()


def test_every_subset_is_equally_likely():
    draw = table([5]).draw(np.zeros(60_000, np.int64), 2, generator(1))
    pairs, counts = np.unique(np.sort(draw.lengths, axis=1), axis=0, return_counts=True)
    assert len(pairs) == 10
    assert np.abs(counts / 6000 - 1).max() < 0.06


def test_scores_and_truncation_stay_with_their_length():
    lengths = np.arange(1.0, 41.0)
    made = LengthTable(np.repeat(np.arange(4), 10), lengths, scores=lengths * 2, truncated=lengths > 35)
    draw = made.draw(np.array([3, 0, 3]), 6, generator(2))
    assert draw.scores is not None
    assert (draw.scores == draw.lengths * 2).all()
    assert (draw.truncated == (draw.lengths > 35)).all()


def test_the_law_continues_the_record_and_knows_the_cap():
    rng = np.random.default_rng(0)
    lengths = np.exp(6 + 0.5 * rng.standard_normal(200 * 8))
    made = LengthTable(np.repeat(np.arange(200), 8), np.minimum(lengths, 1200), truncated=lengths >= 1200, cap=1200.0)
    prompts = np.arange(200)
    draw = made.draw(prompts, 40, generator(0))
    assert draw.modelled == 200 * 32
    new = draw.lengths[:, 8:]
    assert draw.lengths.max() == 1200.0
    assert (draw.truncated == (draw.lengths >= 1200)).all()
    assert np.median(new) == pytest.approx(np.median(draw.lengths[:, :8]), rel=0.05)
    assert np.log(new).std() == pytest.approx(np.log(draw.lengths[:, :8]).std(), rel=0.1)


def test_epochs_visit_every_prompt_once_before_any_comes_back():
    epochs = Epochs(10)
    seen = np.concatenate([epochs.take(start, 7, seed=3) for start in range(0, 70, 7)])
    assert all(sorted(seen[i : i + 10]) == list(range(10)) for i in range(0, 70, 10))
    assert (epochs.take(7, 7, seed=3) == seen[7:14]).all()


def test_a_draw_depends_on_seed_and_step_alone():
    workload = TableWorkload("t", table([9] * 20))
    first = workload.draw(5, 8, 4, seed=1)
    workload.draw(50, 8, 3, seed=2)
    again = TableWorkload("t", table([9] * 20)).draw(5, 8, 4, seed=1)
    assert (first.lengths == again.lengths).all()
    assert (first.lengths != workload.draw(5, 8, 4, seed=2).lengths).any()


def test_mixture_marks_its_parts_and_succession_changes_over():
    keys = np.array([str(i) for i in range(20)], dtype=object)
    short = TableWorkload("short", table([9] * 20, keys=keys))
    long = TableWorkload("long", LengthTable(np.repeat(np.arange(20), 9), np.full(180, 5000.0), keys=keys))
    mixed = Mixture([short, long]).draw(1, 10, 4, seed=0)
    assert list(mixed.sources) == ["short"] * 5 + ["long"] * 5
    assert (mixed.lengths[5:] == 5000).all()
    assert set(Mixture([short, long], labelled=False).draw(1, 10, 4, seed=0).sources) == {None}

    later = Succession(short, long, at=10, ramp=10)
    shares = [float((later.draw(step, 20, 4, seed=0).lengths == 5000).mean()) for step in (9, 10, 15, 20, 99)]
    assert shares == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert later.breaks(12) == [1, 10, 11, 12]


def test_units_must_agree():
    tokens, seconds = TableWorkload("a", table([4])), TableWorkload("b", table([4]), unit="seconds")
    with pytest.raises(SourceError, match="mixed units: a in tokens, b in seconds"):
        Mixture([tokens, seconds])
