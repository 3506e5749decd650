"""The columns of the three tables: the one source of their names, dtypes, units and meaning.

The writer casts to these types, the reader returns them, and docs/metrics.md is generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["key", "int", "count", "float", "double", "seconds", "bool", "category", "text"]

CAUSES = ("long_response", "truncated", "preempted", "slow_tool", "slow_reward", "engine_stall")
STATUSES = ("trained", "filtered", "surplus", "failed")

SECONDS_PER_UNIT = 1024
"""Times within a step are kept to 1/1024 s: the float bits below are noise, and would be most of the file."""

_PANDAS_DTYPES: dict[Kind, str] = {
    "key": "int64",
    "int": "Int32",
    "count": "Int64",
    "float": "float32",
    "double": "float64",
    "seconds": "float32",
    "bool": "boolean",
    "category": "category",
    "text": "str",  # "string" in pandas 2
}


@dataclass(frozen=True)
class Column:
    """One column. `meaning` says what it is or its formula, `reading` how to read it."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    reading: str = ""

    @property
    def dtype(self) -> str:
        """The pandas dtype, whatever the data: nulls never change it."""
        return _PANDAS_DTYPES[self.kind]


_STEP = Column("step", "key", "step", "Training step, as veRL counts them (from 1).")
_ATTEMPT = Column(
    "attempt",
    "key",
    "",
    "Which start of the trainer wrote the row (from 1); each resume is a new one.",
    "Several values: the run was resumed. Rows that a resume threw away show only with branch='dead'.",
)
_UID = Column("uid", "text", "", "veRL's id of the prompt's group in this step.", "Joins rollouts to groups.")
_PROMPT = Column(
    "prompt_index",
    "text",
    "",
    "The dataset's own name of the prompt (extra_info.index).",
    "The same prompt across epochs, together with data_source.",
)
_SOURCE = Column("data_source", "category", "", "The dataset's own label of the prompt.")
_N = Column("n", "int", "rollouts", "Group size played: rollouts asked for per prompt.")

ROLLOUTS: tuple[Column, ...] = (
    _STEP,
    _ATTEMPT,
    _UID,
    _PROMPT,
    _SOURCE,
    Column("session", "int", "", "Number of the rollout within its group (from 0)."),
    _N,
    Column("prompt_tokens", "int", "tokens", "Length of the prompt."),
    Column("response_tokens", "int", "tokens", "Length of the response, tool output included."),
    Column(
        "truncated",
        "bool",
        "",
        "Stopped by the length limit rather than by the model.",
        "Many of them hide stragglers: the true lengths are not seen.",
    ),
    Column("start_s", "seconds", "s since the step's start", "When the rollout was handed to its worker."),
    Column("end_s", "seconds", "s since the step's start", "When it was done, reward included."),
    Column(
        "queue_s",
        "seconds",
        "s",
        "Waiting for a slot in the engine before its first token was scheduled.",
        "Null where the engine's statistics are off (disable_log_stats=True).",
    ),
    Column(
        "generate_s",
        "seconds",
        "s",
        "Generating, all turns together, less queue_s where that is known.",
        "Where queue_s is null, waiting for a slot is in here.",
    ),
    Column("tool_s", "seconds", "s", "In tool calls, all turns together."),
    Column("reward_s", "seconds", "s", "Computing the reward."),
    Column("turns", "int", "", "Turns of the conversation."),
    Column("preempted", "int", "", "Times the engine threw it out of its slot to free memory and started it over."),
    Column("reward", "float", "", "Reward of the rollout (the sum over its tokens)."),
    Column(
        "exceeds",
        "bool",
        "",
        "Its length is more than threshold * the group's reference.",
        "One such rollout makes its group a straggler.",
    ),
    Column(
        "status",
        "category",
        "",
        "trained; filtered (its group was rejected, as in DAPO); surplus (its group came too late); failed.",
        "Work of filtered and surplus rollouts was paid for and thrown away.",
    ),
    Column(
        "cause",
        "category",
        "",
        "Why it is a straggler, by length or by time: " + ", ".join(CAUSES) + "; empty otherwise.",
        "Rollouts that are slow at a normal length have a cause too, but only `exceeds` counts as an event.",
    ),
    Column("worker", "category", "", "The agent loop worker that ran it."),
)

