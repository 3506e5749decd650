"""import_log: every step of the logs people have, and never anything but ImportLogError."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sagc_verl import load_run
from sagc_verl.records.errors import ImportLogError, RecordsError
from sagc_verl.records.importlog import import_log, import_rollouts, write_imported_run
from sagc_verl.records.tables import STEPS

SHARED_DATA = Path(os.environ.get("SAGC_SHARED_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
RAY = "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m "


def log(tmp_path, text: str, name: str = "train.log") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def console(step: int, dialect: str = "timing_s", **metrics: float) -> str:
    parts = [f"step:{step}", f"actor/loss:{step / 4:.3f}", f"{dialect}/step:{step * 10:.3f}"]
    return " - ".join(parts + [f"{name}:{value}" for name, value in metrics.items()])


def test_steps_have_the_shape_of_the_steps_table(tmp_path):
    text = "\n".join(
        [
            "+ python3 -m verl.trainer.main_ppo data.train_batch_size=4 actor_rollout_ref.rollout.n=5 trainer.nnodes=1",
            "step:1 - prompt_length/mean:100.0 - response_length/mean:300.0 - perf/total_num_tokens:8000 - "
            "timing_s/step:7.5",
        ]
    )
    frame = import_log(log(tmp_path, text))
    assert list(frame.columns[: len(STEPS)]) == [column.name for column in STEPS]
    assert {c.name: str(frame[c.name].dtype) for c in STEPS} == {column.name: column.dtype for column in STEPS}
    row = frame.iloc[0]
    assert (row["step"], row["attempt"], row["n"], row["rollouts"], row["tokens"]) == (1, 1, 5, 20, 6000)
    assert row["wall_s"] == 7.5 and row["timing_s/step"] == 7.5
    assert frame.attrs["config"]["data.train_batch_size"] == "4"


def test_prefixes_colours_and_progress_bars(tmp_path):
    bar = "Training Progress:   1%|▏         | {}/435 [01:02<3:04:05, 62.1s/it]"
    lines = [
        RAY + bar.format(0) + "\r" + RAY + console(1),
        bar.format(1) + console(2) + bar.format(2),
        "2025-06-18 16:49:37,692 INFO main.py:1 -- " + console(3) + "\x1b[32m [repeated 2x across cluster]\x1b[0m",
        "\x1b[36m(WorkerDict pid=9)\x1b[0m step: loading - model/layers:32",
        RAY + "training/global_step:4 - not/a_step:1",
        console(4) + RAY + console(5),
    ]
    frame = import_log(log(tmp_path, "\n".join(lines)))
    assert frame["step"].tolist() == [1, 2, 3, 4, 5]
    assert frame["actor/loss"].tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert frame["wall_s"].tolist() == [10, 20, 30, 40, 50]
    assert not [name for name in frame.columns if "WorkerDict" in name or "it]" in name]


def test_both_dialects_give_the_same_columns(tmp_path):
    old = console(1, "timing", **{"mfu/actor": 0.2, "Tokens/Sec/GPU": 9.0, "val/test_score/openai/gsm8k": 0.5})
    new = console(1, "timing_s", **{"perf/mfu/actor": 0.2, "perf/throughput": 9.0})
    new += " - val-core/openai/gsm8k/reward/mean@1:np.float64(0.5)"
    pd.testing.assert_frame_equal(
        import_log(log(tmp_path, old)), import_log(log(tmp_path, new, "new.log")), check_flags=False
    )


def test_values_of_every_spelling(tmp_path):
    values = {
        "a/1": "np.float64(0.25)",
        "a/2": "np.int32(-3)",
        "a/3": "1e-06",
        "a/4": "nan",
        "a/5": "-inf",
        "a/6": "True",
    }
    values |= {"a/7": "5", "a/8": ".5", "a/with space": "1.5", "val-core/ds:2wiki/acc/mean@8": "0.75", "a/text": "fast"}
    row = import_log(log(tmp_path, console(3, **values))).iloc[0]
    assert [row[f"a/{number}"] for number in (1, 2, 3, 6, 7, 8)] == [0.25, -3, 1e-6, 1, 5, 0.5]
    assert math.isnan(row["a/4"]) and row["a/5"] == -math.inf
    assert row["a/with space"] == 1.5 and row["val-core/ds:2wiki/acc/mean@8"] == 0.75
    assert "a/text" not in row


def test_a_restart_supersedes_and_its_validation_keeps_the_step_it_resumed_from(tmp_path):
    lines = [console(step) for step in range(1, 6)]
    lines += ["step:3 - val-core/gsm8k/reward/mean@1:0.5"] + [console(step, lr=1.0) for step in (4, 5, 6)]
    frame = import_log(log(tmp_path, "\n".join(lines)))
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["lr"].isna().tolist() == [True, True, True, False, False, False]
    assert frame["val-core/gsm8k/reward/mean@1"].tolist()[2] == 0.5
    assert frame.attrs["superseded"] == 2


def test_a_restart_from_an_earlier_step_drops_what_came_after(tmp_path):
    frame = import_log(log(tmp_path, "\n".join(console(step) for step in (1, 2, 3, 4, 2))))
    assert frame["step"].tolist() == [1, 2] and frame.attrs["superseded"] == 3


def test_the_same_line_twice_is_no_restart(tmp_path):
    frame = import_log(log(tmp_path, "\n".join(console(step) for step in (1, 1, 2, 2, 3, 3))))
    assert frame["step"].tolist() == [1, 2, 3] and frame.attrs["superseded"] == 0


def test_validations_logged_alone(tmp_path):
    score = "val/test_score/gsm8k"
    lines = [f"step:0 - {score}:0.25", console(1), console(2), f"step:3 - {score}:0.75"]
    frame = import_log(log(tmp_path, "\n".join(lines)))
    name = "val-core/gsm8k/reward/mean@1"
    assert frame["step"].tolist() == [1, 2] and frame[name].tolist()[1] == 0.75 and math.isnan(frame[name][0])
    assert frame.attrs["validations"] == {"0": {name: 0.25}}
    only = import_log(log(tmp_path, f"step:0 - {score}:0.25", "only.log"))
    assert only[name].tolist() == [0.25]


def test_the_file_logger(tmp_path):
    lines = [
        json.dumps({"step": s, "data": {"actor/loss": s / 2, "timing/gen": 1, "note": "x", "none": None}})
        for s in (1, 2)
    ]
    frame = import_log(log(tmp_path, "\n".join(lines) + '\n{"step": 3, "da', "run.jsonl"))
    assert frame["actor/loss"].tolist() == [0.5, 1.0] and frame["timing_s/gen"].tolist() == [1, 1]
    assert "note" not in frame and "none" not in frame


def dump(step: int, prompts: int = 2, n: int = 3, uid: bool = True) -> str:
    rows = []
    for prompt in range(prompts):
        for session in range(n):
            row = {"input": f"question {prompt}", "output": "x" * (10 * step + session), "gts": "1", "step": step}
            row |= {"score": float(session == 0)} | ({"uid": f"u-{step}{prompt}_{session}_0"} if uid else {})
            rows.append(json.dumps(row))
    rows.append(
        json.dumps({"input": "", "output": "", "score": 0.0, "step": step, "uid": "padab12_0_0"}) if uid else ""
    )
    return "\n".join(rows)


@pytest.mark.parametrize("uid", [True, False])
def test_rollout_dumps(tmp_path, uid):
    for step in (2, 10, 1):
        log(tmp_path, dump(step, uid=uid), f"{step}.jsonl")
    steps, rollouts = import_log(tmp_path), import_rollouts(tmp_path)
    assert steps["step"].tolist() == [1, 2, 10]
    assert steps["rollouts"].tolist() == [6, 6, 6] and steps["n"].tolist() == [3, 3, 3]
    assert steps["critic/score/mean"].round(3).tolist() == [0.333] * 3
    assert steps["response_chars/max"].tolist() == [12, 22, 102]
    assert rollouts.groupby(["step", "uid"]).size().tolist() == [3] * 6
    assert rollouts["response_chars"].tolist()[:3] == [10, 11, 12] and rollouts["response_tokens"].isna().all()
    assert rollouts["prompt_chars"].eq(len("question 0")).all() and rollouts["n"].eq(3).all()
    assert rollouts["session"].tolist()[:3] == [0, 1, 2] if uid else rollouts["session"].isna().all()
    write_imported_run(steps, tmp_path / "run", rollouts)
    run = load_run(tmp_path / "run")
    pd.testing.assert_frame_equal(run.rollouts, rollouts)
    assert sum(batch.num_rows for batch in run.scan("rollouts", ["response_chars"])) == 18


def test_log_and_dumps_together(tmp_path):
    (tmp_path / "dumps").mkdir()
    for step in (1, 2):
        log(tmp_path / "dumps", dump(step), f"{step}.jsonl")
    paths = [log(tmp_path, "\n".join(console(step) for step in (1, 2, 3))), tmp_path / "dumps"]
    frame = import_log(paths)
    assert frame["step"].tolist() == [1, 2, 3] and frame["actor/loss"].tolist() == [0.25, 0.5, 0.75]
    assert frame["rollouts"].fillna(0).tolist() == [6, 6, 0]


def test_gzip_whole_and_cut_off(tmp_path):
    packed = gzip.compress("\n".join(console(step) for step in range(1, 2001)).encode(), compresslevel=1)
    path = tmp_path / "train.log.gz"
    path.write_bytes(packed)
    assert import_log(path)["step"].tolist() == list(range(1, 2001))
    path.write_bytes(packed[: len(packed) // 2])
    frame = import_log(path)
    steps = frame["step"].tolist()
    assert 100 < len(steps) < 2000 and steps == list(range(1, len(steps) + 1))
    assert len(frame.attrs["warnings"]) == 1 and str(path) in frame.attrs["warnings"][0]


def test_a_folder_of_logs_in_the_order_of_their_names(tmp_path):
    log(tmp_path, console(1) + "\n" + console(2), "part_9.log")
    log(tmp_path, console(2, lr=1.0) + "\n" + console(3), "part_10.log")
    frame = import_log(tmp_path)
    assert frame["step"].tolist() == [1, 2, 3] and frame["lr"].tolist()[1] == 1.0


def test_an_imported_run_opens_as_a_run(tmp_path):
    text = "trainer.total_epochs=2 actor_rollout_ref.rollout.n=4 data.train_files=['a.parquet']\n" + console(1)
    frame = import_log(log(tmp_path, text))
    write_imported_run(frame, tmp_path / "run", name="old run")
    run = load_run(tmp_path / "run")
    pd.testing.assert_frame_equal(run.steps, frame, check_flags=False)
    assert run.name == "old run" and run.warnings == [] and len(run.rollouts) == 0
    assert run.info["config"]["actor_rollout_ref"]["rollout"]["n"] == 4
    assert run.info["imported"]["sources"] == [str(tmp_path / "train.log")]
    with pytest.raises(RecordsError, match="holds records already"):
        write_imported_run(frame, tmp_path / "run")


def test_errors_are_one_line(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, text in (
        (tmp_path / "absent.log", "No such file"),
        (log(tmp_path, "no steps here"), "no training steps"),
        (empty, "no logs in this folder"),
    ):
        with pytest.raises(ImportLogError, match=text) as error:
            import_log(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    with pytest.raises(ImportLogError, match="no rollout dumps"):
        import_rollouts(log(tmp_path, console(1), "train2.log"))


PIECES = """step:|step:1 - |step:7 - a:1| - |:|nan|np.float64(|)|1e999|-|{"step": 1, "data": {|"a": 1}}|}|[[[[[[[[|val|
{"step": 2, "output": "x"|trainer.a=1 |trainer.a.b=2 |step:2 - step:1|99999999999999999999|"uid": "x_1_0", |\r|\x1b[36m|
{"step": 3, "data": {"a": 1e400, "b": -NaN}}|sagc/size:nan - |\x1b]|
"""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.one_of(st.sampled_from(PIECES.split("|")), st.text(max_size=20), st.binary(max_size=20)), max_size=25
    )
)
@example(parts=['{"step": 1, "data": {"a": ' + "9" * 400 + "}}"])
@example(parts=['{"step": 1, "data": {"a": ' + "9" * 5000 + "}}"])
@example(parts=["{" + '"a":[' * 100_000])
@example(parts=["step:1 - sagc/size:1e300 - sagc/tokens:nan - prompt_length/mean:inf - response_length/mean:-inf"])
@example(parts=["step:1 - step:5 - n:3 - time:4"])
@example(parts=["\x1f\x8b", "step:1 - a:1"])
def test_garbage_never_raises_anything_else(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("fuzz") / "x.log"
    path.write_bytes(b"".join(p if isinstance(p, bytes) else p.encode("utf-8", "surrogatepass") for p in parts))
    for read in (import_log, import_rollouts):
        try:
            frame = read(path)
        except ImportLogError as error:
            assert "\n" not in str(error)
        else:
            assert len(frame) and frame["step"].is_monotonic_increasing
            if read is import_log:
                write_imported_run(frame, path.parent / "run")
                pd.testing.assert_frame_equal(load_run(path.parent / "run").steps, frame, check_flags=False)


@pytest.mark.parametrize(
    ("name", "steps", "validations"),
    [("grpo_deepseek7b_gsm8k_n5", 1119, 112), ("gpg_qwen2_7b_gsm8k_math_n5", 210, 42)],
)
def test_real_logs_come_out_whole(tmp_path, name, steps, validations):
    path = SHARED_DATA / "verl_logs" / f"{name}.log.gz"
    if not path.exists():
        pytest.skip("the real logs are not here")
    frame = import_log(path)
    assert frame["step"].tolist() == list(range(1, steps + 1))
    always = ["actor/grad_norm", "critic/score/mean", "response_length/mean", "timing_s/gen", "timing_s/step", "wall_s"]
    assert frame[always].notna().all(axis=None)
    assert frame["rollouts"].eq(5120).all() and frame["n"].eq(5).all() and frame["tokens"].gt(0).all()
    assert frame["val-core/openai/gsm8k/reward/mean@1"].notna().sum() == validations
    assert frame.attrs["superseded"] == 0
    write_imported_run(frame, tmp_path)
    assert len(load_run(tmp_path).steps) == steps
