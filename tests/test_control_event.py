"""Which groups straggle, and what the references learn."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from control_worlds import World, batch_of

from sagc_verl.control import EventModel, GroupBatch
from sagc_verl.control import event as event_module
from sagc_verl.control import memory as memory_module


def model(**changes) -> EventModel:
    settings = {"threshold": 2.5, "reference": "shrunk", "count_truncated": False, "gamma": 0.98}
    return EventModel(**{**settings, **changes})


def test_rows_in_any_order_become_groups_in_order_of_first_appearance():
    batch = GroupBatch.from_rows(
        ["b", "a", "b", "c", "a"],
        [1, 2, 3, 4, 5],
        truncated=[False, True, False, False, False],
        prompts=["pb", "pa", "pb", "pc", "pa"],
        sources=["s", None, "s", None, None],
        cap=9,
    )
    assert batch.offsets.tolist() == [0, 2, 4, 5]
    assert batch.lengths.tolist() == [1, 3, 2, 5, 4]
    assert batch.truncated.tolist() == [False, False, True, False, False]
    assert batch.prompts.tolist() == ["pb", "pa", "pc"]
    assert batch.sources.tolist() == ["s", None, None]
    assert (batch.num_groups, batch.num_rollouts) == (3, 5)


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="truncated has 1 entries for 2 rollouts"):
        GroupBatch.from_rows([0, 0], [1, 2], truncated=[True])


def test_no_rows_at_all_are_a_batch_without_groups():
    batch = GroupBatch.from_rows([], [])
    events = model().observe(batch)
    assert batch.num_groups == 0
    assert np.isnan(events.rate)


def test_plain_ratio_as_the_paper_has_it():
    events = model(reference="max_median").observe(batch_of(np.array([[10.0, 10, 10, 26], [10, 10, 10, 25]])))
    assert events.ratio.tolist() == [2.6, 2.5]
    assert events.reference.tolist() == [10, 10]
    assert events.straggler.tolist() == [True, False]
    assert events.exceeds.tolist() == [False] * 3 + [True] + [False] * 4


def test_every_exceedance_of_a_group_is_counted():
    lengths = np.full((40, 8), 100.0) * np.exp(np.random.default_rng(0).normal(0, 0.1, (40, 8)))
    lengths[7, :3] = 1000
    events = model().observe(batch_of(lengths))
    assert events.exceeding[7] == 3
    assert events.exceeding.sum() == 3
    assert events.exceeds.reshape(40, 8)[7].tolist() == [True] * 3 + [False] * 5
    assert events.rate == pytest.approx(1 / 40)


def test_pairs_are_not_blind_with_the_shrunk_reference():
    batch = World(groups=4000, hazard=0.06).batch(2)
    assert model(reference="max_median").observe(batch).rate == 0
    assert model().observe(batch).rate == pytest.approx(1 - 0.94**2, abs=0.012)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16, 32])
def test_one_threshold_means_the_same_at_every_size(n):
    rng = np.random.default_rng(n)
    medians = np.exp(rng.normal(6, 0.4, (6000, 1)))
    lengths = medians * np.exp(rng.normal(0, 0.4, (6000, n)))
    truth = (lengths > 2.5 * medians).any(axis=1).mean()
    assert model().observe(batch_of(lengths)).rate == pytest.approx(truth, abs=0.025)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_sources_of_eightfold_different_length_do_not_fire_falsely(labelled, n):
    rng = np.random.default_rng(n)
    short = rng.random(4000) < 0.5
    medians = np.where(short, 100.0, 800.0)[:, None] * np.exp(rng.normal(0, 0.2, (4000, 1)))
    lengths = medians * np.exp(rng.normal(0, 0.4, (4000, n)))
    truth = np.any(lengths > 2.5 * medians, axis=1)
    sources = ["gsm8k" if s else "aime" for s in short] if labelled else None
    judged = model()
    for part in np.split(np.arange(4000), 4):  # four steps, as a run has them
        chosen = None if sources is None else [sources[i] for i in part]
        events = judged.observe(batch_of(lengths[part], chosen))
    assert events.rate == pytest.approx(np.mean(truth[part]), abs=0.02 if labelled else 0.04)
    assert np.mean(np.not_equal(events.straggler, truth[part])) < (0.06 if labelled else 0.09)


def test_one_labelled_source_is_not_judged_by_another_one_or_by_unlabelled_groups():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(0, 0.2, (300, 3))) * np.repeat([100.0, 5000.0, 40.0], 100)[:, None]
    sources = ["a"] * 100 + ["b"] * 100 + [None] * 100
    events = model().observe(batch_of(lengths, sources))
    assert events.rate == 0
    assert np.median(events.reference[100:200]) == pytest.approx(5000, rel=0.1)
    assert np.median(events.reference[200:]) == pytest.approx(40, rel=0.1)


def test_a_known_prompt_is_judged_by_its_own_history():
    rng = np.random.default_rng(0)
    typical = np.exp(rng.normal(6, 1.0, (64, 1)))
    prompts = [f"prompt {i}" for i in range(64)]

    def spread_of_references(known: bool) -> float:
        judged = model()
        for _ in range(12):
            lengths = typical * np.exp(rng.normal(0, 0.5, (64, 4)))
            events = judged.observe(batch_of(lengths, ["s"] * 64, prompts if known else None))
        return float(np.std(np.log(events.reference / typical.ravel())))

    assert spread_of_references(known=True) < 0.75 * spread_of_references(known=False)


def test_references_follow_a_drift_of_the_lengths():
    judged, rng = model(), np.random.default_rng(0)
    prompts = [f"prompt {i}" for i in range(64)]
    for step in range(60):
        lengths = 200 * 1.05**step * np.exp(rng.normal(0, 0.3, (64, 4)))
        events = judged.observe(batch_of(lengths, ["s"] * 64, prompts))
        assert np.median(events.reference) == pytest.approx(200 * 1.05**step, rel=0.2)
        assert events.rate < 0.12


@pytest.mark.parametrize("n", [4, 16])
def test_what_the_first_groups_of_a_prompt_suggest_does_not_stay(n):
    rng = np.random.default_rng(0)
    typical = np.exp(rng.normal(6, 1.0, (32, 1)))
    prompts = [f"prompt {i}" for i in range(32)]
    judged, error = model(), []
    for _ in range(150):
        references = judged.observe(batch_of(typical * np.exp(rng.normal(0, 0.5, (32, n))), None, prompts)).reference
        error.append(np.sqrt(np.mean(np.log(references / typical.ravel()) ** 2)))
    alone = 0.5 * np.sqrt(np.pi / 2 / n)  # what one group's median can tell
    assert np.mean(error[:3]) > 0.6 * alone
    assert np.mean(error[-50:]) < 0.3 * alone


def test_a_remembered_prompt_follows_a_jump_and_settles_again():
    rng = np.random.default_rng(0)
    typical = np.exp(rng.normal(6, 1.0, (64, 1)))
    prompts = [f"prompt {i}" for i in range(64)]
    judged, error = model(), []
    for step in range(120):
        now = typical * (1 if step < 60 else 3)
        references = judged.observe(batch_of(now * np.exp(rng.normal(0, 0.4, (64, 8))), ["s"] * 64, prompts)).reference
        error.append(np.log(references / now.ravel()))
    assert abs(np.mean(error[60])) > 0.3  # not foreseen
    assert abs(np.mean(error[65:])) < 0.05
    assert np.std(error[100:]) < 0.12


def test_the_prompts_not_seen_for_longest_are_forgotten(monkeypatch):
    monkeypatch.setattr(memory_module, "MAX_PROMPTS", 32)
    judged, often = model(), ["a", "b"]
    for step in range(40):
        judged.observe(batch_of(np.full((4, 4), 100.0), None, [*often, f"{step}/0", f"{step}/1"]))
    kept = list(judged.state_dict()["prompts"])
    assert kept[-4:] == ["a", "b", "39/0", "39/1"]
    assert 24 <= len(kept) <= 32
    assert "0/0" not in kept


def test_memory_recalls_what_was_remembered_last_and_nothing_of_none():
    memory = memory_module.PromptMemory()
    memory.remember(memory.slots(["a", None, "b", "a"]), np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, 0.5))
    m, variance = memory.recall(memory.slots(["b", "a", None, "c"]))
    assert m.tolist()[:2] == [3.0, 4.0]
    assert np.isnan(m[2:]).all()
    assert variance.tolist()[:2] == [0.5, 0.5]
    assert memory.state() == {"b": [3.0, 0.5], "a": [4.0, 0.5]}
    assert memory_module.PromptMemory.from_state(memory.state()).state() == memory.state()
    for damaged in ({"a": [1.0]}, {"a": 1.0}, {"a": [float("nan"), 1.0]}, {"a": [0.0, -1.0]}):
        with pytest.raises((ValueError, TypeError)):
            memory_module.PromptMemory.from_state(damaged)


def test_groups_of_one_or_none_never_count():
    batch = GroupBatch.from_rows([0, 1, 1, 1], [999.0, 10, 10, 10])
    events = model().observe(batch)
    assert events.counted.tolist() == [False, True]
    assert not events.straggler.any()
    assert np.isnan(events.reference[0])
    assert events.rate == 0


def test_bad_lengths_are_left_out_not_passed_on():
    lengths = np.array([[10.0, 11, 12, np.nan], [10, 0, -3, np.inf], [10, 11, 12, 13]])
    judged = model()
    events = judged.observe(batch_of(lengths))
    assert events.usable.tolist() == [3, 1, 4]
    assert events.counted.tolist() == [True, False, True]
    assert not events.exceeds.any()
    assert np.isfinite(events.reference[[0, 2]]).all()
    json.dumps(judged.state_dict(), allow_nan=False)


@pytest.mark.parametrize("reference", ["shrunk", "max_median"])
def test_a_cap_that_hides_stragglers_makes_groups_blind(reference):
    lengths = np.full((20, 4), 100.0)
    lengths[10:] = 900
    sources = ["short"] * 10 + ["long"] * 10
    events = model(reference=reference).observe(batch_of(lengths, sources, cap=1000))
    assert events.blind.tolist() == [False] * 10 + [True] * 10
    assert not model(reference=reference).observe(batch_of(lengths, sources)).blind.any()


@pytest.mark.parametrize("cap", [1000, None])
def test_truncated_rollouts_exceed_only_on_request_and_far_above_the_reference(cap):
    lengths = np.full((20, 4), 500.0)
    lengths[10:] = 900
    lengths[[0, 10], 0] = 1000
    truncated = lengths == 1000
    batch = batch_of(lengths, ["half"] * 10 + ["near"] * 10, truncated=truncated, cap=cap)
    assert not model().observe(batch).straggler.any()
    events = model(count_truncated=True).observe(batch)
    assert np.flatnonzero(events.straggler).tolist() == [0]
    if cap:
        assert events.blind.tolist() == [False] * 10 + [True] * 10


def test_the_step_event_looks_at_the_whole_batch():
    lengths = np.full((30, 4), 100.0)
    sources = ["a"] * 29 + ["b"]
    lengths[29] = 600  # unusual for the step, usual for its group
    events = model().observe(batch_of(lengths, sources))
    assert events.step_straggler
    assert not events.straggler.any()


def test_memory_stays_flat(monkeypatch):
    monkeypatch.setattr(memory_module, "MAX_PROMPTS", 100)
    monkeypatch.setattr(event_module, "MAX_SOURCES", 10)
    judged = model()
    for step in range(10):
        names = [f"{step}/{i}" * 50 for i in range(40)]
        judged.observe(batch_of(np.full((40, 4), 100.0), names, names))
    state = judged.state_dict()
    assert 40 < len(state["prompts"]) <= 100
    assert len(state["sources"]) <= 11
    assert max(len(prompt) for prompt in state["prompts"]) <= 64
    assert any(name is None for name, _ in state["sources"])


@pytest.mark.parametrize("groups", [1, 2, 5000])
@pytest.mark.parametrize("n", [2, 300])
def test_few_or_many_groups_small_or_large(groups, n):
    if groups * n > 100_000:
        n = 16
    events = model().observe(World(groups=groups, hazard=0.0).batch(n))
    assert np.isfinite(events.reference).all()
    assert events.rate <= 0.01


def test_arrays_that_do_not_fit_together_are_refused():
    good = World(groups=3).batch(4)
    bad = GroupBatch(good.lengths, good.offsets + 1, good.truncated, good.prompts, good.sources)
    with pytest.raises(ValueError, match="offsets"):
        model().observe(bad)
    bad = GroupBatch(good.lengths, good.offsets, good.truncated[1:], good.prompts, good.sources)
    with pytest.raises(ValueError, match="truncated"):
        model().observe(bad)


DATA = Path(os.environ.get("SAGC_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "lengths"


@pytest.mark.skipif(not DATA.exists(), reason="recorded lengths are not here (set SAGC_SHARED_DATA)")
@pytest.mark.parametrize(
    ("table", "shares"),
    [
        ("r1distill15b_aime1983_2009_n8", {2: 0.02, 4: 0.04, 8: 0.07}),
        ("rg_llama3b_step400_aime2024_n50", {2: 0.16, 4: 0.26, 8: 0.46, 16: 0.68}),
        ("rg_llama3b_step800_aime2024_n50", {2: 0.04, 4: 0.08, 8: 0.155, 16: 0.27}),
    ],
)
def test_shares_on_real_lengths(table, shares):
    lengths: dict[str, list[float]] = {}
    with gzip.open(DATA / f"{table}.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            lengths.setdefault(row["prompt_id"], []).append(float(row["length"]))
    values, rng = list(lengths.values()), np.random.default_rng(0)
    for n, share in shares.items():
        judged, rates = model(), []
        for _ in range(8):
            chosen = rng.integers(0, len(values), 256)
            batch = batch_of(np.stack([rng.permutation(values[i])[:n] for i in chosen]))
            rates.append(judged.observe(batch).rate)
        assert np.mean(rates) == pytest.approx(share, abs=0.03 if share > 0.1 else 0.015), n
