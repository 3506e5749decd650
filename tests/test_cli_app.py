from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from sagc_verl.cli import app
from sagc_verl.cli.commands import COMMANDS, CommandEntry

HEAVY = ("pandas", "pyarrow", "plotly", "torch", "ray", "verl", "transformers", "numpy", "rich.table")


@pytest.fixture
def run_cli():
    def run(*arguments: str):
        return CliRunner().invoke(app, list(arguments), prog_name="sagc-verl")

    return run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Puts a function in the place of the command `doctor`."""

    def put(function) -> None:
        module = ModuleType("stand_in")
        function.__module__ = "stand_in"
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, "stand_in", module)
        monkeypatch.setitem(COMMANDS, "doctor", CommandEntry("stand_in", "A stand-in."))

    return put


def test_help_lists_every_command_with_examples(run_cli) -> None:
    found = run_cli("--help")
    assert found.exit_code == 0
    for name in ("summary", "export", "compare", "trace", "import-log", "replay", "tune", "sweep", "doctor"):
        assert f" {name} " in found.stdout
    assert "sagc-verl compare outputs/static outputs/sagc --html report.html" in found.stdout


def test_version(run_cli) -> None:
    found = run_cli("--version")
    assert found.exit_code == 0
    assert found.stdout.startswith("sagc-verl ")


@pytest.mark.parametrize("name", ["summary", "export", "compare", "trace", "import-log"])
def test_every_command_has_examples_in_its_help(run_cli, name: str) -> None:
    found = run_cli(name, "--help")
    assert found.exit_code == 0
    assert f"sagc-verl {name} " in found.stdout.partition("Examples:")[2]


def test_start_up_imports_nothing_heavy() -> None:
    code = f"import sys; import sagc_verl.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sumary"], "Did you mean 'summary'?"),
        (["--nope"], "No such option"),
        (["summary"], "Missing argument 'RUN'"),
        (["summary", "nowhere"], "nowhere: no such directory"),
        (["trace", "nowhere", "--step", "x", "--out", "a"], "--step"),
        (["export", "nowhere", "--out", "a.csv"], "nowhere: no such directory"),
        (["compare", "nowhere"], "nowhere: no such directory"),
    ],
)
def test_wrong_requests_are_one_line_and_exit_code_2(run_cli, arguments: list[str], words: str) -> None:
    found = run_cli(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert words in found.stderr
    assert found.stderr.startswith("sagc-verl: ")
    assert found.stderr.count("\n") == 1


def test_a_missing_command_or_package_is_said_plainly(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "doctor", CommandEntry("sagc_verl.cli.not_there", ""))
    found = run_cli("doctor")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert "not part of this installation" in found.stderr

    def needs_a_package(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'plotly'", name="plotly")

    monkeypatch.setattr(importlib, "import_module", needs_a_package)
    found = run_cli("doctor")
    assert found.exit_code == 2
    assert "needs the Python package 'plotly'" in found.stderr


def test_a_command_that_finds_a_problem_exits_with_1(run_cli, command) -> None:
    import typer

    def doctor() -> None:
        raise typer.Exit(1)

    command(doctor)
    assert run_cli("doctor").exit_code == 1


def test_a_fault_of_ours_is_one_line_with_a_way_to_see_more(run_cli, command, monkeypatch: pytest.MonkeyPatch) -> None:
    def doctor() -> None:
        raise KeyError("x\x1b[2J")

    command(doctor)
    found = run_cli("doctor")
    assert found.exit_code == 3
    assert "KeyError" in found.stderr
    assert "SAGC_VERL_TRACEBACK=1" in found.stderr
    assert found.stderr.count("\n") == 1
    assert "\x1b" not in found.stderr
    monkeypatch.setenv("SAGC_VERL_TRACEBACK", "1")
    assert isinstance(run_cli("doctor").exception, KeyError)


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    script = "from sagc_verl.cli import main; main()"
    lines = "\n".join(f"step:{step} - critic/score/mean:0.5 - timing_s/step:1.0" for step in range(1, 5000))
    (tmp_path / "train.log").write_text(lines)
    root = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", script, "import-log", str(tmp_path / "train.log"), "--out", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
