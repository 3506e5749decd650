"""The block a run prints at its start: what SAGC will do, and what looks wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sagc_verl.control.config import SagcConfig
from sagc_verl.control.sizes import SizePlan
from sagc_verl.trainer.batch_arithmetic import BatchShape

if TYPE_CHECKING:
    from omegaconf import DictConfig

OUR_MANAGER = "sagc_verl.trainer.rollout_worker.SagcAgentLoopManager"


def warnings_of(config: DictConfig, sagc: SagcConfig, plan: SizePlan, shape: BatchShape) -> list[str]:
    """What looks wrong in the combination, one line each; nothing here stops the run."""
    lines = list(plan.messages)
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    moving = sagc.policy != "static" and len(plan.sizes) > 1
    smallest = min(plan.sizes) if moving else plan.start
    filtering = bool((algorithm.get("filter_groups") or {}).get("enable", False))
    if filtering and smallest < 4:
        lines.append(
            f"DAPO filtering (algorithm.filter_groups) with groups of {smallest}: small groups often have equal "
            "rewards, are filtered and generated again; this can cost more than it saves. Watch sagc/refills."
        )
    if smallest == 2 and algorithm.get("norm_adv_by_std_in_grpo", True) and algorithm.adv_estimator == "grpo":
        lines.append(
            "groups of 2 with algorithm.norm_adv_by_std_in_grpo=True: every unequal pair gets advantages of +-0.707, "
            "however small the difference."
        )
    if moving and actor.loss_agg_mode == "token-sum":
        lines.append("loss_agg_mode=token-sum: the loss, and so the update, grows with n.")
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.get("loss_scale_factor") is None:
        lines.append(
            "loss_agg_mode=seq-mean-token-sum-norm without actor.loss_scale_factor: veRL divides by the width of the "
            "micro-batch, that is by its longest rollout. Set actor_rollout_ref.actor.loss_scale_factor."
        )
    if moving and actor.loss_agg_mode.startswith("seq-mean") and shape.train_batch_prompts % actor.ppo_mini_batch_size:
        lines.append(
            f"loss_agg_mode={actor.loss_agg_mode}: data.train_batch_size={shape.train_batch_prompts} is no multiple of "
            f"ppo_mini_batch_size={actor.ppo_mini_batch_size}, so veRL pads, and padding rows lower this loss."
        )
    if moving and algorithm.use_kl_in_reward and algorithm.kl_ctrl.type == "adaptive":
        lines.append(
            "algorithm.kl_ctrl.type=adaptive counts rows as steps: its coefficient moves faster at a larger n."
        )
    manager = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    if manager and manager != OUR_MANAGER:
        lines.append(
            f"agent_loop_manager_class={manager} is kept. Not recorded then: times, failures, and groups that veRL "
            "discards; the controller sees the response lengths of trained groups."
            + (" sagc.signal=seconds cannot be used." if sagc.signal == "seconds" else "")
        )
    if not algorithm.adv_estimator.startswith(("grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg")):
        lines.append(
            f"algorithm.adv_estimator={algorithm.adv_estimator} does not compare rollouts of a group; SAGC runs, but "
            "what it trades is the number of samples only."
        )
    return lines


def announcement(
    sagc: SagcConfig,
    plan: SizePlan,
    shape: BatchShape,
    records_dir: Path | None,
    warnings: list[str],
) -> str:
    """The block, ready to print."""
    sizes = " ".join(map(str, plan.sizes))
    if sagc.policy == "static":
        what = f"static: {plan.start} rollouts per prompt in every step; everything is recorded as with policy=sagc"
    elif sagc.policy == "schedule":
        steps = ", ".join(f"{size} from step {step}" for step, size in (sagc.schedule or {}).items())
        what = f"schedule: {steps}"
    else:
        if sagc.constraint == "waiting":
            limit = f"at most {sagc.budget:.0%} of a group's slot time may be spent waiting in the long run"
            meaning = f"a group waits from the end of each rollout to the end of its longest ({sagc.signal})"
        else:
            limit = f"at most {sagc.budget:.0%} of groups may straggle in the long run"
            meaning = (
                f"a group straggles when a rollout is longer than {sagc.threshold:g} x its reference ({sagc.signal})"
            )
        learnt = f", risk {sagc.risk}" if sagc.constraint == "straggler" else ""
        what = (
            f"sizes {sizes}, starting at {plan.start}; {limit}\n"
            f"        {meaning}\n"
            f"        rule {sagc.rule}{learnt}; {sagc.warmup} steps of warm-up, "
            f"then moves at least {sagc.dwell} steps apart"
        )
    lines = [
        "SAGC  " + what,
        f"        {shape.train_batch_prompts} prompts and {shape.updates(plan.start)} optimizer update(s) per step and "
        "epoch, whatever n",
        f"        records: {records_dir or 'off (sagc.records=false)'}",
        *(f"  warning: {line}" for line in warnings),
    ]
    return "\n".join(lines)
