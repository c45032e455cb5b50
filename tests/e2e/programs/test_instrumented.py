"""``opentelemetry-instrument``: a program that knows OpenTelemetry only, brought to trackers by its environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.report import Report, read_report
from support.trackers import mlflow_reading, shown_runs
from support.trainers.command_runs import (
    BIN,
    call,
    ended,
    environment,
    only_folder,
    program,
    records,
    run_info,
    statuses,
    until,
    values,
)
from support.trainers.stock_programs import GLOBAL_API

INSTRUMENT = str(BIN / "opentelemetry-instrument")
NAMED = {
    "OTEL_SERVICE_NAME": "reward",
    "OTEL_RESOURCE_ATTRIBUTES": "rl.project=sums,rl.run.name=stock",
}


def instrumented(
    tmp_path: Path, code: str = GLOBAL_API, **variables: str
) -> subprocess.CompletedProcess[str]:
    stock = program(tmp_path, "stock.py", code)
    env = environment(tmp_path, **NAMED, **variables)
    return call([INSTRUMENT, "python", stock], cwd=tmp_path, env=env)


@pytest.mark.long
def test_metrics_go_to_mlflow_and_rollouts_to_trackio(tmp_path: Path) -> None:
    done = instrumented(
        tmp_path,
        OTEL_METRICS_EXPORTER="mlflow",
        OTEL_TRACES_EXPORTER="trackio",
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db",
        TRACKIO_DIR=str(tmp_path / "trackio"),
    )

    report = ended(tmp_path / ".otel-bridge")
    run = run_info(tmp_path / ".otel-bridge")
    mlflow = mlflow_reading.contents(f"sqlite:///{tmp_path}/mlflow.db", run)
    trackio = shown_runs.trackio(tmp_path / "trackio", run)
    assert (done.returncode, report.status) == (0, "finished"), done.stderr
    assert {(one.key, one.value) for one in mlflow.scalars} >= {
        ("reward/queue", 3.0),
        ("reward/requests", 5.0),
    }
    assert {one.step for one in mlflow.scalars if one.key == "reward/queue"} == {7}
    assert mlflow.rollouts == []
    assert trackio.scalars == []
    assert [(one.key, one.step, one.reward) for one in trackio.rollouts.values()] == [
        ("reward/rollouts", 7, 0.5)
    ]


def test_one_exporter_takes_both_and_the_program_ends_well(tmp_path: Path) -> None:
    done = instrumented(
        tmp_path,
        OTEL_METRICS_EXPORTER="file",
        OTEL_TRACES_EXPORTER="file",
        OTEL_LOGS_EXPORTER="file",
    )

    ended(tmp_path / ".otel-bridge")
    folder = only_folder(tmp_path / ".otel-bridge")
    rollouts = [record for record in records(folder) if record["kind"] == "rollout"]
    assert done.returncode == 0, done.stderr
    assert values(folder)["reward/queue"] == [(7, 3.0)]
    assert values(folder)["reward/requests"] == [(None, 5)]
    assert [(one["key"], one["step"], one["reward"]) for one in rollouts] == [
        ("reward/rollouts", 7, 0.5)
    ]
    assert statuses(folder) == ["finished"]


def test_a_program_that_fails_keeps_its_code_and_its_run_failed(tmp_path: Path) -> None:
    done = instrumented(
        tmp_path,
        GLOBAL_API + "    raise RuntimeError('no reward')\n",
        OTEL_METRICS_EXPORTER="file",
    )

    ended(tmp_path / ".otel-bridge")
    folder = only_folder(tmp_path / ".otel-bridge")
    assert (done.returncode, "RuntimeError: no reward" in done.stderr) == (1, True)
    assert (values(folder)["reward/queue"], statuses(folder)) == (
        [(7, 3.0)],
        ["failed"],
    )


def test_a_tracker_that_is_away_keeps_no_other_signal_and_no_program(
    tmp_path: Path,
) -> None:
    away = {
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "OTEL_BRIDGE_RETRY_AFTER_EXIT_S": "1",
    }

    done = instrumented(
        tmp_path, OTEL_METRICS_EXPORTER="file", OTEL_TRACES_EXPORTER="mlflow", **away
    )

    folder = only_folder(tmp_path / ".otel-bridge")
    assert done.returncode == 0, done.stderr
    assert values(folder)["reward/queue"] == [(7, 3.0)]


def test_a_tracker_that_cannot_be_imported_is_blocked_and_the_other_signals_arrive(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "site" / "trackio"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(
        "raise ImportError('built for another Python')\n"
    )
    path = {"PYTHONPATH": str(tmp_path / "site"), "OTEL_BRIDGE_RETRY_AFTER_EXIT_S": "0"}

    done = instrumented(
        tmp_path, OTEL_METRICS_EXPORTER="file", OTEL_TRACES_EXPORTER="trackio", **path
    )

    folder = only_folder(tmp_path / ".otel-bridge")
    report = until(lambda: _stuck(folder), "trackio's outcome")
    assert done.returncode == 0, done.stderr
    assert values(folder)["reward/queue"] == [(7, 3.0)]
    assert report.exporters["file"].state == "ended"
    assert "built for another Python" in report.exporters["trackio"].reason


def _stuck(folder: RunFolder) -> Report | None:
    report = read_report(folder)
    if (
        report is None
        or report.exporters.get("trackio") is None
        or report.exporters["file"].state != "ended"
    ):
        return None
    return report if report.exporters["trackio"].reason else None


def test_an_exporter_that_is_not_known_is_said_and_the_other_signals_arrive(
    tmp_path: Path,
) -> None:
    done = instrumented(
        tmp_path, OTEL_METRICS_EXPORTER="file,nosuch", OTEL_TRACES_EXPORTER="nosuch"
    )

    ended(tmp_path / ".otel-bridge")
    assert done.returncode == 0, done.stderr
    assert (
        "nosuch: no exporter of traces has this name; the others continue"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert values(only_folder(tmp_path / ".otel-bridge"))["reward/queue"] == [(7, 3.0)]


WITHOUT_TRACKIO = """
    import importlib.util

    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "trackio" else find(name, package)

    from opentelemetry.instrumentation.auto_instrumentation import initialize
    initialize()  # what opentelemetry-instrument does before the program
