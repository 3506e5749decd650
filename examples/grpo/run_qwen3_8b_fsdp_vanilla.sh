#!/usr/bin/env bash
# GRPO | Qwen3-8B | FSDP | GSM8K + MATH | vanilla
#
# The plain baseline: the batching, packing and engine switches that veRL offers are off.
# run_qwen3_8b_fsdp_engineered.sh beside it has the same model, data and algorithm, and those switches on.
#
# Hardware: 1 node, 8 GPUs of 80 GB. More nodes: NNODES=2, and examples/README.md, "Several nodes".
# Data:     python3 examples/data/prepare_gsm8k.py && python3 examples/data/prepare_math.py
# Status:   every override is composed against veRL 0.9.1's own configuration in a test. We have not run this
#           script on GPUs: check batch sizes and memory on yours.
#
# The group size is fixed at ROLLOUT_N: other values of it are the static baselines (ROLLOUT_N=8 bash ...).
# RECORD=True (default) trains as stock veRL does and also writes the records that `sagc-verl compare` reads;
# RECORD=False is stock veRL without the plug-in.
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
record=${RECORD:-True}

train_batch_size=${TRAIN_BATCH_SIZE:-256}      # prompts per step
ppo_mini_batch_size=${PPO_MINI_BATCH_SIZE:-64} # prompts per optimizer step
max_prompt_length=${MAX_PROMPT_LENGTH:-1024}
max_response_length=${MAX_RESPONSE_LENGTH:-8192}
micro_batch_size_per_gpu=${MICRO_BATCH_SIZE_PER_GPU:-2} # must divide ppo_mini_batch_size * n / GPUs
rollout_gpu_mem_util=${ROLLOUT_GPU_MEM_UTIL:-0.5}
rollout_tp=${ROLLOUT_TP:-2}

actor_lr=${ACTOR_LR:-1e-6}
kl_loss_coef=${KL_LOSS_COEF:-0.001}
entropy_coeff=${ENTROPY_COEFF:-0}

total_epochs=${TOTAL_EPOCHS:-15}
save_freq=${SAVE_FREQ:-20}
test_freq=${TEST_FREQ:-5}
seed=${SEED:-1}

PROJECT_NAME=${PROJECT_NAME:-sagc_grpo_gsm8k_math}
EXPERIMENT_NAME=${EXPERIMENT_NAME:-qwen3_8b_fsdp_vanilla}
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
    actor_rollout_ref.model.use_remove_padding=False
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)

ACTOR=(
    actor_rollout_ref.actor.strategy=fsdp
    actor_rollout_ref.actor.optim.lr="${actor_lr}"
    actor_rollout_ref.actor.ppo_mini_batch_size="${ppo_mini_batch_size}"
    actor_rollout_ref.actor.use_dynamic_bsz=False
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="${micro_batch_size_per_gpu}"
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
    actor_rollout_ref.rollout.enable_chunked_prefill=False
    actor_rollout_ref.rollout.enable_prefix_caching=False
    actor_rollout_ref.rollout.enforce_eager=True
    actor_rollout_ref.rollout.free_cache_engine=True
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu="${micro_batch_size_per_gpu}"
)

REF=(
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu="${micro_batch_size_per_gpu}"
    actor_rollout_ref.ref.fsdp_config.param_offload=True
)

TRAINER=(
    trainer.balance_batch=False
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

# Static policy: one fixed n for the whole run, records written. Empty: stock veRL.
SAGC=()
case "${record}" in
    True) SAGC=(trainer.v1.trainer_mode=sagc +sagc.policy=static) ;;
    False) ;;
    *) echo "RECORD=${record}: must be True or False" >&2 && exit 2 ;;
esac

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
