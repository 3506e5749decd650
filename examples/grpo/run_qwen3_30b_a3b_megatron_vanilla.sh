#!/usr/bin/env bash
# GRPO | Qwen3-30B-A3B (mixture of experts) | Megatron | DAPO-Math-17k, AIME 2024 | vanilla
#
# The plain baseline: the batching, packing and engine switches that veRL offers are off.
# run_qwen3_30b_a3b_megatron_engineered.sh beside it has the same model, data and layout, and those on.
#
# Hardware: 2 nodes of 8 GPUs of 80 GB. The plug-in must be installed on both: examples/README.md, "Several nodes".
# Data:     python3 examples/data/prepare_dapo17k.py
# Status:   every override is composed against veRL 0.9.1's own configuration in a test. We have not run this
#           script on GPUs: check batch sizes and memory on yours.
#
# The group size is fixed at ROLLOUT_N: other values of it are the static baselines (ROLLOUT_N=8 bash ...).
# RECORD=True (default) trains as stock veRL does and also writes the records that `sagc-verl compare` reads;
# RECORD=False is stock veRL without the plug-in.
#
# Needs Megatron-Core, Transformer Engine and mbridge, as veRL's Megatron installation has them.
#
# Knobs are environment variables, in the first block. Anything else: append Hydra overrides to the command line.

set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1 # Megatron overlaps communication with computation only with one queue

########################### user-adjustable ###########################
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-30B-A3B}
DATA_DIR=${DATA_DIR:-${HOME}/data}
TRAIN_FILES=${TRAIN_FILES:-"['${DATA_DIR}/dapo17k/train.parquet']"}
VAL_FILES=${VAL_FILES:-"['${DATA_DIR}/dapo17k/aime2024.parquet']"}

INFER_BACKEND=${INFER_BACKEND:-vllm} # vllm | sglang
NNODES=${NNODES:-2}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}

rollout_n=${ROLLOUT_N:-16}
record=${RECORD:-True}

train_batch_size=${TRAIN_BATCH_SIZE:-128}      # prompts per step
ppo_mini_batch_size=${PPO_MINI_BATCH_SIZE:-32} # prompts per optimizer step
max_prompt_length=${MAX_PROMPT_LENGTH:-2048}
max_response_length=${MAX_RESPONSE_LENGTH:-16384}
micro_batch_size_per_gpu=${MICRO_BATCH_SIZE_PER_GPU:-1} # must divide ppo_mini_batch_size * n / data parallel size
rollout_gpu_mem_util=${ROLLOUT_GPU_MEM_UTIL:-0.5}
rollout_tp=${ROLLOUT_TP:-4}

actor_tp=${ACTOR_TP:-4}   # tensor parallel
actor_pp=${ACTOR_PP:-1}   # pipeline parallel
actor_cp=${ACTOR_CP:-1}   # context parallel
actor_ep=${ACTOR_EP:-8}   # expert parallel
actor_etp=${ACTOR_ETP:-1} # tensor parallel inside an expert
offload=${OFFLOAD:-True}  # parameters and optimizer state to host memory while generating

actor_lr=${ACTOR_LR:-1e-6}
kl_loss_coef=${KL_LOSS_COEF:-0.001}
entropy_coeff=${ENTROPY_COEFF:-0}
val_n=${VAL_N:-8} # AIME has 30 problems: average several answers to each

total_epochs=${TOTAL_EPOCHS:-2}
save_freq=${SAVE_FREQ:-20}
test_freq=${TEST_FREQ:-10}
seed=${SEED:-1}

PROJECT_NAME=${PROJECT_NAME:-sagc_grpo_dapo17k}
EXPERIMENT_NAME=${EXPERIMENT_NAME:-qwen3_30b_a3b_megatron_vanilla}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/${PROJECT_NAME}/${EXPERIMENT_NAME}} # must lie on storage that all nodes share
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
    model_engine=megatron
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.model.use_remove_padding=False
)

ACTOR=(
    actor_rollout_ref.actor.optim.lr="${actor_lr}"
    actor_rollout_ref.actor.ppo_mini_batch_size="${ppo_mini_batch_size}"
    actor_rollout_ref.actor.use_dynamic_bsz=False
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="${micro_batch_size_per_gpu}"
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef="${kl_loss_coef}"
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff="${entropy_coeff}"
    actor_rollout_ref.actor.loss_agg_mode=token-mean
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size="${actor_tp}"
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size="${actor_pp}"
    actor_rollout_ref.actor.megatron.context_parallel_size="${actor_cp}"
    actor_rollout_ref.actor.megatron.expert_model_parallel_size="${actor_ep}"
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size="${actor_etp}"
    actor_rollout_ref.actor.megatron.param_offload="${offload}"
    actor_rollout_ref.actor.megatron.optimizer_offload="${offload}"
    actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
    actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
    actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype=fp32
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
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7
    actor_rollout_ref.rollout.val_kwargs.n="${val_n}"
)

# The reference model takes the actor's parallel layout.
REF=(
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu="${micro_batch_size_per_gpu}"
    actor_rollout_ref.ref.megatron.param_offload="${offload}"
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
