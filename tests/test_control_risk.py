"""Risk models, rules and utilities."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagc_verl.control import RISKS, RULES, UTILITIES, parse_config, subset_risk

steady = settings(derandomize=True, deadline=None, max_examples=60)
ALL_SIZES = np.arange(1, 513)


@pytest.mark.parametrize("name", list(RISKS))
@steady
@given(steps=st.lists(st.tuples(st.integers(2, 64), st.floats(0, 1), st.integers(1, 200)), max_size=6))
def test_risk_rises_with_size_whatever_was_seen(name, steps):
    risk, rng = RISKS[name](0.9), np.random.default_rng(0)
    for n, hazard, groups in steps:
        risk.update(rng.binomial(n, hazard, groups), np.full(groups, n))
        predicted = risk.predict(ALL_SIZES)
        assert np.isfinite(predicted).all()
        assert ((predicted >= 0) & (predicted <= 1)).all()
        assert (np.diff(predicted) >= -1e-12).all()


def test_what_is_learnt_at_one_size_holds_for_others():
    rng = np.random.default_rng(0)
    risk = RISKS["beta_binomial"](1.0)
    for _ in range(60):
        hazard = rng.beta(0.5, 9.5, 64)  # prompts differ: a few make most of the stragglers
        risk.update(rng.binomial(16, hazard), np.full(64, 16))
    sizes = np.array([2, 4, 8, 16])
    hazard = rng.beta(0.5, 9.5, 200_000)
    truth = [(1 - (1 - hazard) ** n).mean() for n in sizes]
    assert risk.predict(sizes) == pytest.approx(truth, rel=0.05)


def test_with_many_groups_the_grid_is_not_the_limit():
    errors = []
    for mean in (0.004, 0.0075, 0.013, 0.022, 0.05):
        rng, risk = np.random.default_rng(0), RISKS["beta_binomial"](0.98)
        for _ in range(40):
            risk.update(rng.binomial(8, rng.beta(10 * mean, 10 * (1 - mean), 1024)), np.full(1024, 8))
        truth = [(1 - (1 - rng.beta(10 * mean, 10 * (1 - mean), 400_000)) ** n).mean() for n in (4, 8, 16)]
        errors.append(np.abs(risk.predict(np.array([4, 8, 16])) / truth - 1))
    assert np.mean(errors) < 0.03
    assert np.max(errors) < 0.06


def test_sizes_may_be_mixed_in_a_step():
    rng = np.random.default_rng(0)
    risk = RISKS["beta_binomial"](0.98)
    for _ in range(40):
        sizes = rng.choice([3, 7, 12], 100)
        risk.update(rng.binomial(sizes, 0.03), sizes)
    assert risk.predict(np.array([5])) == pytest.approx([1 - 0.97**5], abs=0.02)


@pytest.mark.parametrize("name", list(RISKS))
def test_old_steps_are_forgotten(name):
    rng, risk = np.random.default_rng(0), RISKS[name](0.9)
    for hazard in (0.2, 0.01):
        for _ in range(60):
            risk.update(rng.binomial(8, hazard, 64), np.full(64, 8))
    assert risk.predict(np.array([8]))[0] == pytest.approx(1 - 0.99**8, abs=0.03)


@pytest.mark.parametrize("name", list(RISKS))
def test_risk_state_is_json_and_refuses_what_is_not_its_own(name):
    rng, risk = np.random.default_rng(0), RISKS[name](0.98)
    risk.update(rng.binomial(8, 0.1, 64), np.full(64, 8))
    other = RISKS[name](0.98)
    other.load_state_dict(json.loads(json.dumps(risk.state_dict(), allow_nan=False)))
    assert (other.predict(ALL_SIZES) == risk.predict(ALL_SIZES)).all()
    with pytest.raises(ValueError, match="log_posterior"):
        other.load_state_dict({"log_posterior": [0.0, 1.0]})
    assert (other.predict(ALL_SIZES) == risk.predict(ALL_SIZES)).all()


def test_subset_check_agrees_with_drawing_subsets_at_a_fixed_reference():
    rng = np.random.default_rng(0)
    hazard = rng.beta(1, 20, 4000)
    exceeds = rng.random((4000, 16)) < hazard[:, None]  # a fixed reference: what exceeds does not depend on the group
    for smaller in (1, 2, 5, 8, 16):
        expected = np.mean([subset_risk(int(k), 16, smaller) for k in exceeds.sum(axis=1)])
        drawn = exceeds[:, :smaller].any(axis=1).mean()
        assert expected == pytest.approx(drawn, abs=0.02)


def test_subset_check_agrees_with_the_posterior():
    rng, risk = np.random.default_rng(0), RISKS["beta_binomial"](0.98)
    counts = rng.binomial(16, rng.beta(1, 20, 2000))
    risk.update(counts, np.full(2000, 16))
    for smaller in (2, 4, 8):
        unbiased = np.mean([subset_risk(int(k), 16, smaller) for k in counts])
        assert risk.predict(np.array([smaller]))[0] == pytest.approx(unbiased, abs=0.015)


@pytest.mark.parametrize("arguments", [(3, 2, 1), (-1, 4, 2), (1, 4, 5)])
def test_subset_check_refuses_what_cannot_be(arguments):
    with pytest.raises(ValueError, match="need 0 <="):
        subset_risk(*arguments)


def rule_of(name, **changes):
    return RULES[name](parse_config({"rule": name, **changes}, 16))


@pytest.mark.parametrize("name", list(RULES))
@steady
@given(
    rates=st.lists(st.floats(0, 1), max_size=80),
    budget=st.floats(0.01, 0.99),
    cap=st.floats(0.1, 40),
    gain=st.floats(0.1, 100),
)
def test_pathwise_bound_for_any_data(name, rates, budget, cap, gain):
    rule = rule_of(name, budget=budget, queue_cap=cap, gain=gain)
    excess = forgiven = 0.0
    for rate in rates:
        cut = rule.update(rate)
        assert cut >= 0
        excess, forgiven = excess + rate - budget, forgiven + cut
        assert abs(rule.queue) <= cap
        assert excess <= rule.queue * rule.unit + forgiven + 1e-9


@pytest.mark.parametrize("name", list(RULES))
@steady
@given(data=st.data(), queue=st.floats(-3, 30))
def test_more_debt_never_means_larger_groups(name, data, queue):
    risk = np.sort(data.draw(st.lists(st.floats(0, 1), min_size=5, max_size=5)))
    sizes, rule = np.array([3, 5, 7, 11, 16]), rule_of(name)
    rule.queue = queue
    before = rule.choose(sizes, risk)
    rule.queue = queue + data.draw(st.floats(0, 10))
    assert 0 <= rule.choose(sizes, risk) <= before <= 4


def test_feasible_plays_the_largest_size_that_fits_the_corrected_budget():
    sizes, risk = np.array([4, 8, 16]), np.array([0.1, 0.19, 0.3])
    rule = rule_of("feasible", budget=0.2)
    assert rule.choose(sizes, risk) == 1
    rule.queue = 1.0  # 1 / 20 of a step less
    assert rule.choose(sizes, risk) == 0
    rule.queue = -2.5
    assert rule.choose(sizes, risk) == 2
    rule.queue = 3.0
    assert rule.choose(sizes, risk) == 0  # nothing fits: the smallest


def test_drift_penalty_weighs_utility_against_the_priced_risk():
    sizes, risk = np.array([2, 4, 8]), np.array([0.02, 0.04, 0.07])
    rule = rule_of("drift_penalty", budget=0.05)
    assert rule.choose(sizes, risk) == 2  # no debt: the largest
    rule.queue = 30.0
    assert rule.choose(sizes, risk) == 0


@pytest.mark.parametrize("name", list(UTILITIES))
def test_utilities_rise_within_zero_and_one(name):
    values = UTILITIES[name](np.arange(2.0, 65.0), 64, 4.0)
    assert (np.diff(values) > 0).all()
    assert values[0] >= 0
    assert values[-1] <= 1


def test_mixed_utility_is_the_expected_share_of_groups_with_both_outcomes():
    solve = np.linspace(0, 1, 20001)
    for n in (2, 5, 8):
        mixed = (1 - solve**n - (1 - solve) ** n).mean()
        assert UTILITIES["mixed"](np.array([n]), 8, 1.0)[0] == pytest.approx(mixed, abs=1e-3)
