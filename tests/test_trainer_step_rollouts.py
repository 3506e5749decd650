from __future__ import annotations

import math

import numpy as np
import pytest
from trainer_rollouts import failed, step_of, trajectory

from sagc_verl.trainer.step_rollouts import FIELDS, StepRollouts, from_tags, from_workers


def column(rollouts: StepRollouts, name: str) -> list:
    return rollouts.columns[name].tolist()


# ---- drained from the workers


def test_stamps_of_every_worker_land_on_the_drivers_clock() -> None:
    # The step began at 1000 on the driver's clock; one worker's clock is 5 s ahead, the other's starts near zero.
    ahead = [trajectory("a", 0, start=1006.0, end=1008.5)]
    behind = [trajectory("b", 0, start=3.0, end=4.0)]
    rollouts = from_workers([(1015.0, ahead, 1010.0), (12.0, behind, 1010.0)], step_start=1000.0)
    assert column(rollouts, "start") == pytest.approx([1.0, 1.0])
    assert column(rollouts, "end") == pytest.approx([3.5, 2.0])
    assert rollouts.stamped


def test_rows_are_sorted_by_group_and_session_whatever_worker_they_come_from() -> None:
    first = [trajectory("b", 10), trajectory("a", 1)]
    second = [trajectory("a", 0), trajectory("b", 9), trajectory("b", 2)]
    rollouts = from_workers([(0.0, first, 0.0), (0.0, second, 0.0)], 0.0)
    assert list(zip(column(rollouts, "uid"), column(rollouts, "session"), strict=True)) == [
        ("a", 0),
        ("a", 1),
        ("b", 2),
        ("b", 9),
        ("b", 10),
    ]
    assert [(uid, rows.stop - rows.start) for uid, rows in rollouts.groups()] == [("a", 2), ("b", 3)]


def test_what_was_drained_is_not_changed() -> None:
    row = trajectory("a", 0, start=7.0)
    from_workers([(0.0, [row], 50.0)], 0.0)
    assert row[FIELDS.index("start")] == 7.0


def test_no_rollouts_at_all() -> None:
    for rollouts in (from_workers([], 0.0), from_workers([(0.0, [], 0.0)], 0.0), from_tags([], [], cap=100)):
        assert len(rollouts) == 0
        assert list(rollouts.groups()) == []
        assert rollouts.batch("tokens", 100, False) is None
        assert not rollouts.prompts_are_known()
        assert set(rollouts.columns) == set(FIELDS)


# ---- from veRL's tags


def test_tags_padding_is_left_out_and_outputs_of_a_session_add_up() -> None:
    keys = ["u_1_0", "u_0_1", "u_0_0", "pad12ab_0_0", "pad12ab_1_0"]
    tags = [
        {"prompt_len": 7, "response_len": 30},
        {"prompt_len": 7, "response_len": 40},
        {"prompt_len": 7, "response_len": 2},
        {"is_padding": True, "response_len": 1},
        {"is_padding": True, "response_len": 1},
    ]
    rollouts = from_tags(keys, tags, cap=42)
    assert column(rollouts, "session") == [0, 1]
    assert column(rollouts, "response_tokens") == [42, 30]
    assert column(rollouts, "prompt_tokens") == [7, 7]
    assert column(rollouts, "truncated") == [True, False]
    assert not rollouts.stamped
    assert rollouts.counted.all()


def test_tags_uids_may_hold_underscores() -> None:
    rollouts = from_tags(["my_own_uid_3_0"], [{"response_len": 5}], cap=10)
    assert (column(rollouts, "uid"), column(rollouts, "session")) == (["my_own_uid"], [3])


def test_tags_tell_no_times_and_no_prompts() -> None:
    rollouts = from_tags(["u_0_0", "u_1_0"], [{"response_len": 5}, {"response_len": 6}], cap=10)
    assert np.isnan(rollouts.columns["start"]).all()
    assert not rollouts.prompts_are_known()


# ---- what the controller sees


def test_tokens_with_cap_and_names_of_prompts() -> None:
    rows = [
        trajectory("a", 0, response_tokens=50, prompt_index="3"),
        trajectory("a", 1, response_tokens=99, truncated=True, prompt_index="3"),
        trajectory("b", 0, response_tokens=10, prompt_index=None),
    ]
    batch = step_of(rows).batch("tokens", 99, known_prompts=True)
    assert batch is not None
    assert batch.lengths.tolist() == [50, 99, 10]
    assert batch.offsets.tolist() == [0, 2, 3]
    assert batch.truncated.tolist() == [False, True, False]
    assert batch.prompts.tolist() == ["math:3", None]
    assert batch.sources.tolist() == ["math", "math"]
    assert batch.cap == 99


def test_prompts_that_are_not_known_stay_unnamed() -> None:
    batch = step_of([trajectory("a", 0), trajectory("a", 1)]).batch("tokens", 99, known_prompts=False)
    assert batch is not None
    assert batch.prompts.tolist() == [None]


def test_seconds_are_generation_and_tools_without_waiting_and_have_no_cap() -> None:
    rows = [
        trajectory("a", 0, generate_s=5.0, queue_s=2.0, tool_s=1.0),
        trajectory("a", 1, generate_s=5.0, queue_s=math.nan, tool_s=math.nan),
    ]
    batch = step_of(rows).batch("seconds", 99, known_prompts=False)
    assert batch is not None
    assert batch.lengths.tolist() == [4.0, 5.0]
    assert batch.cap is None


def test_failed_rollouts_never_count() -> None:
    rows = [trajectory("a", 0), failed("a", 1), failed("b", 0), failed("b", 1), trajectory("c", 0)]
    rollouts = step_of(rows)
    batch = rollouts.batch("tokens", 100, known_prompts=False)
    assert batch is not None
    assert (batch.num_groups, batch.num_rollouts) == (2, 2)
    assert rollouts.counted.sum() == 2
    assert step_of([failed("a", 0)]).batch("tokens", 100, known_prompts=False) is None


# ---- whether the data names its prompts


@pytest.mark.parametrize(
    ("indices", "known"),
    [
        (["1", "2", "3", "4"], True),
        (["1", "2", "2", "4"], True),  # a prompt drawn twice
        (["0", "0", "0", "0"], False),  # what veRL puts where the data has no index
        (["1", "1", "1", "4"], False),
        (["1", "2", "3", None], False),
        (["0"], False),  # one prompt a step: nothing can be told
    ],
)
def test_prompts_are_known(indices: list[str | None], known: bool) -> None:
    rows = [trajectory(f"u{i}", session, prompt_index=index) for i, index in enumerate(indices) for session in range(2)]
    assert step_of(rows).prompts_are_known() is known


def test_the_same_index_in_two_sources_is_two_prompts() -> None:
    rows = [trajectory("a", 0, prompt_index="1"), trajectory("b", 0, prompt_index="1", data_source="code")]
    assert step_of(rows).prompts_are_known()
