from __future__ import annotations

from typing import Any

from report_runs import config

from sagc_verl.report.settings import differences, read_settings

HOST = {"cpu": "x86", "cpus": 8, "gpus": ["H100", "H100"], "name": "node7"}


def settings(host: dict[str, Any] | None = None, **changes: Any):
    return read_settings({"config": config(**changes), "host": host or HOST, "sizes": [8, 4]})


def kinds(*changed: Any) -> set[str]:
    return {difference.kind for difference in differences([settings(), *changed])}


def test_facts_of_a_run() -> None:
    found = settings()
    assert (found.policy, found.budget, found.threshold, found.rollout_n) == ("sagc", 0.2, 2.5, 8)
    assert found.sizes == (4, 8)
    assert found.model == "models/tiny"
    assert found.hardware == "2 x H100, 8 cores of x86"
    assert found.seed_text == "1"


def test_a_key_left_out_has_the_controllers_default() -> None:
    bare = config()
    del bare["sagc"]
    found = read_settings({"config": bare, "host": HOST})
    assert (found.policy, found.budget, found.threshold) == ("sagc", 0.2, 2.5)
    assert not [one for one in differences([settings(sagc__sizes=None), found]) if one.kind == "straggler event"]


def test_a_budget_that_was_not_given_is_that_of_the_constraint() -> None:
    assert (settings().constraint, settings(sagc__budget=None).budget) == ("straggler", 0.2)
    waiting = settings(sagc__constraint="waiting", sagc__budget=None)
    assert (waiting.constraint, waiting.budget) == ("waiting", 0.4)
    assert settings(sagc__budget=None).group_key == settings().group_key != waiting.group_key


def test_what_makes_runs_incomparable_is_named() -> None:
    assert kinds(settings(data__train_files="other.parquet")) == {"data"}
    assert kinds(settings(actor_rollout_ref__model__path="other")) == {"model"}
    assert kinds(settings(data__seed=2)) == {"seed"}
    assert kinds(settings(data__train_batch_size=4)) == {"batch"}
    assert kinds(settings(sagc__poll_interval=0.1)) == {"poll interval"}
    assert kinds(settings(trainer__total_training_steps=9)) == {"steps"}
    assert kinds(settings(sagc__threshold=3.0)) == {"straggler event"}
    assert kinds(settings(host={"cpu": "arm", "cpus": 8})) == {"hardware"}


def test_what_is_compared_is_no_difference() -> None:
    assert kinds(settings(sagc__policy="static", actor_rollout_ref__rollout__n=4, sagc__budget=0.1)) == set()
    assert kinds(settings(trainer__experiment_name="b", trainer__default_local_dir="/elsewhere")) == set()
    assert kinds(settings(host={**HOST, "name": "node8"})) == set()


def test_any_other_key_is_listed() -> None:
    found = differences([settings(), settings(actor_rollout_ref__actor__clip_ratio_high=0.28)])
    assert [(one.kind, one.key) for one in found] == [("", "actor_rollout_ref.actor.clip_ratio_high")]
    assert found[0].values == ("null", "0.28")


def test_what_a_log_does_not_show_is_unknown_rather_than_different() -> None:
    log = read_settings({"imported": {"sources": ["a.log"]}, "config": {"data": {"train_batch_size": 8}}})
    assert log.imported
    assert log.policy is None
    assert differences([settings(), log]) == []
    other = read_settings({"imported": {"sources": ["b.log"]}, "config": {"data": {"train_batch_size": 1024}}})
    assert kinds(other) == {"batch"}


def test_runs_that_differ_in_nothing_but_the_seed_are_one_setting() -> None:
    assert settings().group_key == settings(data__seed=7, trainer__experiment_name="again").group_key
    assert settings().group_key != settings(sagc__budget=0.1).group_key
    assert settings().group_key != settings(sagc__policy="static").group_key
    assert read_settings({}).group_key is None


def test_a_runs_own_name_and_folder_in_other_values_are_no_difference() -> None:
    """As veRL interpolates them: `rollout.trace.experiment_name`, `actor.rollout_n`, and as users do."""

    def run(name: str, n: int = 8):
        return settings(
            trainer__experiment_name=name,
            trainer__default_local_dir=f"/out/{name}",
            actor_rollout_ref__rollout__trace__experiment_name=name,
            actor_rollout_ref__actor__rollout_n=n,
            actor_rollout_ref__rollout__n=n,
            trainer__notes=f"/out/{name}/notes.txt",
        )

    assert run("a_s1").group_key == run("a_s2").group_key
    assert differences([run("a_s1"), run("b", n=4)]) == []
    assert differences([run("grpo"), run("ppo")]) == []  # names that are values elsewhere too


def test_the_seeds_that_stand_out_are_told() -> None:
    found = settings(data__seed=None, actor_rollout_ref__actor__data_loader_seed=42, critic__data_loader_seed=42)
    assert found.seed_text == "42"
    mixed = settings(data__seed=1, actor_rollout_ref__actor__data_loader_seed=42, critic__data_loader_seed=43)
    assert mixed.seed_text.startswith("1, ")


def test_text_from_data_cannot_drive_the_terminal() -> None:
    found = settings(actor_rollout_ref__model__path="evil\x1b[2J\nmodel")
    assert found.model == "evil?[2J?model"
