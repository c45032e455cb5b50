"""Capture of trackio with the real package: what a program logs to it arrives as rows, rollouts and config."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.emit.config.capture_env import capture_variables
from otel_bridge.journal.folder import run_folders
from support.trackers import trackio_store
from support.trainers.command_runs import (
    PYTHON,
    call,
    ended,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    runs,
    statuses,
    values,
)
from support.trainers.command_runs import environment as plain_environment

pytestmark = pytest.mark.slow

OFFLINE = {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "0"}

EVERY_CALL = """
import threading
import numpy as np
import trackio as wandb
config = {"lr": 0.1, "model": {"layers": 2}}
run = wandb.init(project="grpo", name="one", group="seeds", space_id="me/space", config=config)
assert isinstance(run, wandb.Run), type(run)
assert wandb.context_vars.current_run.get() is run
assert wandb.context_vars.current_project.get() == "grpo"
assert wandb.context_vars.current_space_id.get() is None
assert (run.project, run.name, run.group, len(run.id)) == ("grpo", "one", "seeds", 16)
wandb.config.update({"batch": 8}, allow_val_change=True)
wandb.config["seed"] = np.int64(3)
assert "allow_val_change" not in wandb.config
wandb.log({"loss": 1.0})
wandb.log({"loss": np.float32(0.5)})
wandb.log({"loss": 0.25, "time": {"gen": 2}}, step=7)
run.log({"loss": 0.125})
wandb.log({"loss": 9.0}, step=3)
wandb.log({"loss": 10.0})
wandb.log_system({"gpu": 1})
wandb.freeze(space_id="me/space")
wandb.finish()
assert wandb.context_vars.current_run.get() is None
assert [one.name for one in threading.enumerate()] == ["MainThread"], threading.enumerate()
print(wandb.__version__)
"""

# The calls that verl's Tracking, ValidationGenerationsLogger and rollout_trace_op make with the backend trackio.
VERL = """
import trackio
from trackio import Trace

def pair(prompt, answer, **metadata):
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return Trace(messages=messages, metadata=metadata)

trackio.init(project="p", name="e", config={"trainer": {"n_gpus": 8}})
trackio.log({"actor/loss": 0.5}, step=1)
for n in range(4):
    trackio.log({"rollout/trace": pair("q%d" % n, "a%d" % n, reward=n / 4, step=1, sample_index=n)}, step=1)
trackio.log({"actor/loss": 0.25}, step=2)
trackio.log({"val/generations": [pair("2+2?", "4", score=1.0)]}, step=2)
if trackio.context_vars.current_run.get() is not None:
    trackio.finish()
"""


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """An environment in which Trackio would write below *folder*, and reaches no server."""
    return plain_environment(
        folder, TRACKIO_DIR=str(folder / "store"), **OFFLINE, **variables
    )


def captured(
    folder: Path,
    code: str,
    exporters: str = "file",
    names: str = "trackio",
    **variables: str,
) -> str:
    """Run *code* under ``otel-bridge run --capture``; returns what it printed on both streams."""
    command = [
        "run",
        "--exporters",
        exporters,
        "--capture",
        names,
        "--",
        "python",
        program(folder, "train.py", code),
    ]
    done = otel_bridge(*command, cwd=folder, env=environment(folder, **variables))
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def config_of(folder: Path) -> dict[str, Any]:
    """The config that ``file`` wrote."""
    found: dict[str, Any] = {}
    for record in records(only_folder(runs(folder))):
        found |= record.get("config", {}) if record["kind"] == "config" else {}
    return found


def stored(folder: Path) -> list[str]:
    """The files of Trackio's store."""
    return sorted(path.name for path in (folder / "store").rglob("*") if path.is_file())


def test_every_call_arrives_with_trackios_steps_and_nothing_lands_in_its_store(
    tmp_path: Path,
) -> None:
    output = captured(tmp_path, EVERY_CALL)

    folder = only_folder(runs(tmp_path))
    assert values(folder) == {
        "loss": [(0, 1.0), (1, 0.5), (7, 0.25), (8, 0.125), (3, 9.0), (9, 10.0)],
        "time/gen": [(7, 2)],
    }
    assert {"lr": 0.1, "batch": 8, "seed": 3}.items() <= config_of(tmp_path).items()
    assert (statuses(folder), report_of(runs(tmp_path)).name) == (["finished"], "one")
    assert stored(tmp_path) == []
    assert "Trackio project initialized" not in output