GROUPS: tuple[Column, ...] = (
    _STEP,
    _ATTEMPT,
    _UID,
    _PROMPT,
    _SOURCE,
    _N,
    Column("max", "double", "tokens or s", "Largest length in the group, in the unit of the signal."),
    Column("median", "double", "tokens or s", "Median length in the group."),
    Column(
        "ratio",
        "double",
        "",
        "max / median.",
        "The plain statistic; small groups cannot reach a large one (at n=2 it is below 2).",
    ),
    Column(
        "reference",
        "double",
        "tokens or s",
        "What lengths are compared with: the median without the largest, shrunk to the usual one of its kind.",
    ),
    Column("exceeding", "int", "rollouts", "Rollouts longer than threshold * reference."),
    Column("straggler", "bool", "", "exceeding > 0: the group is a straggler event."),
    Column(
        "blind",
        "bool",
        "",
        "The length limit is below threshold * reference: no event could have been seen.",
        "A large share means that the threshold is too high for the limit.",
    ),
    Column("reward_mean", "float", "", "Mean reward of the group."),
    Column("reward_std", "float", "", "Standard deviation of the group's rewards (divided by the count)."),
    Column(
        "silent",
        "bool",
        "",
        "All rewards are equal: the group gives GRPO no gradient.",
        "Their share grows as n shrinks: the price of small groups.",
    ),
    Column("status", "category", "", "trained, filtered, surplus or failed, as in rollouts."),
)

STEPS: tuple[Column, ...] = (
    _STEP,
    _ATTEMPT,
    _N,
    Column("next_n", "int", "rollouts", "Group size decided for the coming step."),
    Column("reason", "category", "", "Why the size moved or held."),
    Column(
        "queue",
        "double",
        "steps",
        "Running excess over the budget that the rule still has to pay back.",
        "Above 0: too much was spent so far, sizes are pushed down; below 0: there is room.",
    ),
    Column(
        "cost",
        "double",
        "share",
        "What the budget limits (the key sagc.constraint): straggler_rate by default, else waiting_share.",
        "Noisy: read the mean.",
    ),
    Column(
        "cost_mean",
        "double",
        "share",
        "Mean of cost over the steps observed so far.",
        "The controller keeps it at or below the budget, where some size can.",
    ),
    Column(
        "straggler_rate",
        "double",
        "share",
        "Straggler groups of this step / groups of this step.",
        "Noisy: read the mean.",
    ),
    Column(
        "straggler_rate_mean",
        "double",
        "share",
        "Mean of straggler_rate over the steps observed so far.",
    ),
    Column(
        "waiting_share",
        "double",
        "share",
        "1 - mean length / longest length, averaged over the groups: slot time spent waiting for a group's longest "
        "rollout.",
        "By lengths and group by group; idle_share is by the clock and over the whole step.",
    ),
    Column("budget", "double", "share", "Largest long-run mean of cost allowed (the key sagc.budget)."),
    Column("cumulative_excess", "double", "steps", "Sum of (cost - budget) over the steps so far."),
    Column(
        "debt_forgiven",
        "double",
        "steps",
        "Excess that the queue's cap has cut off, summed.",
        "Growing: no size fits the budget.",
    ),
    Column(
        "tail_s",
        "double",
        "s",
        "From 90% of the rollouts done to the last one done.",
        "Time in which most of the hardware waits for a few.",
    ),
    Column(
        "idle_share",
        "double",
        "share",
        "1 - sum(end - start) / (slots * makespan) over the rollouts, from start_s + queue_s to end_s - reward_s; "
        "slots: the most at once; makespan: first start to last end.",
        "Slots paid for and empty. Where queue_s is null, waiting counts as running, and all rollouts as slots.",
    ),
    Column(
        "stall",
        "double",
        "share",
        "Rollouts slow at a normal length (cause engine_stall) / rollouts.",
        "Trouble of the engine or the machine, not of group size; it never moves n.",
    ),
    *(
        Column(
            f"gen_share_top{percent}",
            "double",
            "share",
            f"(last end_s - end_s once all but the last {percent}% are done) / (last end_s - first start_s); "
            f"{percent}% rounded up to whole rollouts.",
            f"How much shorter the rollout phase would be without the {percent}% that finish last.",
        )
        for percent in (1, 2, 5)
    ),
    Column("tokens", "count", "tokens", "Response tokens generated in the step, thrown away ones included."),
    Column(
        "rollouts", "count", "rollouts", "Rollouts generated in the step, thrown away ones included; padding never."
    ),
    Column(
        "padding_rows", "count", "rows", "Rows veRL added to make the batch divisible.", "Compute without a sample."
    ),
    Column("refills", "count", "prompts", "Prompts sent again to fill the batch (DAPO filtering)."),
    Column("wall_s", "double", "s", "Wall time of the step."),
    Column("time", "double", "s since 1970", "When the step ended (Unix time)."),
)

