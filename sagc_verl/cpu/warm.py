"""A warm interpreter: imports veRL, vLLM and Ray once, and forks for every process of a run that needs them.

A run on the CPU is a dozen Python processes, and each spends 8 to 25 seconds of CPU on the same imports. Here one
server imports them once; Ray (`runtime_env.py_executable`) and multiprocessing start a small client (warm_python.py) in
place of `python`, and the server forks. It belongs to an owner process, ends when that ends, and takes its forks along.
It is for one machine and the CPU path only; `SAGC_WARM=0` switches it off, and without a server everything runs as
ever.

The server is single-threaded when it forks. It never imports anything that starts Ray, a process group or an engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path

from sagc_verl.cpu import warm_python
from sagc_verl.cpu.platform import ENVIRONMENT

SWITCH = "SAGC_WARM"
CLIENT = "SAGC_CPU_PYTHON"
"""Environment variable with the interpreter that a CPU run's processes start with (conf/cpu.yaml reads it)."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
GRACE_SECONDS = 3.0
MODULES = (
    "sagc_verl.trainer.rollout_worker",
    "sagc_verl.trainer.trainer",
    "sagc_verl.cpu.workers",
    "sagc_verl.cpu.trainer",
    "verl.trainer.main_ppo",
    "verl.workers.engine.fsdp",
    "verl.experimental.agent_loop.single_turn_agent_loop",
    "verl.experimental.reward_loop",
    "verl.workers.rollout.llm_server",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "transformers.models.llama.modeling_llama",
    "ray._private.workers.default_worker",
)


@dataclass
class _Fork:
    connection: socket.socket
    kill_at: float | None = None


@dataclass
class _Request:
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    files: dict[int, int]
    """Number the file has in the client -> its number here."""


