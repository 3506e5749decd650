#!/usr/bin/env bash
# Evaluation | any model | FSDP engine, vLLM | GSM8K, MATH-500, AIME 2024, reasoning-gym
#
# Scores a model through veRL's own validation (trainer.val_only=True) and writes accuracy with intervals and output
# lengths as JSON, into the run's records where the checkpoint belongs to a run, for `sagc-verl compare` to show.
#
#   bash examples/eval/run_eval.sh                                    # MODEL_PATH as it is: the score before training
#   CKPT=outputs/my_run/global_step_200 bash examples/eval/run_eval.sh
#   CKPT=outputs/my_run/global_step_200 LOAD=merge BACKEND=megatron bash examples/eval/run_eval.sh
#
# LOAD=resume loads the sharded FSDP checkpoint as training would: on as many GPUs as it was trained on.
# LOAD=merge first merges it into one Hugging Face model (veRL's model_merger, on the CPU): any number of GPUs, and
# the way for Megatron checkpoints.
#
# Hardware: 1 node, 8 GPUs of 80 GB for an 8B model; fewer with NGPUS_PER_NODE and LOAD=merge.
# Data:     examples/data/prepare_*.py. Files that are not there are left out, and said so.
# Status:   every override is composed against veRL 0.9.1's own configuration in a test. We have not run this
#           script on GPUs.

set -euo pipefail

########################### user-adjustable ###########################
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B} # the model that training started from
CKPT=${CKPT:-}                          # .../global_step_<k>; empty: MODEL_PATH itself
LOAD=${LOAD:-resume}                    # resume | merge
STRATEGY=${STRATEGY:-fsdp2}             # fsdp | fsdp2: as in training, for LOAD=resume (the vanilla scripts: fsdp)
BACKEND=${BACKEND:-fsdp}                # fsdp | megatron: what wrote the checkpoint, for LOAD=merge

DATA_DIR=${DATA_DIR:-${HOME}/data}
VAL_FILES=${VAL_FILES:-} # e.g. "['/a/test.parquet','/b/test.parquet']"; empty: those below that are there

INFER_BACKEND=${INFER_BACKEND:-vllm}
NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
rollout_tp=${ROLLOUT_TP:-2}
rollout_gpu_mem_util=${ROLLOUT_GPU_MEM_UTIL:-0.7}

max_prompt_length=${MAX_PROMPT_LENGTH:-2048}
max_response_length=${MAX_RESPONSE_LENGTH:-8192}
val_n=${VAL_N:-1} # answers per prompt; 8 or more for AIME alone
temperature=${TEMPERATURE:-0.6}
top_p=${TOP_P:-0.95}
seed=${SEED:-1}

RESULT_DIR=${RESULT_DIR:-} # empty: sagc/eval in the checkpoint's run, or outputs/eval
########################### end user-adjustable ###########################

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

########################### derived ###########################
if [ -z "${VAL_FILES}" ]; then
    found=()
    for name in gsm8k/test math/math500 dapo17k/aime2024 reasoning_gym/test; do
        file="${DATA_DIR}/${name}.parquet"
        if [ -f "${file}" ]; then found+=("'${file}'"); else echo "left out, not there: ${file}" >&2; fi
    done
    if [ "${#found[@]}" = 0 ]; then
        echo "no benchmark under DATA_DIR=${DATA_DIR}; examples/data/prepare_reasoning_gym.py needs no download" >&2
        exit 2
    fi
    VAL_FILES="[$(IFS=,; echo "${found[*]}")]"
fi
first_file=${VAL_FILES#[}
first_file=${first_file%%,*}
first_file=${first_file%]}

step=0
LOADING=(trainer.resume_mode=disable)
if [ -n "${CKPT}" ]; then
    CKPT=$(cd "${CKPT}" && pwd)
    step=${CKPT##*global_step_}
    RESULT_DIR=${RESULT_DIR:-$(dirname "${CKPT}")/sagc/eval}
    case "${LOAD}" in
        resume)
            LOADING=(
                trainer.resume_mode=resume_path
                trainer.resume_from_path="${CKPT}"
                actor_rollout_ref.actor.checkpoint.load_contents="[model]"
            )
            ;;
        merge)
            merged="${CKPT}/merged_hf"
            if [ ! -f "${merged}/config.json" ]; then
                python3 -m verl.model_merger merge --backend "${BACKEND}" --local_dir "${CKPT}/actor" \
                    --target_dir "${merged}"
            fi
            MODEL_PATH=${merged}
            ;;
        *) echo "LOAD=${LOAD}: must be resume or merge" >&2 && exit 2 ;;
    esac
fi
RESULT_DIR=${RESULT_DIR:-outputs/eval}
generations="${RESULT_DIR}/generations_step_${step}${CKPT:+_${LOAD}}"

########################### parameter arrays ###########################
# The trainer wants training data to start with: it reads the first benchmark and trains on nothing.
DATA=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False
    data.train_files="${first_file}"
    data.val_files="${VAL_FILES}"
    data.train_batch_size=8
    data.max_prompt_length="${max_prompt_length}"
    data.max_response_length="${max_response_length}"
    data.validation_shuffle=False
    data.filter_overlong_prompts=True
    data.truncation=error
    reward.custom_reward_function.path="${HERE}/eval_reward.py"
)

MODEL=(
    actor_rollout_ref.model.path="${MODEL_PATH}"
)

ACTOR=(
    actor_rollout_ref.actor.strategy="${STRATEGY}"
    actor_rollout_ref.actor.ppo_mini_batch_size=8
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.fsdp_config.param_offload=True
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
)

ROLLOUT=(
    actor_rollout_ref.rollout.name="${INFER_BACKEND}"
    actor_rollout_ref.rollout.seed="${seed}"
    actor_rollout_ref.rollout.tensor_model_parallel_size="${rollout_tp}"
    actor_rollout_ref.rollout.gpu_memory_utilization="${rollout_gpu_mem_util}"
    actor_rollout_ref.rollout.max_model_len="$((max_prompt_length + max_response_length))"
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.temperature="${temperature}"
    actor_rollout_ref.rollout.val_kwargs.top_p="${top_p}"
    actor_rollout_ref.rollout.val_kwargs.n="${val_n}"
)

TRAINER=(
    trainer.val_only=True
    trainer.val_before_train=True
    trainer.validation_data_dir="${generations}"
    trainer.logger='["console"]'
    trainer.project_name=sagc_eval
    trainer.experiment_name="step_${step}"
    trainer.n_gpus_per_node="${NGPUS_PER_NODE}"
    trainer.nnodes="${NNODES}"
)

########################### launch ###########################
python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${MODEL[@]}" \
    "${ACTOR[@]}" \
    "${ROLLOUT[@]}" \
    "${TRAINER[@]}" \
    "${LOADING[@]}" \
    "$@"

python3 "${HERE}/score.py" \
    --generations "${generations}" \
    --out "${RESULT_DIR}/step_${step}.json" \
    --model "${MODEL_PATH}" \
    --step "${step}" \
    --checkpoint "${CKPT:-${MODEL_PATH}}" \
    --val-files "${VAL_FILES}" \
    --n "${val_n}" \
    --temperature "${temperature}" \
    --max-response-length "${max_response_length}"
