"""Accelerate's tracker, with a fake of the package: rows, config, one end; the object and the registered name."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    runs,
)
from support.trainers.framework_programs import ACCELERATE_NAME, ACCELERATE_OBJECT
from support.trainers.framework_runs import config_in, ends_of, recorded, rows_of, run_program

LOSS = [(0, 0.0), (1, 0.5), (2, 1.0)]


@pytest.mark.slow
def test_the_object_records_rows_and_config_and_ends_the_run(tmp_path: Path) -> None:
    run_program(tmp_path, ACCELERATE_OBJECT)

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["finished"])
    assert {"lr": 0.1, "model": "tiny"}.items() <= config_in(found).items()
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == ("grpo", "one")


@pytest.mark.slow
def test_the_registered_name_records_too_and_an_exception_makes_the_end_failed(tmp_path: Path) -> None:
    done = run_program(tmp_path, ACCELERATE_NAME, fails=True)

    found = recorded(tmp_path)
    assert "RuntimeError: out of memory" in done.stderr
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["failed"])
    assert report_of(runs(tmp_path)).name == "two"


@pytest.mark.slow
def test_without_an_exporter_the_run_is_kept_and_one_line_reports_it(tmp_path: Path) -> None:
    done = run_program(tmp_path, ACCELERATE_OBJECT, OTEL_BRIDGE_EXPORTERS="")

    lines = [line for line in done.stderr.splitlines() if "deliver with: otel-bridge drain" in line]
    assert len(lines) == 1, done.stderr
    drained = otel_bridge("drain", str(runs(tmp_path)), "--exporters", "file", cwd=tmp_path, env=environment(tmp_path))
    assert drained.returncode == 0, drained.stderr
    assert rows_of(records(only_folder(runs(tmp_path))), "loss") == LOSS


def test_without_accelerate_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "import otel_bridge.adapters.accelerate"

    done = call([PYTHON, program(tmp_path, "train.py", code)], cwd=tmp_path, env=environment(tmp_path))

    assert done.stderr.splitlines()[-1] == (
        "otel_bridge.errors.MissingExtraError: accelerate cannot be imported; this adapter needs accelerate>=0.34;"
        " run: pip install 'accelerate>=0.34'"
    )


def test_an_argument_that_init_does_not_have_is_an_error_at_once(tmp_path: Path) -> None:
    code = "from otel_bridge.adapters.accelerate import OtelBridgeTracker; OtelBridgeTracker('p', projekt='q')"

    done = run_program(tmp_path, code, fails=True)

    assert "ConfigError: projekt= is not an argument of otel_bridge.init(); expected some of dir," in done.stderr