def test_calls_of_tools_in_verls_loops_are_spans_of_their_rollout_and_the_sample_is_its_group(
    tmp_path: Path,
) -> None:
    code = """
import trackio

def trace(op, sample, number, inputs, output, messages=()):
    metadata = {"op": op, "backend": "trackio", "experiment_name": "e", "inputs": inputs, "sample_index": sample,
                "step": 1, "rollout_n": number, "validate": False, "status": "success", "output": output}
    messages = [*messages, {"role": "assistant", "content": "done"}]
    trackio.log({"rollout_trace/" + op: trackio.Trace(messages=messages, metadata=metadata)}, step=1)

trackio.init(project="p", name="e")
for sample in (7, 8):
    for number in (0, 1):
        trace("Search.execute", sample, number, {"parameters": {"q": "x"}}, [{"text": "found"}, 0.0, {}])
        trace("Client.generate", sample, number, {"prompt_ids": [1]}, {"token_ids": [2]})
        question = [{"role": "user", "content": "q"}]
        trace("ToolAgentLoop.run", sample, number, {"sampling_params": {}}, {"num_turns": 3}, question)
trace("Search.execute", 9, 0, {"parameters": {}}, [{"text": "found"}, 0.0, {}])
trackio.finish()
"""

    captured(tmp_path, code)

    kept = [
        record
        for record in records(only_folder(runs(tmp_path)))
        if record["kind"] == "rollout"
    ]
    assert sorted((one["group"], one["sample"]) for one in kept) == [
        ("7", 0),
        ("7", 1),
        ("8", 0),
        ("8", 1),
    ]
    assert {tuple(span["name"] for span in one["spans"] if span["kind"] == "tool") for one in kept} == {
        ("execute_tool Search",)
    }  # fmt: skip
    assert [message["role"] for message in kept[0]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert kept[0]["messages"][2]["content"] == "found"
    assert [call["op"] for call in kept[0]["metadata"]["calls"]] == ["Client.generate"]
    assert report_of(runs(tmp_path)).drops == {"rollout_unfinished": 1}


def test_verls_calls_give_two_rows_and_five_rollouts(tmp_path: Path) -> None:
    captured(tmp_path, VERL)

    folder = only_folder(runs(tmp_path))
    rollouts = [one for one in records(folder) if one["kind"] == "rollout"]
    loss = {
        key: points for key, points in values(folder).items() if key == "actor/loss"
    }
    assert loss == {"actor/loss": [(1, 0.5), (2, 0.25)]}
    found = sorted((one["split"], one["step"], one["reward"]) for one in rollouts)
    assert found == [("eval", 2, 1.0), *(("train", 1, n / 4) for n in range(4))]
    assert stored(tmp_path) == []


def test_a_trace_or_step_that_cannot_be_read_costs_nothing_else(tmp_path: Path) -> None:
    code = """
    import trackio
    bad, good = (trackio.Trace(messages=[{"role": "user", "content": "q"}], metadata={"reward": 1.0}) for _ in range(2))
    bad.messages = None
    trackio.init(project="p", name="e")
    trackio.log({"loss": 0.5, "traces": [bad, good]}, step=1)
    trackio.log({"loss": 0.25}, step="soon")
    trackio.alert("it diverges")
    trackio.finish()
    """

    captured(tmp_path, code)

    folder = only_folder(runs(tmp_path))
    assert values(folder)["loss"] == [(1, 0.5), (2, 0.25)]
    assert [one["reward"] for one in records(folder) if one["kind"] == "rollout"] == [
        1.0
    ]
    alerts = [
        (one["title"], one["level"])
        for one in records(folder)
        if one["kind"] == "alert"
    ]
    assert alerts == [("it diverges", "warn")]
    found = report_of(runs(tmp_path))
    expected = {"rollout_unreadable": "traces", "bad_step": "soon"}
    assert {
        reason: found.drop_keys.get(reason, "") for reason in found.drops
    } == expected


def test_media_arrive_in_the_form_of_otel_bridge(tmp_path: Path) -> None:
    if not hasattr(trackio_store.package(), "Html"):
        pytest.skip("this version of trackio has no Html")
    code = """
    import numpy as np, trackio
    trackio.init(project="p", name="e")
    red = np.zeros((2, 3, 3), dtype=np.uint8)
    table = trackio.Table(columns=["x", "picture"], data=[[1, trackio.Image(red)], [2, None]])
    trackio.log({"loss": 0.5, "image": trackio.Image(red, caption="red"), "table": table}, step=3)
    trackio.log({"text": trackio.Markdown("# A"), "page": trackio.Html("<p>hi</p>")})
    trackio.log({"sound": trackio.Audio(np.zeros(8, dtype=np.int16), sample_rate=8000)})
    trackio.finish()
    """

    captured(tmp_path, code)

    folder = only_folder(runs(tmp_path))
    found = {str(one["key"]): one for one in records(folder) if one["kind"] == "media"}
    shown = {
        key: (one["step"], [(item["type"], item["caption"]) for item in one["items"]])
        for key, one in found.items()
    }
    assert shown == {
        "image": (3, [("image", "red")]), "table": (3, [("table", "")]), "text": (4, [("markdown", "")]),
        "page": (4, [("html", "")]), "sound": (5, [("audio", "")]),
    }  # fmt: skip
    assert [item["type"] for item in found["table"]["cells"]] == ["image"]
    assert report_of(runs(tmp_path)).drops == {}
    assert stored(tmp_path) == []


def test_the_bridges_own_writer_is_the_real_trackio(tmp_path: Path) -> None:
    captured(tmp_path, VERL, exporters="trackio,file")

    assert [name for name in stored(tmp_path) if name.endswith(".db")] != []
    assert report_of(runs(tmp_path)).exporters["trackio"].rows >= 2
    assert len(run_folders(runs(tmp_path))) == 1


def test_reserved_keys_have_the_names_in_trackios_store_that_it_gives_them_itself(
    tmp_path: Path,
) -> None:
    code = """
    import trackio
    trackio.init(project="p", name="e")
    trackio.log({"loss": 1.0, "step": 2, "time": 3, "__own": 4})
    trackio.finish()
    """
    folders = [tmp_path / name for name in ("captured", "real")]
    for folder in folders:
        folder.mkdir()

    captured(folders[0], code, exporters="trackio")
    script = program(folders[1], "train.py", code)
    real = call([PYTHON, script], cwd=folders[1], env=environment(folders[1]))

    assert real.returncode == 0, real.stderr
    rows: list[dict[str, Any]] = []
    for folder in folders:
        with closing(sqlite3.connect(folder / "store" / "p.db")) as store:
            ((metrics,),) = store.execute("SELECT metrics FROM metrics")
            rows.append(json.loads(metrics))
    captured_row, real_row = rows
    # The name of a row's axis, as every tracker shows it.
    assert captured_row.pop("step_value") == real_row.pop("__step")
    assert captured_row == real_row


def test_a_bridge_that_the_captured_program_starts_is_not_captured(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="trackio")
    script = program(tmp_path, "train.py", VERL)

    done = call(
        [PYTHON, script], cwd=tmp_path, env=env | capture_variables(env, ["trackio"])
    )

    assert done.returncode == 0, done.stderr
    assert ended(runs(tmp_path)).exporters["trackio"].rows >= 2
    assert [name for name in stored(tmp_path) if name.endswith(".db")] != []


def test_tee_writes_to_trackio_too(tmp_path: Path) -> None:
    captured(
        tmp_path,
        VERL.replace("for n", "trackio.config['seed'] = 3\nfor n"),
        OTEL_BRIDGE_CAPTURE_MODE="tee",
    )

    assert config_of(tmp_path)["seed"] == 3
    assert values(only_folder(runs(tmp_path)))["actor/loss"] == [(1, 0.5), (2, 0.25)]
    assert [name for name in stored(tmp_path) if name.endswith(".db")] != []


def test_tee_into_an_exporter_of_that_name_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_CAPTURE_MODE="tee")

    done = otel_bridge(
        "run",
        "--exporters",
        "trackio",
        "--capture",
        "trackio",
        "--",
        "true",
        cwd=tmp_path,
        env=env,
    )
    script = program(
        tmp_path,
        "train.py",
        "import otel_bridge; otel_bridge.capture('trackio', mode='tee')\n" + VERL,
    )
    in_code = call(
        [PYTHON, script], cwd=tmp_path, env={**env, "OTEL_BRIDGE_EXPORTERS": "trackio"}
    )
    inherited = {**env, "OTEL_BRIDGE_CAPTURE": "trackio"}
    by_variable = otel_bridge(
        "run", "--exporters", "trackio", "--", "true", cwd=tmp_path, env=inherited
    )
    unknown = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--capture",
        "mlflow",
        "--",
        "true",
        cwd=tmp_path,
        env=env,
    )

    refused = (done, in_code, by_variable)
    assert [one.returncode for one in (*refused, unknown)] == [1, 1, 1, 1]
    for one in refused:
        assert (
            "trackio is an exporter too, and would have every row twice" in one.stderr
        )
    assert (
        "--capture mlflow: expected some of wandb, trackio, tensorboard"
        in unknown.stderr
    )


