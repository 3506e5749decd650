"""Running a sweep with a stand-in for the training script: no veRL, no GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from sagc_verl.sweep import launch, runner, state
from sagc_verl.sweep.plan import planned_runs
from sagc_verl.sweep.spec import SweepError, parse_spec

REPOSITORY = Path(__file__).resolve().parent.parent

# Notes its arguments; fails, or hangs with a child of its own, where the test asks for it.
TRAIN = """\
set -euo pipefail
for word in "$@"; do
    case "$word" in
        trainer.default_local_dir=*) dir=${word#*=} ;;
        trainer.experiment_name=*) name=${word#*=} ;;
    esac
done
echo "$name seed=$SEED $*" >> "$CALLS"
echo "step:3 - actor/loss:0.1"
if [ -f "$SWITCH/fail_$name" ]; then echo "out of memory"; exit 7; fi
if [ -f "$SWITCH/hang_$name" ]; then
    bash -c 'echo $$ > "$SWITCH/child"; exec sleep 600'
fi
echo done > "$dir/trained"
"""


class Bench:
    """A sweep in a temporary folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls_file = folder / "calls"
        (folder / "train.sh").write_text(TRAIN)
        monkeypatch.setenv("CALLS", str(self.calls_file))
        monkeypatch.setenv("SWITCH", str(folder))
        self.said: list[str] = []
        self.raw = {
            "cwd": str(folder),
            "script": "train.sh",
            "out": "sweep",
            "seeds": [1, 2],
            "settings": {"static": {"sizes": [4]}, "sagc": ["trainer.v1.trainer_mode=sagc"]},
        }

    @property
    def spec(self):
        return parse_spec(self.raw)

    def run(self, only: tuple[str, ...] = (), retry: bool = False) -> runner.Progress:
        return runner.run_here(self.spec, only, retry, self.said.append)

    def calls(self) -> list[str]:
        return (
            [line.split()[0] for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []
        )

    def statuses(self) -> dict[str, str]:
        return {run.name: found.status for run, found in runner.progress_of(self.spec).runs}

    def switch(self, name: str) -> Path:
        path = self.folder / name
        path.touch()
        return path

    def spec_file(self) -> Path:
        path = self.folder / "sweep_spec.yaml"
        path.write_text(yaml.safe_dump(self.raw, sort_keys=False))
        return path

    def command(self, *words: str) -> list[str]:
        code = "from sagc_verl.cli import main; main()"
        return [sys.executable, "-c", code, "sweep", str(self.spec_file()), *words]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return Bench(tmp_path, monkeypatch)


def test_runs_everything_once_and_then_nothing(bench: Bench) -> None:
    progress = bench.run()
    assert progress.complete()
    assert bench.calls() == ["static_4_s1", "sagc_s1", "static_4_s2", "sagc_s2"]
    assert (bench.folder / "sweep" / "sagc_s2" / "trained").is_file()
    bench.run()
    assert len(bench.calls()) == 4


def test_a_failing_run_stops_no_other_and_waits_for_retry(bench: Bench) -> None:
    fail = bench.switch("fail_sagc_s1")
    progress = bench.run()
    assert not progress.complete()
    assert bench.statuses() == {
        "static_4_s1": "finished",
        "sagc_s1": "failed",
        "static_4_s2": "finished",
        "sagc_s2": "finished",
    }
    assert any("exit code 7" in line for line in bench.said)
    assert any("out of memory" in line for line in bench.said)
    bench.run()
    assert bench.calls().count("sagc_s1") == 1
    fail.unlink()
    assert bench.run(retry=True).complete()
    assert bench.calls().count("sagc_s1") == 2
    log = (bench.folder / "sweep" / "sagc_s1" / "train.log").read_text()
    assert log.count("step:3") == 2


def test_one_run_by_name(bench: Bench) -> None:
    bench.run(only=("sagc_s2",))
    assert bench.calls() == ["sagc_s2"]
    with pytest.raises(SweepError, match="--only sagc_s9: no such run; there are sagc_s1"):
        bench.run(only=("sagc_s9",))


def test_a_run_held_by_another_process_is_left_alone(bench: Bench) -> None:
    held = planned_runs(bench.spec, {})[0]
    with state.run_lock(held) as mine:
        assert mine
        bench.run()
    assert held.name not in bench.calls()
    assert any("another process is running it" in line for line in bench.said)


def test_a_run_whose_process_died_counts_as_interrupted(bench: Bench) -> None:
    run = planned_runs(bench.spec, {})[0]
    state.write_state(run, state.started(run, state.RunState()))
    assert state.read_state(run).status == "interrupted"
    bench.run()
    assert state.read_state(run).attempts == 2


def test_a_damaged_state_is_named(bench: Bench) -> None:
    run = planned_runs(bench.spec, {})[0]
    run.directory.mkdir(parents=True)
    (run.directory / state.STATE_FILE).write_text("{")
    with pytest.raises(SweepError, match="damaged; remove it"):
        bench.run()


def test_a_changed_sweep_says_which_runs_are_old(bench: Bench) -> None:
    bench.run()
    bench.raw["overrides"] = ["trainer.total_training_steps=9"]
    changed = runner.changed_runs(runner.progress_of(bench.spec))
    assert len(changed) == 4


def test_what_ignores_an_interrupt_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = f"trap '' INT TERM; sleep 600 & echo $! > {ready}; wait"
    child = subprocess.Popen(["bash", "-c", stubborn], start_new_session=True)
    until(lambda: ready.exists() and ready.read_text().strip() != "")
    launch.end_group(child, ((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1), (signal.SIGKILL, 5.0)))
    assert child.returncode == -signal.SIGKILL
    until(lambda: not alive(int(ready.read_text())))


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_whole_group_and_can_be_resumed(bench: Bench, what: signal.Signals) -> None:
    hang = bench.switch("hang_sagc_s1")
    child_file = bench.folder / "child"
    sweep = subprocess.Popen(bench.command(), stderr=subprocess.PIPE, text=True)
    until(lambda: child_file.exists() and child_file.read_text().strip() != "")
    sweep.send_signal(what)
    _, told = sweep.communicate(timeout=30)
    assert sweep.returncode == 130, told
    until(lambda: not alive(int(child_file.read_text())))
    assert bench.statuses()["sagc_s1"] == "interrupted"
    assert "interrupted, call again" in told
    hang.unlink()
    done = subprocess.run(bench.command(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "attempt 2, from the last checkpoint" in done.stderr
    assert bench.calls().count("static_4_s1") == 1


def test_exit_codes_and_the_dry_run(bench: Bench) -> None:
    shown = subprocess.run(bench.command("--dry-run"), capture_output=True, text=True)
    assert shown.returncode == 0
    assert "static_4_s1  (pending)" in shown.stdout and "4 runs in" in shown.stdout
    assert not (bench.folder / "sweep").exists() and bench.calls() == []
    bench.switch("fail_sagc_s1")
    failed = subprocess.run(bench.command("--seeds", "1"), capture_output=True, text=True)
    assert failed.returncode == 1
    assert "sagc_s1: failed, exit code 7; --retry runs it again" in failed.stderr
    wrong = subprocess.run(bench.command("--seeds", "x"), capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.strip() == "sagc-verl: --seeds x: must be whole numbers, e.g. 1,2,3"


def test_print_and_submit_give_jobs_that_run(bench: Bench) -> None:
    printed = subprocess.run(bench.command("--print"), capture_output=True, text=True)
    (spec_file,) = (bench.folder / "sweep").glob("sweep_*.yaml")
    assert printed.stdout.splitlines()[0] == f"sagc-verl sweep {spec_file} --only static_4_s1"
    bench.said.clear()
    runner.submit(bench.spec, "echo {name} >> queue; echo job 17 {cmd}", (), False, bench.said.append)
    assert (bench.folder / "queue").read_text().split() == ["static_4_s1", "sagc_s1", "static_4_s2", "sagc_s2"]
    assert bench.said[0].startswith("static_4_s1: submitted: job 17 sagc-verl sweep ")
    assert set(bench.statuses().values()) == {"submitted"}
    runner.submit(bench.spec, "echo {name} >> queue; echo {cmd}", (), False, bench.said.append)
    assert len((bench.folder / "queue").read_text().split()) == 4, "nothing is submitted twice"
    job = [*bench.command()[:4], str(spec_file), "--only", "sagc_s2"]
    done = subprocess.run(job, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bench.statuses()["sagc_s2"] == "finished"


def test_a_failing_submission_stops_and_says_so(bench: Bench) -> None:
    with pytest.raises(SweepError, match="static_4_s1: submitting failed with exit code 3: no such queue"):
        runner.submit(bench.spec, "echo no such queue {cmd} >&2; exit 3", (), False, bench.said.append)
    with pytest.raises(SweepError, match=r"must hold \{cmd\}"):
        runner.submit(bench.spec, "sbatch job.sh", (), False, bench.said.append)


def write_records(directory: Path, sizes: list[int]) -> None:
    """The records of a run that played these sizes."""
    writer = pytest.importorskip("sagc_verl.records.writer").RecordWriter(directory / "sagc", {"name": directory.name})
    for step, n in enumerate(sizes, 1):
        writer.write_step(step, {}, {}, {"step": step, "n": n})
    writer.close()


def test_static_sizes_around_the_mean_follow_when_sagc_has_finished(bench: Bench) -> None:
    pytest.importorskip("pandas")
    bench.raw["settings"]["mean"] = {"around": "sagc"}
    for seed, sizes in ((1, [8, 6, 4]), (2, [8, 6, 6])):
        write_records(bench.folder / "sweep" / f"sagc_s{seed}", sizes)
    progress = bench.run()
    assert progress.complete()
    assert bench.calls()[4:] == ["mean_6_s1", "mean_7_s1", "mean_6_s2", "mean_7_s2"]
    assert json.loads((bench.folder / "sweep" / "sweep_means.json").read_text()) == {"sagc": pytest.approx(19 / 3)}


def test_sizes_around_a_mean_wait_for_every_seed(bench: Bench) -> None:
    bench.raw["settings"]["mean"] = {"around": "sagc"}
    bench.switch("fail_sagc_s2")
    progress = bench.run()
    assert [setting.name for setting in progress.waiting] == ["mean"]
    assert not progress.complete()


def test_sizes_around_a_mean_need_records(bench: Bench) -> None:
    pytest.importorskip("pandas")
    bench.raw["settings"]["mean"] = {"around": "sagc"}
    with pytest.raises(SweepError, match="sagc_s1: cannot read the group sizes it played"):
        bench.run()


def test_a_run_from_outside_counts_as_finished_by_its_records(bench: Bench) -> None:
    pytest.importorskip("pandas")
    bench.raw["overrides"] = ["trainer.total_training_steps=3"]
    write_records(bench.folder / "sweep" / "sagc_s1", [8, 8, 8])
    write_records(bench.folder / "sweep" / "sagc_s2", [8, 8])
    assert bench.statuses()["sagc_s1"] == "finished"
    assert bench.statuses()["sagc_s2"] == "pending"


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
