from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from sagc_verl.plugin import _run_after_import

HEAVY = ("torch", "ray", "verl", "pandas", "pyarrow", "vllm", "transformers", "numpy", "hydra", "omegaconf")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path; what is imported from it, and hooks put in place, are gone afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks, known = list(sys.meta_path), set(sys.modules)
    yield tmp_path
    sys.meta_path[:] = hooks
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_the_action_runs_once_right_after_the_module(modules: Path) -> None:
    (modules / "thrown_away.py").write_text("value = 1\n")
    seen = []
    _run_after_import({"thrown_away": lambda: seen.append(sys.modules["thrown_away"].value)})
    assert seen == []
    import thrown_away  # pyright: ignore[reportMissingImports]

    assert seen == [1]
    importlib.reload(thrown_away)
    assert seen == [1]


def test_other_modules_are_left_alone(modules: Path) -> None:
    (modules / "bystander.py").write_text("value = 2\n")
    _run_after_import({"thrown_away": lambda: pytest.fail("not asked for")})
    assert importlib.import_module("bystander").value == 2


def test_a_module_that_is_there_already_has_its_action_at_once(modules: Path) -> None:
    (modules / "already.py").write_text("")
    importlib.import_module("already")
    hooks, seen = list(sys.meta_path), []
    _run_after_import({"already": lambda: seen.append("now")})
    assert seen == ["now"]
    assert sys.meta_path == hooks


def test_a_submodule_of_a_package(modules: Path) -> None:
    package = modules / "outer" / "inner"
    package.mkdir(parents=True)
    (modules / "outer" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from outer.inner.leaf import value\n")
    (package / "leaf.py").write_text("value = 3\n")
    seen = []
    _run_after_import({"outer.inner": lambda: seen.append(sys.modules["outer.inner"].value)})
    importlib.import_module("outer")
    assert seen == []
    importlib.import_module("outer.inner.leaf")
    assert seen == [3]


def test_an_action_may_import_from_the_module_it_waited_for(modules: Path) -> None:
    (modules / "thrown_away.py").write_text("value = 4\n")
    (modules / "user.py").write_text("from thrown_away import value\n")
    _run_after_import({"thrown_away": lambda: importlib.import_module("user")})
    importlib.import_module("thrown_away")
    assert sys.modules["user"].value == 4


def test_a_module_that_is_missing_or_broken_fails_as_ever_and_runs_nothing(modules: Path) -> None:
    (modules / "broken.py").write_text("raise RuntimeError('its own fault')\n")
    names = ("broken", "nowhere_to_be_found")
    _run_after_import({name: lambda: pytest.fail("must not run") for name in names})
    with pytest.raises(RuntimeError, match="its own fault"):
        importlib.import_module("broken")
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        importlib.import_module("nowhere_to_be_found")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "SAGC_"))}
    clean["PYTHONPATH"] = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**clean, **environment}, timeout=120
    )


def test_the_plug_in_imports_nothing_heavy() -> None:
    found = run_python(f"import sys, sagc_verl.plugin; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


def test_a_broken_plug_in_is_said_where_it_is_seen(tmp_path: Path) -> None:
    # A stand-in for verl without the platform registry: the CPU platform cannot be registered.
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['torch'] = sys; import sagc_verl.plugin"
    found = run_python(code, VERL_PLATFORM="cpu")
    assert found.returncode != 0
    assert "sagc_verl: the veRL plug-in could not be loaded: ModuleNotFoundError" in found.stderr


def test_the_drivers_command_line_is_left_to_the_processes_it_starts() -> None:
    code = "import sys, os; sys.orig_argv = {!r}; import sagc_verl.plugin; print(os.environ.get('SAGC_COMMAND'))"
    driver = ["python3", "-m", "verl.trainer.main_ppo", "trainer.experiment_name=a b"]
    found = run_python(code.format(driver))
    assert found.stdout.strip() == "python3 -m verl.trainer.main_ppo 'trainer.experiment_name=a b'"
    assert run_python(code.format(driver), SAGC_COMMAND="the driver's").stdout.strip() == "the driver's"
    assert run_python(code.format(["python3", "-c", "pass"])).stdout.strip() == "None"


def test_the_entry_point_is_installed() -> None:
    found = [entry for entry in entry_points(group="verl.plugins") if entry.name == "sagc"]
    assert [entry.value for entry in found] == ["sagc_verl.plugin"]
