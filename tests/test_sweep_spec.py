"""What a sweep says, and the runs that follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagc_verl.sweep.plan import planned_runs, sizes_around, waiting_settings
from sagc_verl.sweep.spec import SweepError, SweepSpec, parse_spec, read_spec, setting_from_flag, spec_data

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def raw(tmp_path: Path) -> dict:
    (tmp_path / "train.sh").write_text("exit 0\n")
    return {
        "cwd": str(tmp_path),
        "script": "train.sh",
        "out": "sweep",
        "seeds": [1, 2],
        "overrides": ["trainer.total_training_steps=5"],
        "env": {"TRAIN_BATCH_SIZE": 64},
        "settings": {
            "static": {"sizes": [4, 8]},
            "sagc": ["trainer.v1.trainer_mode=sagc", "++sagc.sizes=[4,8]"],
            "mean": {"around": "sagc"},
        },
    }


def names(spec: SweepSpec, **means: float) -> list[str]:
    return [run.name for run in planned_runs(spec, means)]


def test_runs_come_seed_by_seed_and_sizes_around_a_mean_last(raw: dict) -> None:
    spec = parse_spec(raw)
    first = ["static_4_s1", "static_8_s1", "sagc_s1", "static_4_s2", "static_8_s2", "sagc_s2"]
    assert names(spec) == first
    assert [setting.name for setting in waiting_settings(spec, {})] == ["mean"]
    assert names(spec, sagc=5.5) == [*first, "mean_5_s1", "mean_6_s1", "mean_5_s2", "mean_6_s2"]


def test_a_size_that_is_in_the_list_already_is_trained_once(raw: dict) -> None:
    assert names(parse_spec(raw), sagc=4.2)[6:] == ["mean_5_s1", "mean_5_s2"]
    raw["settings"]["mean"] = {"around": "sagc", "overrides": ["data.train_batch_size=32"]}
    assert "mean_4_s1" in names(parse_spec(raw), sagc=4.2)


@pytest.mark.parametrize(
    ("mean", "sizes"), [(5.5, (5, 6)), (8.0, (8,)), (7.999999999999, (8,)), (1.5, (2,)), (2.5, (2, 3))]
)
def test_whole_sizes_around_a_mean(mean: float, sizes: tuple[int, ...]) -> None:
    assert sizes_around(mean) == sizes


def test_the_command_of_a_run(raw: dict, tmp_path: Path) -> None:
    raw["settings"]["static"]["overrides"] = ["data.train_batch_size=32"]
    run = planned_runs(parse_spec(raw), {})[0]
    assert run.argv == (
        "bash",
        str(tmp_path / "train.sh"),
        "trainer.total_training_steps=5",
        "trainer.v1.trainer_mode=sagc",
        "++sagc.policy=static",
        "actor_rollout_ref.rollout.n=4",
        "data.train_batch_size=32",
        "data.seed=1",
        "actor_rollout_ref.rollout.seed=1",
        "trainer.experiment_name=static_4_s1",
        f"trainer.default_local_dir={tmp_path}/sweep/static_4_s1",
    )
    assert run.env == {"TRAIN_BATCH_SIZE": "64", "SEED": "1"}
    assert run.directory == tmp_path / "sweep" / "static_4_s1"
    assert run.shell_line().startswith("env TRAIN_BATCH_SIZE=64 SEED=1 bash ")


def test_a_path_that_hydra_would_misread_is_quoted(raw: dict) -> None:
    raw["out"] = "a (b)"
    run = planned_runs(parse_spec(raw), {})[0]
    assert run.argv[-1].startswith("trainer.default_local_dir='/")


def test_what_is_written_is_read_back(raw: dict, tmp_path: Path) -> None:
    import yaml

    raw["settings"]["other"] = {"script": "train.sh", "env": {"A": "1"}, "overrides": ["x.y={seed}"]}
    spec = parse_spec(raw)
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec_data(spec)))
    again = read_spec(file)
    assert {setting.name: setting for setting in again.settings} == {setting.name: setting for setting in spec.settings}
    assert again.out == spec.out and again.seeds == spec.seeds and again.env == spec.env


def test_settings_from_the_command_line() -> None:
    assert setting_from_flag("sagc:++sagc.sizes=[4,8],a.b='x,y'") == (
        "sagc",
        {"overrides": ["++sagc.sizes=[4,8]", "a.b='x,y'"]},
    )
    assert setting_from_flag("static:sizes=[4,8]") == ("static", {"overrides": [], "sizes": [4, 8]})
    assert setting_from_flag("mean:around=sagc") == ("mean", {"overrides": [], "around": "sagc"})
    assert setting_from_flag("plain") == ("plain", {"overrides": []})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"script": "no.sh"}, "script=no.sh: no such file"),
        ({"seeds": []}, "seeds=[]: must be a list"),
        ({"seeds": [1, 1]}, "one is there twice"),
        ({"seeds": [-1]}, "-1 must be a whole number of at least 0"),
        ({"colour": 1}, "colour: not known; legal are script, out"),
        ({"settings": {}}, "settings: missing"),
        ({"settings": {"a/b": []}}, "settings.a/b: a name may hold"),
        ({"settings": {"a": {"sizes": [1]}}}, "settings.a.sizes=[1]: 1 must be a whole number of at least 2"),
        ({"settings": {"a": {"size": [4]}}}, "settings.a.size: not known"),
        ({"settings": {"a": {"around": "b"}}}, "must name another setting"),
        ({"settings": {"a": {"around": "a"}}}, "must name another setting"),
        ({"settings": {"a": [], "b": {"around": "a"}, "c": {"around": "b"}}}, "waits for a mean itself"),
        ({"settings": {"a": ["trainer.nnodes"]}}, "'trainer.nnodes' is not key=value"),
        ({"settings": {"a": {"sizes": [4], "around": "a"}}}, "exclude each other"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(raw: dict, change: dict, message: str) -> None:
    with pytest.raises(SweepError) as caught:
        parse_spec({**raw, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_runs_of_one_name_are_refused(raw: dict) -> None:
    raw["settings"]["static_4"] = []
    with pytest.raises(SweepError, match="two runs would be called static_4_s1"):
        planned_runs(parse_spec(raw), {})


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/sweep*.yaml")), ids=lambda file: file.name)
def test_the_example_sweeps_are_sweeps(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    spec = read_spec(file)
    runs = planned_runs(spec, {"sagc": 6.4})
    assert {"vanilla", "engineered", "sagc"} <= {run.setting for run in runs}
    assert any(run.setting.startswith("static_mean") for run in runs)