TABLES: dict[str, tuple[Column, ...]] = {"rollouts": ROLLOUTS, "groups": GROUPS, "steps": STEPS}

STEP_FAMILIES: tuple[Column, ...] = (
    Column(
        "p_hat/<n>",
        "double",
        "probability",
        "Predicted cost of a group of size n, by default the probability that it is a straggler; one column per size.",
        "The rule takes the largest n whose p_hat fits the budget, corrected by the queue.",
    ),
    Column(
        "<metric of veRL>",
        "double",
        "as in veRL",
        "Every scalar that veRL logged for the step, under its own name: actor/..., critic/..., timing_s/..., sagc/...",
        "Null in steps that did not log it (val-core/... between validations).",
    ),
)


IMPORTED_COLUMNS: tuple[Column, ...] = (
    Column("prompt_chars", "int", "characters", "Length of the prompt's text."),
    Column("response_chars", "int", "characters", "Length of the response's text.", "For want of token counts."),
)
"""Further columns of `rollouts` in runs imported from rollout dumps, which hold texts and no tokens."""

SAGC_SCALARS: tuple[Column, ...] = (
    Column("sagc/size", "double", "rollouts", "Group size played in this step."),
    Column("sagc/next_size", "double", "rollouts", "Group size of the coming step."),
    Column("sagc/moved", "double", "0 or 1", "next_size differs from size."),
    Column(
        "sagc/cost",
        "double",
        "share",
        "What the budget limits, in this step: sagc/straggler_rate by default, sagc/waiting_share with "
        "sagc.constraint=waiting.",
        "Noisy: read the mean.",
    ),
    Column("sagc/cost_mean", "double", "share", "Its mean over the steps so far.", "Compare with the budget."),
    Column(
        "sagc/straggler_rate",
        "double",
        "share",
        "Groups with a straggler / groups, in this step.",
        "Noisy: read the mean.",
    ),
    Column("sagc/straggler_rate_mean", "double", "share", "Its mean over the steps so far."),
    Column(
        "sagc/waiting_share",
        "double",
        "share",
        "1 - mean length / longest length, averaged over the groups of this step.",
    ),
    Column("sagc/budget", "double", "share", "The budget."),
    Column(
        "sagc/queue",
        "double",
        "steps",
        "Excess over the budget still to be paid back.",
        "Above 0 pushes sizes down.",
    ),
    Column("sagc/cumulative_excess", "double", "steps", "Sum of (cost - budget) so far."),
    Column(
        "sagc/debt_forgiven",
        "double",
        "steps",
        "What the queue's cap has cut off so far.",
        "Growing: no size fits the budget.",
    ),
    Column(
        "sagc/p_hat/<n>",
        "double",
        "probability",
        "Predicted cost of a group of size n, by default the probability that it is a straggler.",
    ),
    Column("sagc/infeasible", "double", "0 or 1", "Even the smallest size is predicted to exceed the budget."),
    Column("sagc/ratio_mean", "double", "", "Mean of max / median length over the step's groups."),
    Column("sagc/truncated_share", "double", "share", "Rollouts stopped by the length limit / rollouts."),
    Column(
        "sagc/blind_share",
        "double",
        "share",
        "Groups in which the length limit hides any straggler / groups.",
        "Near 1 the controller sees nothing and holds the size.",
    ),
    Column(
        "sagc/step_straggler",
        "double",
        "0 or 1",
        "The longest rollout of the whole step exceeds the step's reference.",
        "Depends on prompts * n; never constrained.",
    ),
    Column("sagc/groups", "double", "groups", "Groups the controller counted."),
    Column("sagc/advantage_scale", "double", "", "1 - 1/n: what centring leaves of the reward's variance."),
    Column(
        "sagc/silent_share", "double", "share", "Groups whose rewards are all equal / groups.", "Grows as n shrinks."
    ),
    Column("sagc/rollouts", "double", "rollouts", "Rollouts generated, thrown away ones included."),
    Column("sagc/rollouts_failed", "double", "rollouts", "Of these, failed."),
    Column("sagc/rollouts_filtered", "double", "rollouts", "Of these, in groups that a filter rejected."),
    Column("sagc/rollouts_surplus", "double", "rollouts", "Of these, in groups that came too late."),
    Column(
        "sagc/rollouts_preempted",
        "double",
        "rollouts",
        "Of these, thrown out by the engine for want of memory and begun again; absent where it does not tell.",
        "Above 0: give the engine more memory, or fewer slots.",
    ),
    Column("sagc/tokens", "double", "tokens", "Response tokens generated."),
    Column(
        "sagc/response_tokens_better",
        "double",
        "tokens",
        "Mean length of rollouts with at least the step's mean reward.",
        "Falling with n: long right answers are lost.",
    ),
    Column("sagc/response_tokens_worse", "double", "tokens", "Mean length of the other rollouts."),
    Column("sagc/tail_s", "double", "s", "From 90% of the rollouts done to the last."),
    Column("sagc/idle_share", "double", "share", "Slot time of the rollout phase in which nothing ran."),
    Column(
        "sagc/stall",
        "double",
        "share",
        "Rollouts slow at a normal length / rollouts.",
        "Trouble of the engine; with signal=tokens it never moves n.",
    ),
    Column(
        "sagc/gen_share_top<percent>",
        "double",
        "share",
        "Of the rollout phase, what its longest 1, 2 and 5% of rollouts cost.",
    ),
    Column("sagc/padding_rows", "double", "rows", "Rows added to make the batch divisible."),
    Column("sagc/refills", "double", "prompts", "Prompts sent again to fill the batch."),
    Column(
        "sagc/faults",
        "double",
        "",
        "Steps without a usable observation and other faults of SAGC so far.",
        "Above 0: read the log; training is not touched.",
    ),
)
"""What SAGC adds to the step's metrics, for every logger veRL has."""


def columns_of(table: str) -> tuple[Column, ...]:
    """Columns of a table; ValueError names the legal tables."""
    try:
        return TABLES[table]
    except KeyError:
        raise ValueError(f"no table {table!r}: must be one of {', '.join(TABLES)}") from None


def arrow_type(kind: Kind) -> pa.DataType:
    """The type a column has in Parquet and in Arrow batches."""
    import pyarrow as pa

    types: dict[Kind, Any] = {
        "key": pa.int64(),
        "int": pa.int32(),
        "count": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "seconds": pa.float32(),
        "bool": pa.bool_(),
        "category": pa.dictionary(pa.int32(), pa.string()),
        "text": pa.string(),
    }
    return types[kind]


def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a table's fixed columns (the steps table has further float64 ones)."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column.kind)) for column in columns_of(table)])
