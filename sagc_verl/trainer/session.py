"""What SAGC does beside a training run: holds the controller and the records, and survives its own faults.

Data flows one way: rollouts -> group statistics -> controller -> size -> trainer. The trainer (trainer.py) only asks
for a size and hands over what happened; nothing here touches a Ray worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sagc_verl.control.config import SagcConfig
from sagc_verl.control.controller import Controller, StateError, StepReport
from sagc_verl.control.groups import GroupBatch
from sagc_verl.control.sizes import SizePlan
from sagc_verl.records.writer import RecordWriter
from sagc_verl.trainer.controller_state import read_state, write_state
from sagc_verl.trainer.metrics import report_metrics, rollout_metrics
from sagc_verl.trainer.record_rows import group_columns, rollout_columns, step_columns
from sagc_verl.trainer.step_rollouts import StepRollouts

logger = logging.getLogger(__name__)

BLIND_WARNING = 0.5
"""Share of groups in which the length limit hides any straggler, above which the run says so."""


class SagcSession:
    """The controller and the records of one training process.

    Args:
        config: the checked `sagc` section.
        plan: sizes and start.
        cap: `data.max_response_length`, tokens.
        records_dir: where the records go; None for no records.
        run_info: what run.json says of the run.
    """

    def __init__(
        self,
        config: SagcConfig,
        plan: SizePlan,
        cap: int,
        records_dir: Path | None,
        run_info: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.controller = Controller(config, plan.sizes, plan.start)
        self.faults = 0
        """Faults of ours so far: something could not be observed, decided, saved or recorded, and training went on."""
        self._cap = cap
        self._records_dir = records_dir
        self._run_info = run_info
        self._writer: RecordWriter | None = None
        self._known_prompts: bool | None = None
        self._held = 0  # steps without a usable observation
        self._pending_record: tuple[dict, dict, dict] | None = None
        self._said: set[str] = set()
        if config.init_from:
            # A path that was named must be right: nothing has been trained yet, so this may stop the run.
            state = read_state(config.init_from)
            for line in self.controller.load_warm_start(state.get("controller", state)):
                logger.warning("sagc: %s", line)
            logger.info("sagc: starts from what %s has learnt", config.init_from)

    @property
    def size(self) -> int:
        """Rollouts per prompt of the coming (or running) step."""
        return self.controller.size

    def sizes_for(self, num_prompts: int) -> list[int]:
        """The size of each prompt of the step."""
        return [int(n) for n in self.controller.sizes_for(num_prompts)]

    # ---- checkpoint

    def restore(self, folder: str, step: int) -> None:
        """Go on from the state in a checkpoint folder; what is missing or damaged is said and started afresh."""
        try:
            lines = self.controller.load_state_dict(read_state(folder)["controller"])
        except FileNotFoundError:
            self.controller.skip_to(step)
            self._warn(
                "state", f"no controller state in {folder} (trained without SAGC?): it starts afresh at step {step}"
            )
        except (OSError, KeyError, ValueError, StateError) as error:
            self.controller.skip_to(step)
            self.fault("state", f"the controller state cannot be used, it starts afresh: {error}")
        else:
            for line in lines:
                logger.warning("sagc: resumed, but %s", line)
            logger.info(
                "sagc: resumed at step %d: next size %d, queue %.3f", step, self.size, self.controller.rule.queue
            )

    def save(self, folder: str) -> None:
        """Write the state into a checkpoint folder; a fault is logged and counted."""
        try:
            write_state(folder, {"controller": self.controller.state_dict()})
        except (OSError, ValueError) as error:
            self.fault("save", f"the controller state could not be saved in {folder}: {error}")

    # ---- one step

    def observe(
        self, rollouts: StepRollouts | None, trained: set[str], padding_rows: int, refills: int, metrics: dict[str, Any]
    ) -> None:
        """Learn from the step, decide the next size, add `sagc/*` to the step's metrics. Never raises.

        Args:
            rollouts: every rollout generated in the step; None when it could not be collected.
            trained: uids of the groups that were trained on.
            padding_rows: rows that veRL added.
            refills: prompts sent beyond the first submission.
            metrics: veRL's metrics of the step; added to.
        """
        try:
            batch = self._batch(rollouts)
            report = self.controller.observe(batch)
            self._held = report.faults
            if report.fault and batch is not None:
                self._warn("held", f"a step could not be used, the size is held: {report.fault}")
            self._say(report)
            metrics.update(report_metrics(report))
            metrics.update({"sagc/padding_rows": padding_rows, "sagc/refills": refills})
            rows, groups = self._rows(rollouts, report, trained, metrics)
            self._pending_record = (rows, groups, step_columns(report, metrics, padding_rows, refills))
        except Exception as error:
            self.fault("observe", f"the step could not be observed: {error!r}", trace=True)
        finally:
            metrics["sagc/faults"] = self.faults + self._held + (self._writer.faults if self._writer else 0)

    def _batch(self, rollouts: StepRollouts | None) -> GroupBatch | None:
        """What the controller sees of the step; None, and a fault, where it cannot be made of the rollouts."""
        if rollouts is None or not len(rollouts):
            return None
        try:
            known = self._prompts_are_known(rollouts)
            if self.config.signal == "seconds" and not rollouts.stamped:
                self._warn("seconds", "sagc.signal=seconds, but the rollout workers give no times: the size is held")
                return None
            return rollouts.batch(self.config.signal, self._cap, known)
        except Exception as error:
            self.fault("batch", f"the step cannot be read, the size is held: {error!r}", trace=True)
            return None

    def _rows(
        self, rollouts: StepRollouts | None, report: StepReport, trained: set[str], metrics: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The step's rows of the rollouts and groups tables; none, and a fault, where they cannot be made."""
        if rollouts is None:
            return {}, {}
        try:
            statuses = _statuses(rollouts, trained)
            groups = group_columns(rollouts, report, statuses)
            rows = rollout_columns(rollouts, report, statuses, self.config)
            metrics.update(rollout_metrics(rows, groups))
            return rows, groups
        except Exception as error:
            self.fault("rows", f"the step's rollouts cannot go on record: {error!r}", trace=True)
            return {}, {}

    def record(self, step: int, metrics: Mapping[str, Any], wall_s: float) -> None:
        """Write the step's record with all its metrics. Never raises, never waits for the disk."""
        pending, self._pending_record = self._pending_record, None
        if self._writer is None:
            return
        try:
            rows, groups, step_row = pending or ({}, {}, {})
            scalars = {key: float(value) for key, value in metrics.items() if _is_scalar(value)}
            # time.time(): the one wall clock reading on record; everything else is monotonic.
            row = {**scalars, **step_row, "wall_s": wall_s, "time": time.time()}
            self._writer.write_step(step, rows, groups, row)
        except Exception as error:
            self.fault("record", f"step {step} could not be recorded: {error!r}", trace=True)

    def open_records(self, resume_step: int) -> None:
        """Start the writer, once it is known which step the run goes on from."""
        if self._records_dir is not None:
            self._writer = RecordWriter(self._records_dir, dict(self._run_info), resume_step=resume_step)

    def close(self) -> None:
        """Write what is pending."""
        if self._writer is not None:
            self._writer.close()

    # ---- saying things once

    def _prompts_are_known(self, rollouts: StepRollouts) -> bool:
        """Whether prompt_index is the prompt's own name: as the first step said, until one says otherwise."""
        if not rollouts.stamped:
            return False  # veRL's tags hold no names
        known = rollouts.prompts_are_known()
        if self._known_prompts and not known:
            self._warn(
                "prompts", "the data's extra_info.index no longer tells prompts apart; references use data_source"
            )
        self._known_prompts = known and self._known_prompts is not False
        return self._known_prompts

    def _say(self, report: StepReport) -> None:
        if report.infeasible:
            smallest = min(report.risk)
            self._warn(
                "infeasible",
                f"no size meets the budget {report.budget:g}: at n={smallest} a {self.controller.constraint.label} of "
                f"{report.risk[smallest]:.2f} is expected. n={smallest} is kept; raise sagc.budget"
                f"{' or sagc.threshold' if self.config.constraint == 'straggler' else ''}, or list smaller sizes.",
            )
        if self.config.constraint == "straggler" and report.blind_share > BLIND_WARNING:
            self._warn(
                "blind",
                f"in {report.blind_share:.0%} of groups the response limit {self._cap} hides any straggler "
                f"(limit <= threshold * reference): the controller sees none and keeps the largest size. Lower "
                f"sagc.threshold or set sagc.count_truncated=true.",
            )

    def _warn(self, key: str, message: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("sagc: %s", message)

    def fault(self, key: str, message: str, trace: bool = False) -> None:
        """Count a fault; said in the log the first time that `key` has one."""
        self.faults += 1
        if key not in self._said:
            self._said.add(key)
            logger.error("sagc: %s", message, exc_info=trace)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _statuses(rollouts: StepRollouts, trained: set[str]) -> np.ndarray:
    """object (R,): trained, failed, filtered (evicted by DAPO) or surplus; see records/tables.py."""
    failed, values = rollouts.columns["failed"], rollouts.columns["filter_value"]
    statuses = np.full(len(rollouts), "trained", dtype=object)
    for uid, rows in rollouts.groups():
        if uid in trained:
            continue
        # As the replay buffer does it: a group without an error is filtered where the metric is the same for all of two
        # and more. What veRL discards else came too late.
        group, whole = values[rows], not failed[rows].any()
        statuses[rows] = "filtered" if whole and len(group) > 1 and float(np.std(group)) == 0.0 else "surplus"
    statuses[failed] = "failed"
    return statuses
