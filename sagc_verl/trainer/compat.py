"""Which veRL this release works with, and every name of veRL that it leans on, in one list.

`version_fault()` stops a run on an unsupported veRL with the versions that work; `name_faults()` tells which names have
moved. `sagc-verl doctor` prints both and a contract test fails on either.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

SUPPORTED_VERL = ("0.9.1",)
IGNORE_VERSION = "SAGC_IGNORE_VERL_VERSION"


@dataclass(frozen=True)
class Name:
    """A name of veRL that this package uses.

    Attributes:
        path: "module:attribute.attribute".
        parameters: parameters of the callable that are passed or overridden by name, in veRL's order.
        why: what it is used for.
    """

    path: str
    why: str
    parameters: tuple[str, ...] = ()


_V1 = "verl.trainer.ppo.v1"
_TRAINER = f"{_V1}.trainer_base:PPOTrainer"
NAMES = (
    Name(f"{_V1}:register_trainer", "makes trainer_mode=sagc known", ("name",)),
    Name(f"{_V1}:PPOTrainerSync", "the trainer that is subclassed"),
    Name(f"{_TRAINER}.__init__", "start-up checks run before it", ("self", "config")),
    Name(f"{_TRAINER}.fit", "records are closed after it", ("self", "agent_loop_manager")),
    Name(f"{_TRAINER}.on_init_end", "first weight sync, watched", ("self",)),
    Name(f"{_TRAINER}.on_step_begin", "the size of the step is set here", ("self",)),
    Name(f"{_TRAINER}.on_step_end", "weight sync, watched", ("self",)),
    Name(f"{_TRAINER}.step", "rollouts are observed after it", ("self", "metrics", "timing_raw")),
    Name(f"{_TRAINER}._next_train_batch", "carries n to the workers", ("self", "num_prompts")),
    Name(f"{_TRAINER}._add_prompts_to_generate", "DAPO refills are counted here", ("self", "num_prompts")),
    Name(f"{_TRAINER}._save_checkpoint", "controller state goes into the checkpoint", ("self",)),
    Name(f"{_TRAINER}._load_checkpoint", "controller state comes from the checkpoint", ("self",)),
    Name(
        f"{_TRAINER}._compute_metrics",
        "the step's record is written after it",
        ("self", "batch", "metrics", "timing_raw", "global_steps", "epoch"),
    ),
    Name(f"{_TRAINER}._init_resource_pool_mgr", "worker classes on the CPU", ("self",)),
    Name(
        f"{_TRAINER}._balance_batch", "padding rows", ("self", "batch", "metrics", "logging_prefix", "keep_minibatch")
    ),
    Name(f"{_V1}.replay_buffer:ReplayBuffer._wait_for_next_poll", "dead workers are noticed while it polls"),
    Name(f"{_V1}.agent_loop_tq:AgentLoopManagerTQ", "puts our rollout worker in place"),
    Name(f"{_V1}.agent_loop_tq:AgentLoopWorkerTQ", "the rollout worker that is subclassed"),
    Name(
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop",
        "start and end of a rollout",
        ("self", "sampling_params", "trajectory", "agent_name", "trace", "kwargs"),
    ),
    Name(
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._agent_loop_postprocess",
        "what a rollout produced",
        ("self", "output", "validate", "kwargs"),
    ),
    Name("verl.trainer.ppo.utils:need_critic", "size checks", ("config",)),
    Name("verl.trainer.ppo.utils:need_reference_policy", "size checks", ("config",)),
    Name("verl.utils.tensordict_utils:assign_non_tensor_stack", "n per prompt", ("tensor_dict", "key", "val")),
    Name("verl.plugin.platform:PlatformRegistry.register", "the CPU platform"),
    Name("verl.workers.rollout.replica:RolloutReplicaRegistry._registry", "the vLLM server that is wrapped"),
    Name("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "puts it in place", ("cls", "name", "loader")),
    Name("verl.utils.distributed:initialize_global_process_group_ray", "gloo on the CPU"),
    Name("verl.workers.engine_workers:ActorRolloutRefWorker.actor_worker_cls", "the CPU worker"),
    Name("verl.workers.engine_workers:TrainingWorker", "the CPU worker"),
)
_VLLM = "verl.workers.rollout.vllm_rollout.vllm_async_server"
# Only where vLLM is installed: it may be another engine.
VLLM_NAMES = (
    Name(f"{_VLLM}:vLLMHttpServer.run_server", "the engine's requests are timed", ("self", "args")),
    Name(f"{_VLLM}:vLLMHttpServer.generate", "waiting for a slot is told apart"),
    Name(f"{_VLLM}:vLLMReplica", "starts the server above"),
)
# Text that must stand in veRL's source: behaviour no signature shows.
SOURCES = (
    Name(f"{_V1}.agent_loop_tq:AgentLoopWorkerTQ._run_prompt", '"__rollout_n__"'),
    Name(f"{_TRAINER}._update_actor", "self.config.actor_rollout_ref.rollout.n"),
    Name(f"{_TRAINER}._get_required_batch_multiple", "self.config.actor_rollout_ref.rollout.n"),
    Name(f"{_TRAINER}._update_critic", "self.config.actor_rollout_ref.rollout.n"),
    Name(f"{_TRAINER}._build_replay_buffer", "refill_fn=self._add_prompts_to_generate"),
    Name(f"{_TRAINER}.fit", "self._save_checkpoint()"),
    Name(f"{_V1}.replay_buffer:ReplayBuffer._wait_for_next_poll", "self.poll_interval"),
    Name(f"{_V1}.agent_loop_tq:AgentLoopManagerTQ.__init__", "self.agent_loop_workers_class"),
    Name("verl.experimental.agent_loop.agent_loop:AgentLoopManager", "self.agent_loop_workers = "),
    Name("verl.trainer.main_ppo:TaskRunnerV1.init_agent_loop_manager", '"agent_loop_manager_class"'),
    Name("verl.trainer.ppo.padding_utils:construct_minimal_padding_template", "is_padding=True"),
)


def installed_verl() -> str | None:
    """The installed version of veRL, None when there is none."""
    try:
        return version("verl")
    except PackageNotFoundError:
        return None


def version_fault() -> str | None:
    """Why this veRL cannot be used, in one line; None when it can."""
    found = installed_verl()
    if found in SUPPORTED_VERL or os.environ.get(IGNORE_VERSION) == "1":
        return None
    return (
        f"sagc_verl works with veRL {', '.join(SUPPORTED_VERL)}; found {found or 'none'}. "
        f"Install `pip install verl=={SUPPORTED_VERL[-1]}`, or set {IGNORE_VERSION}=1 to try all the same."
    )


def _resolve(path: str) -> object:
    module, _, attributes = path.partition(":")
    found: object = importlib.import_module(module)
    for attribute in attributes.split("."):
        if hasattr(found, "__ray_metadata__"):
            found = found.__ray_metadata__.modified_class  # pyright: ignore[reportAttributeAccessIssue]
        found = inspect.getattr_static(found, attribute) if inspect.isclass(found) else getattr(found, attribute)
    if hasattr(found, "__ray_metadata__"):
        found = found.__ray_metadata__.modified_class  # pyright: ignore[reportAttributeAccessIssue]
    return found


def names() -> tuple[Name, ...]:
    """The names that are used with what is installed."""
    return NAMES + (VLLM_NAMES if importlib.util.find_spec("vllm") else ())


def name_faults() -> list[str]:
    """One line for every name of veRL that is gone or has changed. Imports veRL's trainer (seconds)."""
    faults = []
    for name in names():
        try:
            found = _resolve(name.path)
        except (ImportError, AttributeError) as error:
            faults.append(f"{name.path} is gone ({name.why}): {error}")
            continue
        if not name.parameters:
            continue
        try:
            signature = inspect.signature(getattr(found, "__func__", found))  # pyright: ignore[reportArgumentType]
        except TypeError:
            faults.append(f"{name.path} is no function any more ({name.why})")
            continue
        # Ray adds a parameter of its own to the methods of an actor class.
        parameters = tuple(parameter for parameter in signature.parameters if parameter != "_ray_trace_ctx")
        if parameters != name.parameters:
            faults.append(f"{name.path} takes {parameters}, expected {name.parameters} ({name.why})")
    for name in SOURCES:
        try:
            source = inspect.getsource(_resolve(name.path))  # pyright: ignore[reportArgumentType]
        except (ImportError, AttributeError, OSError) as error:
            faults.append(f"{name.path} is gone: {error}")
            continue
        if name.why not in source:
            faults.append(f"{name.path} no longer holds {name.why!r}")
    return faults