def test_a_kill_after_the_last_log_loses_nothing(tmp_path: Path) -> None:
    code = """
    import os, signal, trackio
    trackio.init(project="p", name="e")
    for step in range(5):
        trackio.log({"loss": float(step)})
    os.kill(os.getpid(), signal.SIGKILL)
    """
    script = program(tmp_path, "train.py", code)

    done = otel_bridge("run", "--exporters", "file", "--capture", "trackio", "--", "python", script, cwd=tmp_path,
                       env=environment(tmp_path))  # fmt: skip

    assert done.returncode == 137
    assert values(only_folder(runs(tmp_path))) == {
        "loss": [(step, float(step)) for step in range(5)]
    }


def test_a_histogram_is_captured_texts_are_last_values_and_what_is_not_a_dict_is_counted_by_its_kind(
    tmp_path: Path,
) -> None:
    code = """
    import trackio
    trackio.init(project="p", name="e")
    trackio.log({"h": trackio.Histogram([1, 2, 3]), "loss": 1.0, "none": None})
    trackio.log(5)
    for step in range(5):
        trackio.log({"loss": float(step), "note": f"step {step}", "deep": {"word": "text", "none": None}})
    trackio.log({"note": "a number follows", "deep": {"other": "text"}})
    trackio.log({"note": 7, "deep": {"other": 8}})
    """
    script = program(tmp_path, "train.py", code)
    env = environment(tmp_path)

    done = otel_bridge(
        "run",
        "--capture",
        "trackio",
        "--exporters",
        "file",
        "--",
        "python",
        script,
        cwd=tmp_path,
        env=env,
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"trackio.Histogram +1\b", done.stderr)
    assert "trackio.histogram" not in done.stderr
    found = values(only_folder(runs(tmp_path)))
    assert found["loss"] == [(0, 1.0), *((step + 2, float(step)) for step in range(5))]
    assert report_of(runs(tmp_path)).drops == {"not_a_mapping": 1}
    shown: dict[str, Any] = {}
    for record in records(only_folder(runs(tmp_path))):
        shown |= record["summary"] if record["kind"] == "summary" else {}
    assert shown == {"note": 7, "deep/word": "text", "deep/other": 8}


