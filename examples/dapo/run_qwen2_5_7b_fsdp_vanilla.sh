#!/usr/bin/env bash
# DAPO | Qwen2.5-7B | FSDP | DAPO-Math-17k, AIME 2024 | vanilla
#
# The plain baseline: the batching, packing and engine switches that veRL offers are off.
# Of DAPO it keeps dynamic sampling; clipping is symmetric and overlong answers are not shaped. For DAPO's whole
# objective without the throughput switches: CLIP_RATIO_HIGH=0.28 OVERLONG_SHAPING=True.
# run_qwen2_5_7b_fsdp_engineered.sh beside it has the same model and data, and all of that on.
#
# Hardware: 1 node, 8 GPUs of 80 GB. More nodes: NNODES=2, and examples/README.md, "Several nodes".
# Data:     python3 examples/data/prepare_dapo17k.py
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
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-7B}
DATA_DIR=${DATA_DIR:-${HOME}/data}
TRAIN_FILES=${TRAIN_FILES:-"['${DATA_DIR}/dapo17k/train.parquet']"}
VAL_FILES=${VAL_FILES:-"['${DATA_DIR}/dapo17k/aime2024.parquet']"}

INFER_BACKEND=${INFER_BACKEND:-vllm} # vllm | sglang
NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}

rollout_n=${ROLLOUT_N:-16}
record=${RECORD:-True}

train_batch_size=${TRAIN_BATCH_SIZE:-128}      # prompts per step, after filtering
ppo_mini_batch_size=${PPO_MINI_BATCH_SIZE:-32} # prompts per optimizer step
max_prompt_length=${MAX_PROMPT_LENGTH:-2048}
max_response_length=${MAX_RESPONSE_LENGTH:-8192}

clip_ratio_low=${CLIP_RATIO_LOW:-0.2}
clip_ratio_high=${CLIP_RATIO_HIGH:-0.2}
overlong_shaping=${OVERLONG_SHAPING:-False}
overlong_buffer_len=${OVERLONG_BUFFER_LEN:-4096} # the last so many tokens before the cap are penalised, linearly
overlong_penalty_factor=${OVERLONG_PENALTY_FACTOR:-1.0}
filter_groups=${FILTER_GROUPS:-True} # dynamic sampling: drop groups whose answers are all right or all wrong
max_inflight_gen_batches=${MAX_INFLIGHT_GEN_BATCHES:-1}

micro_batch_size_per_gpu=${MICRO_BATCH_SIZE_PER_GPU:-2} # must divide ppo_mini_batch_size * n / GPUs
rollout_gpu_mem_util=${ROLLOUT_GPU_MEM_UTIL:-0.5}
rollout_tp=${ROLLOUT_TP:-2}

actor_lr=${ACTOR_LR:-1e-6}
lr_warmup_steps=${LR_WARMUP_STEPS:-10}
weight_decay=${WEIGHT_DECAY:-0.1}
val_n=${VAL_N:-8} # AIME has 30 problems: average several answers to each

total_epochs=${TOTAL_EPOCHS:-10}
save_freq=${SAVE_FREQ:-20}
test_freq=${TEST_FREQ:-10}
seed=${SEED:-1}

PROJECT_NAME=${PROJECT_NAME:-sagc_dapo}
EXPERIMENT_NAME=${EXPERIMENT_NAME:-qwen2_5_7b_fsdp_vanilla}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/${PROJECT_NAME}/${EXPERIMENT_NAME}} # checkpoints, and the records under sagc/
LOGGER=${LOGGER:-'["console"]'} # e.g. '["console","wandb"]'
########################### end user-adjustable ###########################

########################### parameter arrays ###########################
DATA=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False
    algorithm.filter_groups.enable="${filter_groups}"
    algorithm.filter_groups.metric=acc
    algorithm.filter_groups.max_inflight_gen_batches="${max_inflight_gen_batches}"
    data.train_files="${TRAIN_FILES}"
    data.val_files="${VAL_FILES}"
    data.train_batch_size="${train_batch_size}"
    data.max_prompt_length="${max_prompt_length}"
    data.max_response_length="${max_response_length}"
    data.filter_overlong_prompts=True
    data.truncation=error
    data.seed="${seed}"
)

REWARD=(
    reward.reward_manager.name=dapo
    +reward.reward_kwargs.max_resp_len="${max_response_length}"
    +reward.reward_kwargs.overlong_buffer_cfg.enable="${overlong_shaping}"
    +reward.reward_kwargs.overlong_buffer_cfg.len="${overlong_buffer_len}"
    +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor="${overlong_penalty_factor}"
    +reward.reward_kwargs.overlong_buffer_cfg.log=False
)

MODEL=(
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.model.use_remove_padding=False
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)

ACTOR=(
    actor_rollout_ref.actor.strategy=fsdp
    actor_rollout_ref.actor.optim.lr="${actor_lr}"
    actor_rollout_ref.actor.optim.lr_warmup_steps="${lr_warmup_steps}"
    actor_rollout_ref.actor.optim.weight_decay="${weight_decay}"
    actor_rollout_ref.actor.ppo_mini_batch_size="${ppo_mini_batch_size}"
    actor_rollout_ref.actor.use_dynamic_bsz=False
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="${micro_batch_size_per_gpu}"
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.clip_ratio_low="${clip_ratio_low}"
    actor_rollout_ref.actor.clip_ratio_high="${clip_ratio_high}"
    actor_rollout_ref.actor.clip_ratio_c=10.0
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
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7
    actor_rollout_ref.rollout.val_kwargs.n="${val_n}"
)

# DAPO has no KL term, so no reference model is built: these wait for use_kl_loss=True.
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
    "${REWARD[@]}" \
    "${MODEL[@]}" \
    "${ACTOR[@]}" \
    "${ROLLOUT[@]}" \
    "${REF[@]}" \
    "${TRAINER[@]}" \
    "${SAGC[@]}" \
    "$@"
