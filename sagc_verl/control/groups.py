"""The finished groups of one training step, as the controller sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class GroupBatch:
    """The finished groups of one step: R rollouts sorted by group, G groups of any size.

    Only rollouts that count belong here: no padding rows, no failed rollouts, no validation, and a session with several
    outputs once. Lengths that are NaN, zero or negative may be passed on; they are left out and counted (event.py).
    """

    lengths: np.ndarray
    """float64 (R,): response tokens (``signal=tokens``) or seconds of generation (``signal=seconds``)."""
    offsets: np.ndarray
    """int64 (G+1,): group g holds ``lengths[offsets[g]:offsets[g + 1]]``."""
    truncated: np.ndarray
    """bool (R,): stopped by the cap rather than by the model."""
    prompts: np.ndarray
    """object (G,): a key (str) that is the prompt's own in every epoch, or None."""
    sources: np.ndarray
    """object (G,): the prompt's data_source (str), or None."""
    cap: float | None = None
    """The largest length possible (``max_response_length``), in the unit of ``lengths``; None where there is none."""

    @property
    def num_groups(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_rollouts(self) -> int:
        return len(self.lengths)

    @classmethod
    def from_rows(
        cls,
        group_ids: Sequence[Any] | np.ndarray,
        lengths: Sequence[float] | np.ndarray,
        truncated: Sequence[bool] | np.ndarray | None = None,
        prompts: Sequence[str | None] | np.ndarray | None = None,
        sources: Sequence[str | None] | np.ndarray | None = None,
        cap: float | None = None,
    ) -> GroupBatch:
        """Build a batch from one entry per rollout, in any order.

        Args:
            group_ids: (R,) what tells groups apart, e.g. veRL's ``uid``; any hashable values.
            lengths: (R,) response tokens or seconds.
            truncated: (R,) stopped by the cap; None means none was.
            prompts: (R,) prompt keys; a group takes that of its first row. None means unknown.
            sources: (R,) data sources; a group takes that of its first row. None means unknown.
            cap: the largest length possible, or None.

        Returns:
            Groups in order of first appearance, the rows of a group in the order given.

        Raises:
            ValueError: the columns differ in length.
        """
        ids = group_ids.tolist() if isinstance(group_ids, np.ndarray) else list(group_ids)
        rows = len(ids)
        columns = {"lengths": lengths, "truncated": truncated, "prompts": prompts, "sources": sources}
        for name, column in columns.items():
            if column is not None and len(column) != rows:
                raise ValueError(f"{name} has {len(column)} entries for {rows} rollouts")

        first_seen: dict[Any, int] = {}
        group_of = np.fromiter((first_seen.setdefault(i, len(first_seen)) for i in ids), dtype=np.int64, count=rows)
        order = np.argsort(group_of, kind="stable")
        counts = np.bincount(group_of, minlength=len(first_seen))
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        first_row = order[offsets[:-1]]

        def per_group(column: Sequence[str | None] | np.ndarray | None) -> np.ndarray:
            values = np.empty(len(first_seen), dtype=object)
            if column is not None:
                values[:] = [None if (value := column[row]) is None else str(value) for row in first_row]
            return values

        flags = np.zeros(rows, dtype=bool) if truncated is None else np.asarray(truncated, dtype=bool)
        return cls(
            lengths=np.asarray(lengths, dtype=np.float64)[order],
            offsets=offsets,
            truncated=flags[order],
            prompts=per_group(prompts),
            sources=per_group(sources),
            cap=cap,
        )
