#!/usr/bin/env bash
# GRPO | Qwen3-8B | FSDP | GSM8K + MATH | SAGC
#
# SAGC: the engineered script, with the group size chosen anew at every step.
# run_qwen3_8b_fsdp_engineered.sh beside it differs in the SAGC block alone.
#
# Hardware: 1 node, 8 GPUs of 80 GB. More nodes: NNODES=2, and examples/README.md, "Several nodes".
# Data:     python3 examples/data/prepare_gsm8k.py && python3 examples/data/prepare_math.py
# Status:   every override is composed against veRL 0.9.1's own configuration in a test. We have not run this
#           script on GPUs: check batch sizes and memory on yours.
#
# Knobs are environment variables, in the first block. Anything else: append Hydra overrides to the command line.

set -euo pipefail

########################### user-adjustable ###########################
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
DATA_DIR=${DATA_DIR:-${HOME}/data}
TRAIN_FILES=${TRAIN_FILES:-"['${DATA_DIR}/gsm8k/train.parquet','${DATA_DIR}/math/train.parquet']"}
VAL_FILES=${VAL_FILES:-"['${DATA_DIR}/gsm8k/test.parquet','${DATA_DIR}/math/test.parquet']"}

INFER_BACKEND=${INFER_BACKEND:-vllm} # vllm | sglang
NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}

rollout_n=${ROLLOUT_N:-16}
sagc_threshold=${SAGC_THRESHOLD:-2.5} # a rollout this many times longer than its group's reference is a straggler
sagc_budget=${SAGC_BUDGET:-0.2}       # long-run share of groups that may hold one
sagc_sizes=${SAGC_SIZES:-}            # e.g. 4,8,12,16

train_batch_size=${TRAIN_BATCH_SIZE:-256}      # prompts per step
ppo_mini_batch_size=${PPO_MINI_BATCH_SIZE:-64} # prompts per optimizer step
max_prompt_length=${MAX_PROMPT_LENGTH:-1024}
max_response_length=${MAX_RESPONSE_LENGTH:-8192}
max_token_len_per_gpu=${MAX_TOKEN_LEN_PER_GPU:-$((2 * (max_prompt_length + max_response_length)))}
rollout_gpu_mem_util=${ROLLOUT_GPU_MEM_UTIL:-0.7}
rollout_tp=${ROLLOUT_TP:-2}

actor_lr=${ACTOR_LR:-1e-6}
kl_loss_coef=${KL_LOSS_COEF:-0.001}
entropy_coeff=${ENTROPY_COEFF:-0}

total_epochs=${TOTAL_EPOCHS:-15}
save_freq=${SAVE_FREQ:-20}
test_freq=${TEST_FREQ:-5}
seed=${SEED:-1}

PROJECT_NAME=${PROJECT_NAME:-sagc_grpo_gsm8k_math}
EXPERIMENT_NAME=${EXPERIMENT_NAME:-qwen3_8b_fsdp_sagc}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/${PROJECT_NAME}/${EXPERIMENT_NAME}} # checkpoints, and the records under sagc/
LOGGER=${LOGGER:-'["console"]'} # e.g. '["console","wandb"]'
########################### end user-adjustable ###########################

########################### parameter arrays ###########################
DATA=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False
    data.train_files="${TRAIN_FILES}"
    data.val_files="${VAL_FILES}"
    data.train_batch_size="${train_batch_size}"
    data.max_prompt_length="${max_prompt_length}"
    data.max_response_length="${max_response_length}"
    data.filter_overlong_prompts=True
    data.truncation=error
    data.seed="${seed}"
)

MODEL=(
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)

ACTOR=(
    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.optim.lr="${actor_lr}"
    actor_rollout_ref.actor.ppo_mini_batch_size="${ppo_mini_batch_size}"
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${max_token_len_per_gpu}"
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef="${kl_loss_coef}"
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff="${entropy_coeff}"
    actor_rollout_ref.actor.loss_agg_mode=token-mean
)

ROLLOUT=(
    actor_rollout_ref.rollout.name="${INFER_BACKEND}"
    actor_rollout_ref.rollout.n="${rollout_n}"
    actor_rollout_ref.rollout.seed="${seed}"
    actor_rollout_ref.rollout.tensor_model_parallel_size="${rollout_tp}"
    actor_rollout_ref.rollout.gpu_memory_utilization="${rollout_gpu_mem_util}"
    actor_rollout_ref.rollout.max_model_len="$((max_prompt_length + max_response_length))"
    actor_rollout_ref.rollout.max_num_batched_tokens="$((max_prompt_length + max_response_length))"
    actor_rollout_ref.rollout.enable_chunked_prefill=True
    actor_rollout_ref.rollout.enable_prefix_caching=True
    actor_rollout_ref.rollout.enforce_eager=False
    actor_rollout_ref.rollout.free_cache_engine=True
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu="${max_token_len_per_gpu}"
)

REF=(
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu="${max_token_len_per_gpu}"
    actor_rollout_ref.ref.fsdp_config.param_offload=True
)

TRAINER=(
    trainer.balance_batch=True
    trainer.logger="${LOGGER}"
    trainer.project_name="${PROJECT_NAME}"
    trainer.experiment_name="${EXPERIMENT_NAME}"
    trainer.default_local_dir="${OUTPUT_DIR}"
    trainer.n_gpus_per_node="${NGPUS_PER_NODE}"
    trainer.nnodes="${NNODES}"
    trainer.save_freq="${save_freq}"
    trainer.test_freq="${test_freq}"
    trainer.total_epochs="${total_epochs}"
)

# ROLLOUT_N is the largest group size; without SAGC_SIZES the ladder below it is chosen at start-up and printed.
SAGC=(
    trainer.v1.trainer_mode=sagc
    +sagc.policy=sagc
    +sagc.threshold="${sagc_threshold}"
    +sagc.budget="${sagc_budget}"
)
if [ -n "${sagc_sizes}" ]; then
    SAGC+=(+sagc.sizes="[${sagc_sizes}]")
fi

########################### launch ###########################
python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${MODEL[@]}" \
    "${ACTOR[@]}" \
    "${ROLLOUT[@]}" \
    "${REF[@]}" \
    "${TRAINER[@]}" \
    "${SAGC[@]}" \
    "$@"
