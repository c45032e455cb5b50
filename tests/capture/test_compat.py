"""The calls of wandb without wandb: what is not in wandb/test_calls.py, which runs every call with both."""

from __future__ import annotations

import argparse
import datetime
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import otel_bridge.compat.wandb as compat
from otel_bridge.compat.objects import wandb_metric
from otel_bridge.errors import MissingExtraError
from support.trainers.captured_wandb import captured, captured_config, captured_points
from support.trainers.command_runs import only_folder, records, runs


class _Frame:
    columns = ("a", "b")

    class values:  # as a DataFrame has it
        @staticmethod
        def tolist() -> list[list[int]]:
            return [[1, 2]]


def test_a_table_is_filled_as_in_wandb() -> None:
    table = compat.Table(columns=["a"], data=[[1]])
    table.add_data(2)
    table.add_column("b", ["x", "y"])

    assert (table.columns, table.data, table.get_column("b")) == (["a", "b"], [[1, "x"], [2, "y"]], ["x", "y"])
    assert compat.Table(dataframe=_Frame()).data == [[1, 2]]
    with pytest.raises(ValueError, match=r"expects 2 columns: .*, found 1"):
        table.add_data(3)


@pytest.mark.parametrize("name", ["Api", "sweep", "plot"])
def test_what_only_the_real_package_has_says_so(name: str) -> None:
    with pytest.raises(MissingExtraError, match=f"wandb.{name} needs W&B's own package: pip install wandb"):
        getattr(compat, name)
    assert not hasattr(compat, name)


def test_other_names_are_missing_as_in_any_module_and_calls_before_init_are_errors() -> None:
    found: Any = compat

    assert not hasattr(found, "no_such_name")
    with pytest.raises(compat.Error, match=r"You must call wandb.init\(\) before wandb.log\(\)"):
        found.log({"a": 1})
    assert compat.run is None


def test_a_table_takes_arrays_and_frames_as_its_rows() -> None:
    rows = np.array([[1, 2], [3, 4]])

    table = compat.Table(columns=["a", "b"], data=rows)
    table.add_computed_columns(lambda number, row: {"sum": row["a"] + row["b"] + number})

    assert (table.data, table.get_index()) == ([[1, 2, 3], [3, 4, 8]], [0, 1])
    frame = compat.Table(data=_Frame())
    assert (frame.columns, frame.data) == (["a", "b"], [[1, 2]])


def test_a_histogram_and_an_image_show_the_program_what_they_hold() -> None:
    numbers = [0.0, 1.0, 1.0, 4.0]
    counts, edges = np.histogram(numbers, bins=4)

    histogram = compat.Histogram(numbers, num_bins=4)

    assert (histogram.histogram, histogram.bins) == (counts.tolist(), edges.tolist())
    assert compat.Histogram(np_histogram=(counts, edges)).histogram == counts.tolist()
    assert compat.Image(np.zeros((2, 3, 3), np.uint8)).image.size == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "non-empty name"),
        ({"name": "a*b"}, r"name \(glob suffixes only\): a\*b"),
        ({"name": "a", "step_metric": 5}, "step_metric type: int"),
        ({"name": "a", "summary": "median"}, "summary op: median"),
    ],
)
def test_a_definition_that_wandb_refuses_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(compat.Error, match=message):
        wandb_metric(**arguments)


def test_the_config_keeps_plain_values_and_refuses_a_change_by_accident() -> None:
    config = compat.Config({"lr": np.float32(0.5), "betas": (1, 2), "path": Path("x"), "kinds": {"a"}, "nan": math.nan})

    with pytest.raises(compat.sdk.lib.config_util.ConfigError, match=r'key "lr" from 0\.5 to 1'):
        config.lr = 1
    config.update({"lr": 2, "array": np.arange(3)}, allow_val_change=True)
    config.update(argparse.Namespace(lr=2, new={"at": datetime.date(2026, 1, 2)}))

    assert dict(config) == {
        "lr": 2, "betas": [1, 2], "path": "x", "kinds": ["a"], "nan": None, "array": [0, 1, 2],
        "new": {"at": "2026-01-02"},
    }  # fmt: skip