def test_every_rank_records_its_rows_config_and_alerts(tmp_path: Path) -> None:
    code = """
    import trackio
    trackio.init(project="p", name="e", config={"lr": 0.1})
    trackio.log({"loss": 1.0})
    trackio.alert("it diverges")
    trackio.finish()
    """

    captured(tmp_path, code, RANK="3", WORLD_SIZE="4")

    folder = only_folder(runs(tmp_path))
    assert values(folder) == {"loss": [(0, 1.0)]}
    assert config_of(tmp_path) == {"lr": 0.1}
    assert "alert" in {one["kind"] for one in records(folder)}


def test_a_run_that_must_be_resumed_has_to_exist(tmp_path: Path) -> None:
    code = """
    import trackio
    for resume in ("must", "bogus"):
        try:
            trackio.init(project="p", name="e", resume=resume)
        except ValueError as error:
            print(error)
    trackio.init(project="p", name="e", resume="allow").finish()
    print(trackio.init(project="p", name="e", resume="must").name)
    """
    script = program(tmp_path, "train.py", code)

    done = otel_bridge(
        "run", "--capture", "trackio", "--exporters", "file", "--", "python", script,
        cwd=tmp_path, env=environment(tmp_path),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    missing, wrong, name = done.stdout.splitlines()
    assert missing.startswith(
        "Run 'e' does not exist in project 'p': no run folder of it is in "
    )
    assert (wrong, name) == ("resume must be one of: 'must', 'allow', or 'never'", "e")


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("replace", ({"name": "a"}, {"name": "b"})),
        ("replace", ({}, {})),
        ("tee", ({"name": "a"}, {"name": "b"})),
        # Trackio itself gives both one name: none of its store has a row yet.
        ("tee", ({}, {})),
    ],
)
def test_runs_of_threads_go_on_beside_each_other(
    tmp_path: Path, mode: str, names: tuple[dict[str, str], ...]
) -> None:
    code = f"""
    import threading
    import trackio
    names = {names!r}
    both = threading.Barrier(2)

    def train(number, **names):
        trackio.init(project="p", **names)
        both.wait()
        for step in range(2):
            trackio.log(dict(loss=number + step))
        both.wait()
        trackio.finish()

    threads = [threading.Thread(target=train, args=(10 * n,), kwargs=names[n]) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """

    output = captured(tmp_path, code, OTEL_BRIDGE_CAPTURE_MODE=mode)

    assert "after finish()" not in output
    folders = run_folders(runs(tmp_path))
    assert sorted(values(folder)["loss"] for folder in folders) == [
        [(0, 0), (1, 1)],
        [(0, 10), (1, 11)],
    ]
    assert [statuses(folder) for folder in folders] == [["finished"]] * 2


