"""`sagc-verl replay` and `sagc-verl tune` as users type them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sagc_verl.cli import app

DATA = Path(os.environ.get("SAGC_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
SHORT = ["--steps", "30", "--prompts", "16"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        app(list(arguments), prog_name="sagc-verl")
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_replay_shows_every_line(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "replay", "runaways", "--sizes", "4,8,16", "--slots", "16", *SHORT)
    assert (code, err) == (0, "")
    for line in ("sagc", "static 16", "static 4", "oracle", "static 16 + dynamic", "first 13 of 16", "longest first"):
        assert line in out
    assert "set by hand: slots=16" in out
    assert "groups of any n from the stated law" in out


def test_replay_json_is_reproducible(capsys: pytest.CaptureFixture[str]):
    arguments = ("replay", "drift", "--json", "--no-baselines", "--seed", "7", *SHORT)
    _, first, _ = run(capsys, *arguments)
    _, second, _ = run(capsys, *arguments)
    assert first == second
    assert json.loads(first)["lines"][0]["name"] == "sagc"


@pytest.mark.parametrize("ending", ["html", "png"])
def test_plots(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str):
    if ending != "html":
        pytest.importorskip("matplotlib")
    for command in (
        ("replay", "shift", "--no-baselines"),
        ("tune", "shift", "--thresholds", "2.5", "--budgets", "0.2"),
    ):
        path = tmp_path / f"{command[0]}.{ending}"
        code, _, err = run(capsys, *command, "--plot", str(path), *SHORT)
        assert code == 0, err
        assert path.stat().st_size > 5000


def test_tune_ends_with_a_line_to_paste(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(
        capsys, "tune", "runaways", "--thresholds", "2.5", "--budgets", "0.2", "--sizes", "4,8", "--n", "8", *SHORT
    )
    assert code == 0
    assert out.splitlines()[-2] == "Paste:"
    assert "actor_rollout_ref.rollout.n=8" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "nothing.csv"), "nothing.csv: no such file or run"),
        (("replay", "runaways", "--budget", "2"), "sagc.budget=2.0: must be"),
        (("replay", "runaways", "--sizes", "1,4"), "sagc.sizes="),
        (("replay", "runaways", "--sizes", "a"), "--sizes a: must be numbers"),
        (("replay", "runaways", "--set", "gama=.9"), "did you mean sagc.gamma?"),
        (("replay", "runaways", "--set", "gamma"), "--set gamma: must be key=value"),
        (("replay", "runaways", "--plot", "x.gif"), "--plot x.gif: must end in .html, .png"),
        (("replay", "runaways", "--steps", "0"), "steps=0: must be at least 1"),
        (("replay", "runaways", "--engines", "0"), "engines=0"),
        (("tune", "runaways", "--budgets", "0.1,7"), "sagc.budget=7.0: must be"),
        (("tune", "runaways", "--utility", "joy"), "--utility joy: must be one of log"),
    ],
)
def test_wrong_requests_get_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_importing_the_commands_is_cheap():
    check = (
        "import sys, sagc_verl.cli.replay, sagc_verl.cli.tune; "
        "sys.exit(bool({'pandas', 'pyarrow', 'plotly', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_real_tables_and_a_log(capsys: pytest.CaptureFixture[str]):
    tables = sorted((DATA / "lengths").glob("rg_llama3b_*.csv.gz"))
    log = DATA / "verl_logs" / "grpo_deepseek7b_gsm8k_n5.log.gz"
    if len(tables) < 2 or not log.is_file():
        pytest.skip("the shared data is not here")
    code, out, _ = run(
        capsys, "replay", str(tables[0]), "--then", str(tables[1]), "--at", "15", "--n", "8", "--json", *SHORT
    )
    assert code == 0
    assert all(line["modelled_share"] == 0 for line in json.loads(out)["lines"])
    code, out, _ = run(capsys, "replay", str(log), "--n", "5", "--no-baselines", "--steps", "20")
    assert code == 0
    assert "all groups from a fitted law" in out
    assert "held-back steps" in out
