#!/usr/bin/env bash
# train.sh with a real chat model on small sums: SmolLM2-135M-Instruct, few and short answers, bearable on two cores.
#   examples/quickstart/train_smollm2.sh my_run +sagc.budget=0.1 trainer.total_training_steps=20
# Knobs: TASK (folder made by make_smollm2.py), OUT (folder of runs), PYTHON.
set -euo pipefail

NAME=${1:?usage: train_smollm2.sh NAME [overrides ...]}
shift
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OUT=${OUT:-$PWD/outputs/quickstart_smollm2}
export TASK=${TASK:-$OUT/task}

DATA=(
    data.train_batch_size=4
    data.max_prompt_length=128
    data.max_response_length=96
    reward.custom_reward_function.path="$HERE/../data/reasoning_gym_reward.py"
)
ACTOR=(
    actor_rollout_ref.actor.ppo_mini_batch_size=4
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024 # 49,152 words: logits are what takes the memory
    actor_rollout_ref.actor.optim.lr=1e-5
)
ROLLOUT=(
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.max_num_seqs=32
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=128 # the embedding alone is 113 MB
)
TRAINER=(
    trainer.project_name=quickstart_smollm2
    trainer.total_training_steps=6
)

exec "$HERE/train.sh" "$NAME" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
