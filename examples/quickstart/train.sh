#!/usr/bin/env bash
# The quickstart's training command: unmodified veRL on the CPU, small enough for two cores. Everything after the name goes
# to veRL as it is, so this is also the place to try overrides:
#   examples/quickstart/train.sh my_run +sagc.budget=0.1 trainer.total_training_steps=20
# Without a name (as `sagc-verl sweep` calls it) the overrides name run and folder.
# Knobs: TASK (folder made by make_task.py), OUT (folder of runs), PYTHON.
set -euo pipefail

case ${1-} in
    "") echo "usage: train.sh NAME [overrides ...]" >&2 && exit 2 ;;
    *=*) NAME=run ;;
    *) NAME=$1 && shift ;;
esac
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TASK=${TASK:-$PWD/outputs/quickstart/task}
OUT=${OUT:-$PWD/outputs/quickstart}
PYTHON=${PYTHON:-$HERE/../../.venv/bin/python}

DATA=(
    data.train_files="$TASK/train.parquet"
    data.val_files="$TASK/validation.parquet"
    data.train_batch_size=12
    data.max_prompt_length=16
    data.max_response_length=224
    reward.custom_reward_function.path="$HERE/reward.py"
    reward.custom_reward_function.name=compute_score
)
MODEL=(
    actor_rollout_ref.model.path="$TASK/model"
)
ACTOR=(
    algorithm.adv_estimator=grpo
    actor_rollout_ref.actor.ppo_mini_batch_size=12
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    actor_rollout_ref.actor.optim.lr=1e-3
    actor_rollout_ref.actor.use_kl_loss=False
)
ROLLOUT=(
    actor_rollout_ref.rollout.n=12
    actor_rollout_ref.rollout.max_model_len=256
    actor_rollout_ref.rollout.max_num_seqs=256
)
TRAINER=(
    trainer.v1.trainer_mode=sagc
    trainer.logger="['console']"
    trainer.project_name=quickstart
    trainer.experiment_name="$NAME"
    trainer.default_local_dir="$OUT/$NAME"
    trainer.val_before_train=False
    trainer.test_freq=-1
    trainer.save_freq=-1
    trainer.total_training_steps=40
    +sagc.poll_interval=0.1
)

VERL_PLATFORM=cpu exec "$PYTHON" -m verl.trainer.main_ppo +machine=cpu \
    "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