"""


def test_a_tracker_that_is_not_installed_is_said_and_the_other_signals_arrive(
    tmp_path: Path,
) -> None:
    stock = program(tmp_path, "stock.py", WITHOUT_TRACKIO + GLOBAL_API)
    env = environment(
        tmp_path, **NAMED, OTEL_METRICS_EXPORTER="file", OTEL_TRACES_EXPORTER="trackio"
    )

    done = call(["python", stock], cwd=tmp_path, env=env)

    ended(tmp_path / ".otel-bridge")
    assert done.returncode == 0, done.stderr
    assert "pip install 'otel-bridge[trackio]'" in done.stderr
    assert values(only_folder(tmp_path / ".otel-bridge"))["reward/queue"] == [(7, 3.0)]


def test_a_wrong_setting_is_said_and_the_program_goes_on(tmp_path: Path) -> None:
    done = instrumented(
        tmp_path,
        "print('went on')",
        OTEL_METRICS_EXPORTER="file",
        OTEL_BRIDGE_POLL_S="soon",
        OTEL_BRIDGE_MAX_BYTES="much",
    )

    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert "OTEL_BRIDGE_MAX_BYTES='much'" in done.stderr


def test_without_an_exporter_of_otel_bridge_the_stock_sdk_is_untouched(
    tmp_path: Path,
) -> None:
    none = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}

    done = instrumented(tmp_path, OTEL_TRACES_EXPORTER="console", **none)

    assert done.returncode == 0, done.stderr
    assert '"name": "rollout"' in done.stdout
    assert "otel-bridge" not in done.stderr
    assert run_folders(tmp_path / ".otel-bridge") == []
