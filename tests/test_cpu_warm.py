"""The warm interpreter with light modules in place of veRL and vLLM: what it forks behaves as a Python of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sagc_verl.cpu import warm, warm_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the warm interpreter is for Linux")

SECONDS = 30.0
"""How long anything here may take on a busy machine."""


@dataclass
class Server:
    client: str
    environment: dict[str, str]
    process: subprocess.Popen
    owner: subprocess.Popen
    log: Path

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **options.pop("env", {})}
        return subprocess.run(
            [self.client, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS, **options
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen:
        environment = {**self.environment, **options.pop("env", {})}
        return subprocess.Popen([self.client, *arguments], env=environment, **options)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"{what}: not within {SECONDS:.0f} s")


def runs(process: int) -> bool:
    return warm._is_running(process)


def start_server(folder: Path) -> Server:
    """A server started by `warm.start`, as it is but for what it imports and how long it waits before it kills."""
    source = Path(warm.__file__).read_text()
    light = re.sub(r"^MODULES = \(.*?^\)", 'MODULES = ("numpy", "json.tool")', source, flags=re.S | re.M)
    light = re.sub(r"^GRACE_SECONDS = .*", "GRACE_SECONDS = 0.3", light, flags=re.M)
    assert light != source
    script = folder / "light_warm.py"
    script.write_text(light)
    owner = subprocess.Popen(["sleep", "600"])
    started = []

    def start_light(command: list[str], **options: Any) -> subprocess.Popen:
        assert command[1:3] == ["-m", "sagc_verl.cpu.warm"]
        started.append(subprocess.Popen([command[0], str(script), *command[3:]], **options))
        return started[0]

    with pytest.MonkeyPatch.context() as patch:
        for name in (warm.SWITCH, warm.CLIENT, warm_python.SERVER, warm_python.PYTHON, warm_python.RAY_JOB):
            patch.delenv(name, raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("ONLY_IN_THE_SERVER", "1")
        patch.setattr(warm, "subprocess", type("Light", (), {"Popen": start_light, "DEVNULL": subprocess.DEVNULL}))
        client = warm.start(owner=owner.pid, log=folder / "log")
        environment = dict(os.environ)
    del environment["ONLY_IN_THE_SERVER"]
    return Server(client, environment, started[0], owner, folder / "log")


def end_server(server: Server) -> None:
    server.owner.kill()
    server.owner.wait()
    server.process.wait(timeout=SECONDS)
    shutil.rmtree(Path(server.client).parent, ignore_errors=True)  # left only where the server was killed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = start_server(tmp_path_factory.mktemp("warm"))
    until(lambda: "warm: ready" in made.log.read_text(), "the server is ready")
    yield made
    end_server(made)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    made = start_server(tmp_path)
    yield made
    end_server(made)


# ---- what is run


def test_code_is_run_in_a_fork_that_has_the_modules(server: Server) -> None:
    code = "import os, sys; print('numpy' in sys.modules, os.getppid(), __name__, sys.argv, sys.path[0] == '')"
    found = server.run("-c", code, "one", "--two")
    assert found.stderr == ""
    assert found.stdout == f"True {server.process.pid} __main__ ['-c', 'one', '--two'] True\n"


def test_plain_flags_are_passed_over(server: Server) -> None:
    assert server.run("-u", "-s", "-c", "import sys; print(sys.argv)").stdout == "['-c']\n"


def test_a_module(server: Server, tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text("import sys; print(__name__, sys.argv[1:], __file__)")
    found = server.run("-m", "my_module", "x", cwd=tmp_path)
    assert found.stdout == f"__main__ ['x'] {tmp_path / 'my_module.py'}\n"
    assert server.run("-m", "json.tool", "--compact", input='{"a":  1}').stdout == '{"a":1}\n'


def test_a_script(server: Server, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside; print(__name__, sys.argv, __file__, beside.value)")
    found = server.run(str(script), "-c", "x")
    assert found.stdout == f"__main__ ['{script}', '-c', 'x'] {script} 7\n"


def test_directory_and_environment_are_the_clients(server: Server, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "from_python_path.py").write_text("value = 8")
    code = (
        "import os, from_python_path; print(os.getcwd(), os.environ['MARK'], from_python_path.value, "
        "'ONLY_IN_THE_SERVER' in os.environ)"
    )
    found = server.run("-c", code, cwd=tmp_path, env={"MARK": "m", "PYTHONPATH": str(tmp_path / "lib")})
    assert found.stdout == f"{tmp_path} m 8 False\n", found.stderr


def test_standard_streams_and_open_files_are_the_clients(server: Server) -> None:
    read, write = os.pipe()
    code = f"import os, sys; print(sys.stdin.read()); print('err', file=sys.stderr); os.write({write}, b'through')"
    found = server.run("-c", code, input="in", pass_fds=[write])
    os.close(write)
    assert (found.stdout, found.stderr) == ("in\n", "err\n")
    assert os.read(read, 100) == b"through"
    assert os.read(read, 100) == b""  # the server and the fork hold it open no longer
    os.close(read)


def test_every_fork_draws_its_own_random_numbers(server: Server) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    assert server.run("-c", code).stdout != server.run("-c", code).stdout


def test_many_at_once(server: Server) -> None:
    code = "import sys, time; time.sleep(.2); sys.exit(int(sys.argv[1]))"
    running = [server.start("-c", code, str(number)) for number in range(8)]
    assert [process.wait(timeout=SECONDS) for process in running] == list(range(8))


def test_multiprocessing_starts_its_processes_here_too(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def work(queue): queue.put((os.getppid(), 'through a queue'))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    print(*queue.get(timeout=30))\n"
        "    process.join()\n"
        "    print(process.exitcode)\n"
    )
    found = server.run(str(script))
    assert found.stdout == f"{server.process.pid} through a queue\n0\n", found.stderr


# ---- how it ends


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('why')", 1),
        ("import os; os._exit(7)", 7),
        ("raise KeyError('lost')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os; os.abort()", -6),
    ],
)
def test_the_client_ends_as_the_fork_does(server: Server, code: str, status: int) -> None:
    found = server.run("-c", code)
    assert found.returncode == status
    if "KeyError" in code:
        assert "KeyError: 'lost'" in found.stderr
    if "why" in code:
        assert found.stderr == "why\n"


def test_what_is_to_happen_at_exit_happens(server: Server) -> None:
    assert server.run("-c", "import atexit; atexit.register(print, 'bye')").stdout == "bye\n"


STAY = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAY


@pytest.mark.parametrize("code", [STAY, STUBBORN], ids=["willing", "ignores SIGTERM"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ending_the_client_ends_the_fork(server: Server, number: signal.Signals, code: str) -> None:
    client = server.start("-c", code, stdout=subprocess.PIPE)
    assert client.stdout is not None
    fork = int(client.stdout.readline())
    client.send_signal(number)
    assert client.wait(timeout=SECONDS) in (-number, 128 + number)
    until(lambda: not runs(fork), "the fork has ended")
    client.stdout.close()


def test_a_process_of_ray_does_not_outlive_the_one_that_started_it(server: Server, tmp_path: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    written = tmp_path / "pid"
    stay = f"import os, time; open({str(written)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(600)"
    environment = {**server.environment, warm_python.RAY_JOB: warm_python.FIRST_JOB}
    parent = subprocess.Popen([sys.executable, "-c", code, server.client, "-c", stay], env=environment)
    fork = int(until(lambda: written.exists() and written.read_text().endswith(".") and written.read_text()[:-1], "it"))
    parent.kill()
    parent.wait()
    until(lambda: not runs(fork), "the fork has ended")


@pytest.mark.parametrize("ended", ["the owner", "the server"])
def test_when_it_ends_nothing_is_left(own_server: Server, ended: str) -> None:
    clients = [own_server.start("-c", code, stdout=subprocess.PIPE) for code in (STAY, STUBBORN)]
    forks = [int(client.stdout.readline()) for client in clients]  # type: ignore[union-attr]
    socket = Path(own_server.environment[warm_python.SERVER])
    assert socket.exists()
    if ended == "the owner":
        own_server.owner.kill()
        own_server.owner.wait()
    else:
        until(lambda: "warm: ready" in own_server.log.read_text(), "the server is ready")
        own_server.process.terminate()
    assert own_server.process.wait(timeout=SECONDS) == 0
    for client in clients:
        assert client.wait(timeout=SECONDS) != 0
        client.stdout.close()  # type: ignore[union-attr]
    for fork in forks:
        until(lambda fork=fork: not runs(fork), "the fork has ended")
    assert not socket.exists()


def test_a_server_that_is_killed_takes_its_clients_along(own_server: Server) -> None:
    client = own_server.start("-c", STAY, stdout=subprocess.PIPE)
    assert client.stdout is not None
    fork = int(client.stdout.readline())
    own_server.process.kill()
    assert client.wait(timeout=SECONDS) != 0
    client.stdout.close()
    os.kill(fork, signal.SIGKILL)


# ---- without a server


REAL = "import os, sys; print(os.getppid(), 'numpy' in sys.modules)"


def test_without_a_server_it_is_the_real_interpreter(server: Server, tmp_path: Path) -> None:
    mine = f"{os.getpid()} False\n"
    assert server.run("-c", REAL, env={warm_python.SERVER: str(tmp_path / "nowhere")}).stdout == mine
    assert server.run("-c", REAL, env={warm_python.SERVER: ""}).stdout == mine
    found = server.run("-c", "import sys; sys.exit(5)", env={warm_python.SERVER: ""})
    assert found.returncode == 5


def test_what_cannot_be_forked_runs_in_the_real_interpreter(server: Server) -> None:
    assert server.run("-V").stdout == f"Python {sys.version.split()[0]}\n"
    assert server.run("-W", "ignore", "-c", REAL).stdout == f"{os.getpid()} False\n"
    assert server.run("-c", REAL, env={warm_python.RAY_JOB: "02000000"}).stdout == f"{os.getpid()} False\n"
    assert server.run("-c", REAL, env={warm_python.RAY_JOB: warm_python.FIRST_JOB}).stdout != f"{os.getpid()} False\n"


@pytest.mark.parametrize(
    ("arguments", "forks"),
    [
        (["-c", "pass"], True),
        (["-m", "json.tool"], True),
        (["script.py", "-c"], True),
        (["-u", "-E", "script.py"], True),
        (["-X", "dev", "script.py"], False),
        (["-V"], False),
        (["-u"], False),
        ([], False),
    ],
)
def test_which_arguments_can_be_forked(arguments: list[str], forks: bool) -> None:
    assert warm_python.can_fork(arguments) is forks


@pytest.mark.parametrize(("variable", "value"), [(warm.SWITCH, "0"), ("RAY_ADDRESS", "10.0.0.1:6379")])
def test_switched_off_nothing_is_started(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    for name in (warm.CLIENT, warm_python.SERVER):
        monkeypatch.setenv(name, "")  # known to monkeypatch, which then removes what start() sets
        monkeypatch.delenv(name)
    monkeypatch.delenv(warm.SWITCH, raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(warm.subprocess, "Popen", lambda *args, **kwargs: pytest.fail("started"))
    assert warm.start() == sys.executable
    assert warm_python.SERVER not in os.environ


def test_a_server_that_is_there_is_used_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (warm.CLIENT, warm_python.SERVER, warm_python.PYTHON):
        monkeypatch.setenv(name, server.environment[name])
    monkeypatch.delenv(warm.SWITCH, raising=False)
    monkeypatch.setattr(warm.subprocess, "Popen", lambda *args, **kwargs: pytest.fail("started a second one"))
    assert warm.start() == server.client
