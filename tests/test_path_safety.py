"""Nothing is written but where it should be, and nothing that is read is run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_runs import write_run

from sagc_verl.records import layout
from sagc_verl.records.importlog import import_log, write_imported_run
from sagc_verl.records.reader import load_run
from sagc_verl.records.writer import RecordWriter
from sagc_verl.report.output import binary_output
from sagc_verl.sweep.plan import planned_runs
from sagc_verl.sweep.spec import SweepError, parse_spec, read_spec, setting_from_flag

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for part in ("sagc_verl", "examples", "scripts") for path in (ROOT / part).rglob("*.py"))
HOSTILE = "../../evil\x1b[31m\r\n<script>"


# ---- nothing that is read is run

RUNS_DATA = {"eval", "exec", "compile", "__import__"}
READS_PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNSAFE_CALLS = {
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "yaml.load_all",
    "torch.load",
    "np.load",
    "numpy.load",
    "pd.read_pickle",
    "pandas.read_pickle",
    "pd.eval",
    "os.system",
    "os.popen",
}
ALLOWED = {
    # The warm interpreter stands in for `python`: to run what it is given is its purpose.
    ("sagc_verl/cpu/warm.py", "exec"),
    ("sagc_verl/cpu/warm.py", "compile"),
    # `--submit TEMPLATE` is the user's own shell command.
    ("sagc_verl/sweep/runner.py", "shell=True"),
}


def unsafe_in(source: str) -> Iterator[str]:
    """What in a module runs data as code, or unpickles it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in READS_PICKLES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in READS_PICKLES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in RUNS_DATA or called in UNSAFE_CALLS:
                yield called
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"{keyword.arg}={ast.unparse(keyword.value)}"


def test_the_check_finds_what_it_looks_for() -> None:
    bad = "import pickle\nfrom dill import loads\neval(x)\nyaml.load(x)\n"
    bad += "np.load(x, allow_pickle=True)\nrun(x, shell=True)"
    assert set(unsafe_in(bad)) == {
        "pickle",
        "dill",
        "eval",
        "yaml.load",
        "np.load",
        "allow_pickle=True",
        "shell=True",
    }
    assert list(unsafe_in("yaml.safe_load(x)\nrun(x, shell=False)\nframe.eval")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_evaluates_or_unpickles_data(path: Path) -> None:
    where = path.relative_to(ROOT).as_posix()
    found = {what for what in unsafe_in(path.read_text(encoding="utf-8")) if (where, what) not in ALLOWED}
    assert found == set()


def test_a_sweep_file_cannot_make_objects(tmp_path: Path) -> None:
    spec = tmp_path / "sweep.yaml"
    spec.write_text(f"script: !!python/object/apply:os.system ['touch {tmp_path}/made']\nout: x\nsettings: {{a: []}}\n")
    with pytest.raises(SweepError, match="not YAML"):
        read_spec(spec)
    assert not (tmp_path / "made").exists()


# ---- names that become folders


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "../x",
        "a/b",
        "a/../../b",
        "/tmp/x",
        ".hidden",
        "-x",
        "",
        " ",
        "a b",
        "a\n",
        "\x1b[31m",
        "a\x00",
        "a\\b",
    ],
)
def test_a_setting_of_a_sweep_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.sh"
    script.write_text("")
    with pytest.raises(SweepError) as error:
        parse_spec({"script": str(script), "out": str(tmp_path / "out"), "seeds": [1], "settings": {name: []}})
    assert "a name may hold" in str(error.value)


