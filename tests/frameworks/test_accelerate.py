"""Accelerate itself: the object, the registered name, and two processes with one writer."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from support.trainers.command_runs import call, program, report_of, runs
from support.trainers.framework_programs import (
    ACCELERATE_BESIDE,
    ACCELERATE_NAME,
    ACCELERATE_OBJECT,
)
from support.trainers.framework_runs import (
    AT_FLOOR,
    NEEDS_REAL,
    REAL,
    config_in,
    ends_of,
    framework_environment,
    recorded,
    rows_of,
    run_captured,
    run_program,
)

pytestmark = NEEDS_REAL
LOSS = [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_the_object_records_rows_and_config_and_ends_the_run(tmp_path: Path) -> None:
    run_program(tmp_path, ACCELERATE_OBJECT, real=True)

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["finished"])
    assert {"lr": 0.1, "model": "tiny"}.items() <= config_in(found).items()
    assert report_of(runs(tmp_path)).name == "one"


@pytest.mark.skipif(not AT_FLOOR, reason="newer versions have a registry")
def test_without_a_registry_the_name_is_refused_with_the_version_that_has_one(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, ACCELERATE_NAME, real=True, fails=True)

    assert (
        "accelerate.tracking has no register_tracker_class; this adapter needs accelerate>=1.15"
        in done.stderr
    )


@pytest.mark.skipif(AT_FLOOR, reason="the registry came with Accelerate 1.15")
def test_the_registered_name_records_too_and_an_exception_makes_the_end_failed(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, ACCELERATE_NAME, real=True, fails=True)

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["failed"])


@pytest.mark.skipif(AT_FLOOR, reason="the registry came with Accelerate 1.15")
@pytest.mark.parametrize(
    ("captured", "names"),
    [
        ("wandb", ("wandb", "otel_bridge")),
        ("wandb", ("otel_bridge", "wandb")),
        ("trackio", ("otel_bridge", "trackio")),
        ("tensorboard", ("tensorboard", "otel_bridge")),
        ("wandb", ("tensorboard", "otel_bridge")),
    ],
)
def test_beside_a_captured_tracker_rows_are_recorded_once_and_what_one_alone_gets_too(
    tmp_path: Path, captured: str, names: tuple[str, ...]
) -> None:
    done = run_captured(
        tmp_path, captured, ACCELERATE_BESIDE, captured, *names, real=True
    )

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert (rows_of(found, "loss"), rows_of(found, "numpy")) == (
        LOSS,
        [(0, 0.0), (1, 1.0), (2, 2.0)],
    )
    assert (rows_of(found, "only"), config_in(found)["lr"], ends_of(found)) == (
        [(3, 7)],
        0.1,
        ["finished"],
    )
    assert (report.project, report.name) == ("grpo", "two")
    assert done.stderr.count("metrics of Accelerate are recorded once") == (
        captured in names
    )


def test_of_two_processes_one_writes(tmp_path: Path) -> None:
    script = program(tmp_path, "train.py", textwrap.dedent(ACCELERATE_OBJECT))
    env = framework_environment(tmp_path, real=True)

    done = call(
        [REAL, "-m", "torch.distributed.run", "--nproc-per-node=2", script],
        cwd=tmp_path,
        env=env,
    )

    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["finished"])
    assert done.stderr.count("otel-bridge: grpo/one (") == 1
