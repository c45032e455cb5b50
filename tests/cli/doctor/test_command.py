"""``otel-bridge doctor``: settings, packages, trackers, and a test row that comes back."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from otel_bridge_mlflow import exporter as mlflow
from support.bridge.gated_tracker import install
from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    otel_bridge,
    program,
)


def test_the_verdict_comes_first_and_then_only_what_is_set(tmp_path: Path) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file", OTEL_BRIDGE_POLL_S="0.1")

    done = otel_bridge("doctor", cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:2] == ["✓ nothing is wrong", ""]
    assert (
        "OTEL_BRIDGE_POLL_S 0.1 Interval at which the bridge reads new data from the segments."
        in lines
    )
    assert "file file/ in the run folder" in lines
    rest = re.search(
        r"OTEL_BRIDGE_ROW_WAIT_S|mlflow|package  |not installed", done.stdout
    )
    assert rest is None, rest


def test_nothing_is_wrong_is_never_said_alone_when_no_exporter_is_chosen(
    tmp_path: Path,
) -> None:
    fine = otel_bridge("doctor", cwd=tmp_path, env=environment(tmp_path))
    wrong = otel_bridge(
        "doctor", cwd=tmp_path, env=environment(tmp_path, OTEL_BRIDGE_POLL_S="soon")
    )

    advice = "no exporter is chosen: set OTEL_BRIDGE_EXPORTERS, e.g. to trackio, or name exporters in init()"
    assert fine.stdout.splitlines()[0] == f"✓ nothing is wrong, but {advice}"
    assert wrong.stdout.splitlines()[1] == advice


def test_every_setting_stands_there_with_value_origin_and_meaning(
    tmp_path: Path,
) -> None:
    env = environment(
        tmp_path,
        OTEL_BRIDGE_EXPORTERS="file",
        OTEL_BRIDGE_POLL_S="0.1",
        OTEL_BRIDGE_MLFLOW_WAL="1",
    )

    done = otel_bridge("doctor", "--all", cwd=tmp_path, env={**env, "COLUMNS": "80"})

    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout
    assert (
        "OTEL_BRIDGE_POLL_S 0.1 environment Interval at which the bridge reads new data from the segments."
        in lines
    )
    assert (
        "OTEL_BRIDGE_ROW_WAIT_S 10 default How long a row waits for its missing fragments."
        in lines
    )
    assert (
        "OTEL_BRIDGE_MLFLOW_WAL 1 environment "
        "Use write-ahead mode for an SQLite store, about 1.5 times as fast; not for network file systems."
        in lines
    )
    assert (
        "WANDB_RESUME allow default What to do with a W&B run of the same id: allow, must, never or auto."
        in lines
    )
    assert any(
        line.startswith("OTEL_BRIDGE_MAX_BYTES 16GiB default Size limit")
        for line in lines
    )
    assert "file yes file/ in the run folder" in lines
    # An installed version that was not tested is shown beside those that were, and is not wrong.
    assert f"mlflow {version('mlflow')} {mlflow.tested_with}" in lines
    assert lines[0] == "✓ nothing is wrong"
    assert not (tmp_path / ".otel-bridge").exists()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"OTEL_BRIDGE_POLL_S": "soon"},
            "✗ OTEL_BRIDGE_POLL_S='soon': expected a number of seconds; unset it to use the default, 0.05",
        ),
        (
            {"OTEL_BRIDGE_EXPORTERS": "trakio"},
            "✗ exporter 'trakio' is not known; choose from console, file, mlflow, otlp, trackio, wandb, webhook, none",
        ),
        (
            {"OTEL_BRIDGE_EXPORTERS": "wandb", "WANDB_MODE": "disabled"},
            "✗ WANDB_MODE=disabled",
        ),
    ],
)
def test_what_is_wrong_is_said_once_and_the_exit_code_says_so(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    done = otel_bridge(
        "doctor", "--send", cwd=tmp_path, env=environment(tmp_path, **variables)
    )

    assert done.returncode == 1
    assert [
        line.startswith(said)
        for line in done.stdout.splitlines()
        if line.startswith("✗")
    ] == [True], done.stdout
    assert "nothing was sent: first fix what is wrong" in done.stdout
    assert done.stdout.startswith("✗ "), "the verdict comes first"
    assert not (tmp_path / ".otel-bridge").exists()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_no_secret_is_printed(tmp_path: Path, protocol: str) -> None:
    secrets = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_BRIDGE_TOKEN": "hunter2-token",
        "WANDB_API_KEY": "hunter2-wandb",
        "MLFLOW_TRACKING_URI": "https://me:hunter2-mlflow@mlflow.example",
        "MLFLOW_TRACKING_TOKEN": "hunter2-token",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hunter2-otlp@collector.example:4317",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter2-header",
        "TRACKIO_SERVER_URL": "http://trackio.example/?write_token=hunter2-trackio",
    }

    done = otel_bridge("doctor", cwd=tmp_path, env=environment(tmp_path, **secrets))

    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "hunter2" not in done.stdout + done.stderr
    assert any(line.startswith("OTEL_BRIDGE_TOKEN set Bearer tokens") for line in lines)


def test_a_secret_that_cannot_be_read_is_not_printed_either(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="me:hunter2-otlp@",
        OTEL_BRIDGE_EXPORTERS="otlp",
    )

    done = otel_bridge("doctor", cwd=tmp_path, env=env)

    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.long
def test_a_row_and_a_rollout_are_sent_and_read_back_from_each_tracker(
    tmp_path: Path,
) -> None:
    places = {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    of_a_job = {
        "TRACKIO_PROJECT": "mine",
        "MLFLOW_EXPERIMENT_NAME": "mine",
        "MLFLOW_RUN_ID": "0" * 32,
    }
    env = environment(
        tmp_path, OTEL_BRIDGE_EXPORTERS="file,trackio,mlflow", **places, **of_a_job
    )

    done = otel_bridge("doctor", "--send", cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    said = [
        f"{name}: the row and the rollout were read back" in done.stdout
        for name in ("file", "trackio", "mlflow")
    ]
    assert said == [True, True, True]
    assert [path.name for path in (tmp_path / "trackio").glob("*.db")] == [
        "otel-bridge-doctor.db"
    ]


def test_an_exporter_that_cannot_be_read_back_is_said_to_be_so(tmp_path: Path) -> None:
    done = otel_bridge(
        "doctor",
        "--send",
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="console"),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("✓ nothing is wrong\n"), "the verdict comes first"
    assert (
        "console: the row and the rollout were sent; they cannot be read back from here"
        in done.stdout
    )


WITHOUT_TRACKIO = """
    import sys
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec
    PathFinder.find_spec = lambda name, *more: None if name == "trackio" else found(name, *more)

    from otel_bridge.cli import main
    main(sys.argv[1:])