def test_names_that_only_trackio_accepts_are_cleaned_as_those_of_wandb_are(
    tmp_path: Path,
) -> None:
    code = """
    import trackio

    trackio.init(project="p", name="sft\\n" + 300 * "n")
    trackio.log({"loss": 1.0})
    trackio.init(project="p", name="sft\\n" + 300 * "n", resume="must")
    trackio.log({"loss": 0.5})
    """

    captured(tmp_path, code)

    assert values(only_folder(runs(tmp_path)))["loss"] == [(0, 1.0), (1, 0.5)]


def test_a_config_may_be_a_namespace_or_any_object_with_fields(tmp_path: Path) -> None:
    code = """
    import argparse
    import trackio

    class Options:
        def __init__(self):
            self.batch = 8
            self._secret = "x"

    trackio.init(project="p", name="e", config=argparse.Namespace(lr=0.1, model={"layers": 2}))
    assert trackio.config["lr"] == 0.1, trackio.config
    trackio.init(project="p", name="e", config=Options())
    assert trackio.config["batch"] == 8, trackio.config
    trackio.log({"loss": 1.0})
    """

    captured(tmp_path, code)

    assert config_of(tmp_path) == {"lr": 0.1, "model": {"layers": 2}, "batch": 8}


def test_an_artifact_is_read_from_trackios_store_and_a_logged_one_may_be_awaited(
    tmp_path: Path,
) -> None:
    store = """
    import trackio
    trackio.init(project="p", auto_log_cpu=False)
    trackio.log_artifact("model.bin", name="model")
    trackio.finish()
    """
    code = """
    import pathlib
    import trackio
    trackio.init(project="p", name="e")
    print(pathlib.Path(trackio.use_artifact("model:latest").download(), "model.bin").read_text())
    artifact = trackio.Artifact("other", type="model")
    assert trackio.log_artifact(artifact) is artifact
    assert trackio.log_artifact(pathlib.Path("model.bin")).wait().name == "model.bin"
    trackio.finish()
    """
    (tmp_path / "model.bin").write_text("weights")
    script = program(tmp_path, "store.py", store)
    call([PYTHON, script], cwd=tmp_path, env=environment(tmp_path))

    output = captured(tmp_path, code)

    assert output.startswith("weights\n")
    assert report_of(runs(tmp_path)).drops == {"not_captured": 3}