MOMENT = "k2v9x0ab?_step=1"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"mode": "ofline"},
        "init(mode='ofline'): expected one of 'online', 'offline', 'shared', 'disabled', 'dryrun', 'run'",
    ),
    ({"resume": "alow"}, "init(resume='alow'): expected one of 'allow', 'must', 'never', 'auto', or True or False"),
    ({"resume": ""}, "init(resume=''): expected one of 'allow'"),
    (
        {"reinit": "new"},
        "init(reinit='new'): expected one of 'default', 'return_previous', 'finish_previous', 'create_",
    ),
    ({"fork_from": "k2v9x0ab"}, "init(fork_from='k2v9x0ab'): expected '<run id>?_step=<number>', such as"),
    ({"resume_from": "k2v9x0ab?loss=1"}, "init(resume_from='k2v9x0ab?loss=1'): expected '<run id>?_step=<number>'"),
    ({"fork_from": MOMENT, "id": "k2v9x0ab"}, "expected another id, or resume_from= with it, not id='k2v9x0ab'"),
    ({"resume_from": MOMENT, "id": "b"}, "expected the id 'k2v9x0ab', or none with it, not id='b'"),
    ({"fork_from": MOMENT, "resume": "allow"}, "init(fork_from=, resume=): these are mutually exclusive"),
    ({"fork_from": MOMENT, "resume_from": MOMENT}, "init(fork_from=, resume_from=): these are mutually exclusive"),
    ({"id": ""}, "init(id=''): expected a text without spaces around it"),
    ({"id": "a/b"}, "init(id='a/b'): expected a text without spaces around it and without any of : ; , # ? / '"),
    ({"id": 5}, "init(id=5): expected a text; correct it here"),
    ({"name": 5}, "init(name=5): expected a text; correct it here"),
    ({"project": "a/b"}, "init(project='a/b'): expected at most 128 characters and none of / \\ # ? % :"),
    ({"tags": ["x" * 65]}, "expected tags of 1 to 64 characters"),
    ({"sync_tensorboard": "perhaps"}, "init(sync_tensorboard='perhaps'): expected True or False"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_an_argument_that_wandb_refuses_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(compat.UsageError, match=re.escape(message)) as caught:
        compat.init(**{"project": "p", **arguments})

    assert isinstance(caught.value, ValueError)
    assert compat.run is None


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in REFUSED])
def test_wandb_refuses_it_too(arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")

    with pytest.raises((ValueError, wandb.errors.UsageError)):
        wandb.init(**{"project": "p", **arguments})


def test_variables_and_settings_are_checked_like_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(compat.UsageError, match="resume='alow'"):
        compat.init(project="p", settings=compat.Settings(resume="alow"))
    with pytest.raises(TypeError, match=re.escape("init() got an unexpected keyword argument 'projct'")):
        compat.init(projct="p")
    for name, value in {"MODE": "ofline", "RESUME": "alow", "FORK_FROM": "a", "RUN_ID": "a/b", "REINIT": "x"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
        with pytest.raises(compat.UsageError, match=re.escape(repr(value))):
            compat.init(project="p")
        monkeypatch.delenv(f"WANDB_{name}")


def test_messages_are_printed_as_wandb_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    compat.termlog("ready")
    compat.termwarn("slow", repeat=False)
    compat.termwarn("slow", repeat=False)

    assert capsys.readouterr().err == "wandb: ready\nwandb: WARNING slow\n"
    assert issubclass(compat.errors.CommError, compat.Error)


@pytest.mark.slow
def test_defaults_of_a_file_and_excluded_keys_are_those_of_wandb_and_a_run_shows_its_settings(tmp_path: Path) -> None:
    (tmp_path / "config-defaults.yaml").write_text("lr: {desc: rate, value: 0.5}\nbatch: {value: 3}\n", "utf-8")
    code = """
    import sys
    sys.modules["wandb"] = None
    import otel_bridge.compat.wandb as wandb
    run = wandb.init(project="p", name="e", config={"batch": 4, "left": 1}, config_exclude_keys=["left"])
    assert dict(run.config) == {"lr": 0.5, "batch": 4}, run.config
    shown = run.settings
    assert (shown.run_id, shown.run_name, shown.project, shown.mode) == (run.id, "e", "p", "online")
    assert (run.sweep_id, run.starting_step, run.config_static.lr, run.start_time > 0) == (None, 0, 0.5, True)
    run.log({"a": 1})
    """

    captured(tmp_path, code)

    assert captured_config(tmp_path) == {"lr": 0.5, "batch": 4}


@pytest.mark.slow
def test_a_program_with_a_config_file_and_a_disabled_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("wandb_version: 1\nlr: {desc: rate, value: 0.5}\nlayers: 2\n", "utf-8")
    code = """
    import sys
    sys.modules["wandb"] = None
    import otel_bridge.compat.wandb as wandb
    with wandb.init(project="p", name="off", mode="disabled", config={"seed": 1}) as run:
        assert (run.disabled, wandb.config.seed) == (True, 1)
        wandb.log({"off": 1})
    with wandb.init(project="p", name="on", config="config.yaml", tags=["x"], notes="n") as run:
        assert (wandb.config.lr, run.tags, wandb.run is run, run.dir != "") == (0.5, ("x",), True, True)
        assert wandb.init() is run
        wandb.log({"on": 1, "image": wandb.Image("x.png"), "list": [wandb.Plotly([1])]}, step=4, commit=True)
        wandb.alert("title", "text", wandb.AlertLevel.ERROR)
        wandb.config.setdefaults({"lr": 1, "more": 2})
        assert wandb.summary["on"] == 1
    assert wandb.run is None and wandb.login() and wandb.util.generate_id()
    wandb.finish()
    """

    output = captured(tmp_path, code)

    assert captured_points(tmp_path) == {"on": [(4, 1)]}
    assert captured_config(tmp_path).items() >= {"lr": 0.5, "layers": 2, "more": 2}.items()
    alerts = [one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "alert"]
    assert [(one["title"], one["text"], one["level"]) for one in alerts] == [("title", "text", "error")]
    assert "wandb.Image" in output
    assert "wandb.Chart" in output


@pytest.mark.slow
def test_media_and_other_tables_are_media_of_their_step(tmp_path: Path) -> None:
    code = """
    import sys
    import numpy as np
    import PIL.Image
    sys.modules["wandb"] = None
    import otel_bridge.compat.wandb as wandb
    wandb.init(project="p", name="e")
    pixels = np.zeros((2, 3, 3), dtype=np.uint8)
    wandb.log({"loss": 1.0, "one": wandb.Image(pixels, caption="black")}, step=5)
    wandb.log({"many": [wandb.Image(pixels), PIL.Image.new("RGB", (2, 2))], "page": wandb.Html("<b>x</b>")}, step=5)
    wandb.log({"table": wandb.Table(columns=["n", "picture"], data=[[1, wandb.Image(pixels)]])}, step=6)
    wandb.log({"chart": wandb.Object3D("x")}, step=6)
    """

    output = captured(tmp_path, code)

    found = [one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "media"]
    assert [(one["key"], one["step"], [item["type"] for item in one["items"]]) for one in found] == [
        ("one", 5, ["image"]), ("many", 5, ["image", "image"]), ("page", 5, ["html"]), ("table", 6, ["table"])
    ]  # fmt: skip
    assert captured_points(tmp_path) == {"loss": [(5, 1.0)]}
    assert re.search(r"wandb.Image +2 ", output)
    assert "wandb.Chart" in output
