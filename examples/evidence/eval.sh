#!/usr/bin/env bash
# Scores a checkpoint of the quickstart's task on the CPU, through examples/eval/run_eval.sh; arguments go to veRL.
#   CKPT=outputs/evidence/grpo/sagc_s1/global_step_30 examples/evidence/eval.sh
# Knobs: CKPT, TASK (folder made by make_task.py), BIN (folder of the environment's python3), VAL_N (answers per prompt), and
# those of run_eval.sh.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TASK=${TASK:-$PWD/outputs/evidence/task}
BIN=${BIN:-$HERE/../../.venv/bin}
: "${CKPT:?name a checkpoint, .../global_step_<k>}"

export CKPT PATH="$BIN:$PATH" VERL_PLATFORM=cpu
export MODEL_PATH=$TASK/model VAL_FILES="['$TASK/validation.parquet']"
export VAL_N=${VAL_N:-8} TEMPERATURE=${TEMPERATURE:-1.0} TOP_P=${TOP_P:-1.0} # sampled as in training
export MAX_PROMPT_LENGTH=16 MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-224} NGPUS_PER_NODE=1 ROLLOUT_TP=1

exec bash "$HERE/../eval/run_eval.sh" \
    +machine=cpu \
    trainer.v1.trainer_mode=cpu_sync \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    reward.custom_reward_function.path="$HERE/walk_eval_reward.py" \
    "$@"
