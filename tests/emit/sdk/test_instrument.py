"""Tests of ``opentelemetry-instrument python prog.py``: exporters by name, the program names none."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import Report, read_report
from support.trainers.e2e_jobs import environment, run, script, until
from support.trainers.emit_otel_programs import run_program, written

PROGRAM = """
import logging
from opentelemetry import metrics, trace
meter, tracer = metrics.get_meter("app"), trace.get_tracer("app")
loss, tokens = meter.create_gauge("loss"), meter.create_counter("tokens")
for step in range(3000):
    loss.set(float(step), {"rl.step": step})
tokens.add(5)
with tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat"}):
    pass
print("done")
"""

pytestmark = pytest.mark.skipif(
    not entry_points(group="opentelemetry_configurator", name="otel_bridge"),
    reason="installed without entry points",
)


def test_every_step_of_a_stock_gauge_and_every_span_is_in_the_run_that_the_environment_names(
    tmp_path: Path,
) -> None:
    ended = run_program(
        tmp_path, PROGRAM, OTEL_METRICS_EXPORTER="file", OTEL_TRACES_EXPORTER="file"
    )

    found = written(tmp_path / "runs")
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    [header] = found.headers
    assert (header.project, header.run_name) == ("p", "n")
    assert dict(header.exporters) == {
        "metrics": ("file",),
        "traces": ("file",),
        "logs": (),
    }
    assert sorted(found.points("loss")) == [(step, float(step)) for step in range(3000)]
    assert found.points("tokens") == [(None, 5)]
    assert [span.name for span in found.spans] == ["chat m"]
    assert found.ends == ["finished"]


@pytest.mark.parametrize(
    ("said", "measured"),
    [({}, False), ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "urllib3"}, True)],
)
def test_the_machine_is_measured_in_a_program_only_where_its_user_says_so(
    tmp_path: Path, said: dict[str, str], measured: bool
) -> None:
    program = "from opentelemetry import metrics\nmetrics.get_meter('app').create_counter('tokens').add(5)"
    run_program(tmp_path, program, OTEL_METRICS_EXPORTER="file", **said)

    names = {metric.name for metric in written(tmp_path / "runs").metrics}
    assert ("tokens" in names, names > {"tokens"}) == (True, measured)


def test_of_several_exporters_of_a_signal_one_appends(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        PROGRAM,
        OTEL_METRICS_EXPORTER="file,mlflow",
        OTEL_TRACES_EXPORTER="trackio,file",
    )

    found = written(tmp_path / "runs")
    assert dict(found.headers[0].exporters) == {
        "metrics": ("file", "mlflow"),
        "traces": ("trackio", "file"),
        "logs": (),
    }
    assert len(found.points("loss")) == 3000
    assert len(found.spans) == 1


def test_stock_exporters_beside_ours_keep_working(tmp_path: Path) -> None:
    ended = run_program(
        tmp_path, PROGRAM, OTEL_METRICS_EXPORTER="file", OTEL_TRACES_EXPORTER="console"
    )

    found = written(tmp_path / "runs")
    assert '"name": "chat m"' in ended.stdout
    assert (found.spans, len(found.points("loss"))) == ([], 3000)


def test_a_tracker_that_is_not_installed_is_said_and_only_its_exporter_is_off(
    tmp_path: Path,
) -> None:
    hide = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "mlflow" else real(name, *rest)
from opentelemetry.instrumentation.auto_instrumentation import initialize
initialize()
"""
    ended = run_program(
        tmp_path,
        hide + PROGRAM,
        instrument=False,
        OTEL_METRICS_EXPORTER="mlflow",
        OTEL_TRACES_EXPORTER="file",
        OTEL_BRIDGE_OFFLINE="0",  # a run that is only appended needs no tracker where it runs
        PATH="/usr/bin:/bin",  # no otel-bridge there either
    )

    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert (
        ended.stderr.count("exporter mlflow is off: exporter 'mlflow' needs mlflow")
        == 1
    )
    report = until(lambda: _report_of_the_end(tmp_path / "runs"))
    assert (set(report.exporters), report.rollouts) == ({"file"}, 1)


def _report_of_the_end(base: Path) -> Report | None:
    reports = [read_report(folder) for folder in run_folders(base)]
    return (
        reports[0] if reports and reports[0] is not None and reports[0].ended else None
    )


def test_without_one_of_otel_bridge_the_stock_configurator_works_and_nothing_of_otel_bridge_begins(
    tmp_path: Path,
) -> None:
    ended = run_program(tmp_path, PROGRAM, OTEL_TRACES_EXPORTER="console")

    assert '"name": "chat m"' in ended.stdout
    assert "otel-bridge" not in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_that_cannot_begin_leaves_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ended = run_program(
        tmp_path,
        PROGRAM,
        OTEL_TRACES_EXPORTER="file,console",
        OTEL_BRIDGE_DIR=str(tmp_path / "file" / "below"),
    )

    assert ended.returncode == 0
    assert "nothing is recorded" in ended.stderr
    assert '"name": "chat m"' in ended.stdout


def test_spans_are_safe_when_they_end(tmp_path: Path) -> None:
    run_program(
        tmp_path, PROGRAM + "import os\nos._exit(0)\n", OTEL_TRACES_EXPORTER="file"
    )

    assert [span.name for span in written(tmp_path / "runs").spans] == ["chat m"]


def test_a_forked_child_does_not_say_its_parent_s_metrics_again(tmp_path: Path) -> None:
    fork = """
import os
pid = os.fork()
if pid == 0:
    metrics.get_meter_provider().force_flush()
    metrics.get_meter("child").create_gauge("of_child").set(1.0)
    metrics.get_meter_provider().force_flush()
    with tracer.start_as_current_span("in child"):
        pass
    os._exit(0)
os.waitpid(pid, 0)
"""
    run_program(
        tmp_path,
        PROGRAM + fork,
        OTEL_METRICS_EXPORTER="file",
        OTEL_TRACES_EXPORTER="file",
    )

    found = written(tmp_path / "runs")
    assert len(found.points("loss")) == 3000
    assert [value for _, value in found.points("of_child")] == [1.0]
    assert sorted(span.name for span in found.spans) == ["chat m", "in child"]
    assert len({header.instance_id for header in found.headers}) == 2


def test_importing_the_entry_points_imports_no_tracker(tmp_path: Path) -> None:
    source = """
import sys
from importlib.metadata import entry_points
for signal in ("traces", "metrics", "logs"):
    for name in ("wandb", "mlflow", "trackio", "file"):
        [point] = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
        made = point.load()(project="as a declarative file has it")
        made.shutdown()
print(sorted({"wandb", "mlflow", "trackio", "grpc"} & sys.modules.keys()))
"""
    ended = run_program(tmp_path, source, instrument=False)

    assert (ended.stdout, ended.returncode) == ("[]\n", 0)


FORKED_WHILE_ANOTHER_THREAD_BEGINS_THE_RUN = """
import os, signal, threading
from otel_bridge.emit.sdk import run

held, forked = threading.Event(), threading.Event()


def begin():
    with run._process.lock:
        held.set()
        forked.wait()


thread = threading.Thread(target=begin)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    run.appender_for("file", "traces")
    os._exit(0)
forked.set()
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_forked_while_another_thread_begins_the_run_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path / "runs", OTEL_TRACES_EXPORTER="none")

    done = run(
        script(tmp_path / "fork.py", FORKED_WHILE_ANOTHER_THREAD_BEGINS_THE_RUN), env
    )

    assert done.returncode == 0, done.stderr