def start(owner: int | None = None, log: Path | None = None) -> str:
    """Start a server that belongs to process `owner` (default: this one); returns what to start in place of `python`.

    Sets the environment variables through which this process's children find it. With `SAGC_WARM=0` the real
    interpreter is returned and nothing started; so too for a Ray cluster that runs already (RAY_ADDRESS), which may
    have other machines and its own way to authenticate. A server named in the environment and alive is used again.
    """
    if os.environ.get(SWITCH) == "0":
        return os.environ.setdefault(CLIENT, sys.executable)
    if os.environ.get(CLIENT) and _alive(os.environ.get(warm_python.SERVER)):
        return os.environ[CLIENT]
    if os.environ.get("RAY_ADDRESS"):
        return os.environ.setdefault(CLIENT, sys.executable)
    directory = Path(tempfile.mkdtemp(prefix="sagc-warm-"))
    address = directory / "socket"
    client = directory / "python"
    client.write_text(f"#!{sys.executable} -SE\n" + Path(warm_python.__file__).read_text().partition("\n")[2])
    client.chmod(0o700)
    os.environ[warm_python.SERVER] = str(address)
    os.environ[warm_python.PYTHON] = sys.executable
    os.environ[CLIENT] = str(client)
    with open(log or directory / "log", "ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "sagc_verl.cpu.warm", str(address), str(owner or os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + 10
    while not address.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return str(client)


def _alive(address: str | None) -> bool:
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


def serve(address: Path, owner: int) -> _Request | None:
    """Import, then fork on request until the owner is gone. Returns what to run in a fork, and None at the end."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(address))
    listening.listen(64)
    _preload()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    forks: dict[int, _Fork] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ, "new")
        selector.register(wake_read, selectors.EVENT_READ, "child")
        while _is_running(owner) and not ended:
            for key, _ in selector.select(timeout=1.0):
                if key.data == "new":
                    connection = listening.accept()[0]
                    request = _receive(connection)
                    if request is None:
                        connection.close()
                        continue
                    child = os.fork()
                    if child == 0:
                        signal.set_wakeup_fd(-1)
                        for number in (signal.SIGCHLD, signal.SIGTERM):
                            signal.signal(number, signal.SIG_DFL)
                        return request
                    for number in request.files.values():
                        os.close(number)
                    forks[child] = _Fork(connection)
                    selector.register(connection, selectors.EVENT_READ, child)
                elif key.data == "child":
                    os.read(wake_read, 4096)
                elif key.data in forks and not key.fileobj.recv(1):  # type: ignore[union-attr]
                    # The client was ended: so is its fork.
                    selector.unregister(key.fileobj)
                    forks[key.data].kill_at = time.monotonic() + GRACE_SECONDS
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGTERM)
            _reap(forks, selector)
    for child in forks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    shutil.rmtree(address.parent, ignore_errors=True)
    return None


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie answers too: its parent has not looked yet, but it runs no more.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _reap(forks: dict[int, _Fork], selector: selectors.BaseSelector) -> None:
    now = time.monotonic()
    for child, fork in list(forks.items()):
        done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            if fork.kill_at is not None and now > fork.kill_at:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            continue
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            fork.connection.sendall(code.to_bytes(4, "big", signed=True))
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(fork.connection)
        fork.connection.close()
        del forks[child]


def _receive(connection: socket.socket) -> _Request | None:
    head, files, _, _ = socket.recv_fds(connection, 8, warm_python.MAX_FDS)
    if len(head) < 8:
        return None
    length, payload = int.from_bytes(head, "big"), b""
    while len(payload) < length:
        part = connection.recv(length - len(payload))
        if not part:
            return None
        payload += part
    request = json.loads(payload)
    return _Request(
        request["arguments"],
        request["environment"],
        request["directory"],
        dict(zip(request["files"], files, strict=True)),
    )


def _preload() -> None:
    import gc

    for module in MODULES:
        try:
            importlib.import_module(module)
        except Exception as error:  # what cannot be imported now is imported, or fails, where it is used
            print(f"warm: {module}: {error!r}", file=sys.stderr, flush=True)
    others = [name for name in _threads() if not name.startswith("jemalloc")]  # pyarrow's allocator minds forks itself
    if len(others) > 1:
        print(f"warm: threads {others} after the imports: forks may hang ({SWITCH}=0 turns this off)", file=sys.stderr)
    print("warm: ready", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()  # forks share these pages


def _threads() -> list[str]:
    return [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]


def _become(request: _Request) -> None:
    """Take on the client's files, environment, directory and arguments."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # ends with the server, however that ends
    # First out of the way, then into place: a number may be both a source and a target.
    aside = {target: _dup_above(number, 512) for target, number in request.files.items()}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number not in aside.values():
            with contextlib.suppress(OSError):
                os.close(number)
    for target, number in aside.items():
        os.dup2(number, target, inheritable=True)
        os.close(number)
    os.environ.clear()
    os.environ.update(request.environment)
    for name, value in ENVIRONMENT.items():  # set by the plug-in, which was imported before this environment was here
        os.environ.setdefault(name, value)
    os.chdir(request.directory)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    for entry in reversed(request.environment.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(1, entry)

    import multiprocessing.spawn
    import random

    import numpy as np

    if "ray._raylet" in sys.modules:  # it has its settings from the server's environment (RAY_AUTH_MODE and the like)
        sys.modules["ray._raylet"].Config.initialize("")
    multiprocessing.spawn.set_executable(request.environment[CLIENT])
    random.seed()
    np.random.seed()


def _dup_above(number: int, low: int) -> int:
    import fcntl

    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, low)


def _run(arguments: list[str]) -> None:
    """Run as the interpreter would: `-c CODE`, `-m MODULE` or a script, as `__main__`."""
    import runpy

    while arguments[0] in warm_python.PLAIN_FLAGS:
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.orig_argv = [sys.executable, *arguments]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        code = compile(arguments[1], "<string>", "exec")
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        main.__file__ = arguments[0]
        code = compile(Path(arguments[0]).read_bytes(), arguments[0], "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    # The imports below load the plug-in: for the CPU, and it must not start a server of its own.
    os.environ.update({SWITCH: "0", "VERL_PLATFORM": "cpu"})
    for variable, default in ENVIRONMENT.items():
        os.environ.setdefault(variable, default)
    # What Ray's library reads from the environment when it is imported, once for all forks: the job that they may
    # belong to (warm_python.py sends no others here), and the process with which they are to end, this one.
    os.environ.update({warm_python.RAY_JOB: warm_python.FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())})
    job = serve(Path(sys.argv[1]), int(sys.argv[2]))
    if job is not None:
        _become(job)
        _run(job.arguments)