def test_every_run_of_a_sweep_lies_in_its_folder(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("")
    name, body = setting_from_flag("a..b:x.y=../../z,sizes=[4,8]")
    spec = parse_spec({"script": str(script), "out": str(tmp_path / "out"), "seeds": [1, 2], "settings": {name: body}})
    runs = planned_runs(spec, {})
    assert len(runs) == 4
    for run in runs:
        assert run.directory.resolve().parent == (tmp_path / "out").resolve()


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_names_in_the_data_never_become_names_of_files(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "run"
    records = RecordWriter(place / "sagc", {"name": HOSTILE, "config": {HOSTILE: HOSTILE}})
    rows = {"uid": [HOSTILE] * 2, "data_source": HOSTILE, "prompt_index": HOSTILE, "worker": HOSTILE, "cause": HOSTILE}
    records.write_step(1, rows, {"uid": [HOSTILE]}, {"n": 2, HOSTILE: 1.0, "reason": HOSTILE})
    records.close()
    assert records.faults == 0
    name = layout.file_name(1, 1, 1)
    assert files_in(tmp_path) == {
        f"a/b/run/sagc/{path}" for path in ("run.json", f"rollouts/{name}", f"groups/{name}", f"steps/{name}")
    }
    assert load_run(place).name == HOSTILE  # kept as it is, and shown with care


def test_the_name_of_an_imported_run_stays_a_name(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step:1 - critic/score/mean:0.5 - timing_s/step:2.0\n")
    out = tmp_path / "a" / "b"
    write_imported_run(import_log(log), out, name=HOSTILE)
    assert {path for path in files_in(tmp_path) if not path.startswith("a/b/sagc/")} == {"train.log"}
    assert json.loads((out / "sagc" / "run.json").read_text())["name"] == HOSTILE


# ---- --out


def test_out_is_written_where_it_points_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    with binary_output(tmp_path / "inside" / ".." / "file") as file:
        file.write(b"x")
    assert files_in(tmp_path) == {"file"}


def test_out_does_not_follow_a_link_that_lies_there(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "report.html").symlink_to(precious)
    with binary_output(tmp_path / "report.html") as file:
        file.write(b"new")
    assert precious.read_text() == "kept"
    assert (tmp_path / "report.html").read_text() == "new" and not (tmp_path / "report.html").is_symlink()


@pytest.mark.parametrize("out", ["", "no/such/folder/file.csv", "a\x00b.csv", "x" * 300 + ".csv", "folder.csv"])
def test_an_out_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, out: str) -> None:
    run = write_run(tmp_path / "run", sizes=(4,), steps=2, prompts=2)
    (tmp_path / "folder.csv").mkdir()
    before = files_in(tmp_path)
    code = f"import sys; from sagc_verl.cli import main; sys.argv[1:] = {['export', str(run), '--out', out]!r}; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("sagc-verl: ") and done.stderr.count("\n") == 1
    assert files_in(tmp_path) == before


# ---- hostile names in what is shown


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every text is hostile, in a folder of such a name."""
    run = tmp_path_factory.mktemp("runs") / "evil\x1b[31m<script>\n"
    records = RecordWriter(run / "sagc", {"name": HOSTILE, "config": {"sagc": {"policy": HOSTILE}, HOSTILE: HOSTILE}})
    for step in range(1, 4):
        rows = {
            "uid": [HOSTILE] * 4,
            "data_source": HOSTILE,
            "prompt_index": HOSTILE,
            "response_tokens": [1, 2, 3, 400],
            "start_s": [0.0] * 4,
            "end_s": [1.0, 2.0, 3.0, 4.0],
            "reward": [0.0, 1.0, 0.0, 1.0],
            "exceeds": [False, False, False, True],
            "cause": HOSTILE,
            "worker": HOSTILE,
        }
        groups = {"uid": [HOSTILE], "data_source": HOSTILE, "prompt_index": HOSTILE, "straggler": True, "n": 4}
        row = {"n": 4, "next_n": 4, "reason": HOSTILE, f"val-core/{HOSTILE}": 0.5, f"timing_s/{HOSTILE}": 1.0}
        records.write_step(step, rows, groups, row | {"wall_s": 1.0, "critic/score/mean": 0.5})
    records.close()
    assert records.faults == 0
    return run


@pytest.mark.parametrize("command", [["summary"], ["compare"], ["compare", "--html", "-"], ["trace", "--out", "-"]])
def test_no_text_from_a_run_drives_the_terminal_or_injects_html(hostile: Path, command: list[str]) -> None:
    name, *options = command
    code = f"import sys; from sagc_verl.cli import main; sys.argv[1:] = {[name, str(hostile), *options]!r}; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = done.stdout.partition("</main>")[0]  # a report's drawing library comes after it
    assert not set(ours + done.stderr) & {"\x1b", "\r"}
    if "--html" in options:
        assert ours.count("evil") and not ours.count("<script")