"""


def test_what_the_bridge_of_another_environment_sent_is_said_to_be_sent(
    tmp_path: Path,
) -> None:
    bare = program(tmp_path, "bare.py", WITHOUT_TRACKIO)
    env = environment(
        tmp_path,
        OTEL_BRIDGE_EXPORTERS="trackio",
        OTEL_BRIDGE_PYTHON=PYTHON,
        TRACKIO_DIR=str(tmp_path / "trackio"),
    )

    done = call([PYTHON, bare, "doctor", "--send"], cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "trackio: the row and the rollout were sent" in done.stdout


def test_the_test_row_never_goes_into_the_run_that_the_environment_names(
    tmp_path: Path,
) -> None:
    of_a_job = {
        "OTEL_BRIDGE_RUN_ID": "job-7",
        "OTEL_RESOURCE_ATTRIBUTES": "rl.run.id=job-8,rl.run.name=mine",
    }

    done = otel_bridge(
        "doctor",
        "--send",
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file", **of_a_job),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    reports = [read_report(folder) for folder in run_folders(tmp_path / ".otel-bridge")]
    assert [report.project for report in reports if report is not None] == [
        "otel-bridge-doctor"
    ]
    assert not {folder.run_id for folder in run_folders(tmp_path / ".otel-bridge")} & {
        "job-7",
        "job-8",
    }


def test_a_tracker_that_takes_nothing_is_named_with_what_helps(tmp_path: Path) -> None:
    extra = {
        "OTEL_BRIDGE_EXPORTERS": "file,gated",
        "GATED_BLOCKED": "1",
        **install(tmp_path),
    }

    done = otel_bridge(
        "doctor", "--send", cwd=tmp_path, env=environment(tmp_path, **extra)
    )

    assert done.returncode == 1
    assert done.stdout.startswith("✗ "), "the verdict comes first"
    assert "file: the row and the rollout were read back" in done.stdout
    assert f"✗ gated: blocked: the gate is shut; touch {tmp_path}/gate" in done.stdout


def test_nothing_chosen_is_said_when_something_should_be_sent(tmp_path: Path) -> None:
    done = otel_bridge("doctor", "--send", cwd=tmp_path, env=environment(tmp_path))

    assert done.returncode == 1
    assert (
        "✗ no exporter is chosen; set OTEL_BRIDGE_EXPORTERS, e.g. to trackio"
        in done.stdout
    )


def test_settings_that_only_otel_bridge_sets_are_shown_where_they_are_set(
    tmp_path: Path,
) -> None:
    bare = otel_bridge("doctor", "--all", cwd=tmp_path, env=environment(tmp_path))
    within = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "otel-bridge",
        "doctor",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (bare.returncode, "Internal: " in bare.stdout) == (0, False)
    assert "OTEL_BRIDGE_LAUNCHER_EXPORTERS" in within.stdout, (
        within.stdout + within.stderr
    )


def test_a_variable_that_otel_bridge_does_not_have_is_named_with_the_nearest_one(
    tmp_path: Path,
) -> None:
    done = otel_bridge(
        "doctor", cwd=tmp_path, env=environment(tmp_path, OTEL_BRIDGE_EXPORTER="file")
    )

    assert done.returncode == 1
    problem = "✗ OTEL_BRIDGE_EXPORTER is set, but is not a setting of otel-bridge; did you mean OTEL_BRIDGE_EXPORTERS?"
    assert problem in done.stdout.splitlines()


def test_how_much_text_each_exporter_gets_is_shown_and_otlp_can_have_no_less(
    tmp_path: Path,
) -> None:
    share = {
        "OTEL_BRIDGE_WANDB_MESSAGE_CONTENT": "off",
        "OTEL_BRIDGE_GATED_MESSAGE_CONTENT": "truncate:9",
    }
    extra = {**share, "GATED_BLOCKED": "1", **install(tmp_path)}

    fine = otel_bridge(
        "doctor", "--all", cwd=tmp_path, env=environment(tmp_path, **extra)
    )
    refused = otel_bridge(
        "doctor",
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_OTLP_MESSAGE_CONTENT="off"),
    )

    shown = [line.split()[:3] for line in fine.stdout.splitlines()]
    assert fine.returncode == 0, fine.stdout
    assert ["OTEL_BRIDGE_WANDB_MESSAGE_CONTENT", "off", "environment"] in shown
    assert ["OTEL_BRIDGE_GATED_MESSAGE_CONTENT", "truncate:9", "environment"] in shown
    assert ["OTEL_BRIDGE_TRACKIO_MESSAGE_CONTENT", "full", "default"] in shown
    assert refused.returncode == 1
    assert (
        "otlp forwards segments unchanged; set OTEL_BRIDGE_MESSAGE_CONTENT instead"
        in refused.stdout
    )
