"""Tests of ``init(otel=True)``: stock instruments, log records and spans of this process beside live rollouts."""

from __future__ import annotations

import textwrap
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.emit_otel_programs import run_program, written
from support.trainers.emit_rollout_doubles import attributes

WORK = """
from opentelemetry import _logs, metrics, trace
gauge = metrics.get_meter("app").create_gauge("loss")
for step in range(50):
    gauge.set(float(step), {"step": step})
tracer = trace.get_tracer("some.genai.instrumentation")
with otel_bridge.rollout(step=1) as rollout:
    rollout.messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    with tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat"}):
        pass
with tracer.start_as_current_span("outside"):
    pass
_logs.get_logger("app").emit(_logs.LogRecord(body="hello", event_name="app.event"))
"""
OWN = "import otel_bridge\notel_bridge.init(exporters='file', role='trainer', otel=True)\n"
USERS = """
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider())
_logs.set_logger_provider(LoggerProvider())
"""


def check(base: Path) -> None:
    found = written(base)
    spans = {span.name: span for span in found.spans}
    assert sorted(span.name for span in found.spans) == ["chat m", "outside", "rollout"]
    assert spans["chat m"].parent_span_id == spans["rollout"].span_id
    assert spans["outside"].trace_id != spans["rollout"].trace_id
    # Others may make spans in it: how many there are is not known.
    assert "rl.rollout.spans" not in attributes(spans["rollout"])
    assert sorted(found.points("loss")) == [(step, float(step)) for step in range(50)]
    assert [record.event_name for record in found.logs] == ["app.event", "rl.run.end"]
    assert found.ends == ["finished"]


def test_where_the_program_has_no_providers_they_are_made(tmp_path: Path) -> None:
    ended = run_program(tmp_path, OWN + WORK, instrument=False)

    assert ended.returncode == 0, ended.stderr
    check(tmp_path / "runs")


def test_providers_of_the_program_keep_what_they_have_and_get_one_more_place(
    tmp_path: Path,
) -> None:
    ended = run_program(tmp_path, USERS + OWN + WORK, instrument=False)

    assert ended.returncode == 0, ended.stderr
    assert '"name": "chat m"' in ended.stdout
    if hasattr(MeterProvider, "add_metric_reader"):
        check(tmp_path / "runs")
    else:  # opentelemetry-sdk 1.39
        assert (
            "cannot add a reader to the meter provider of this program: its metrics are not in the run"
            in ended.stderr
        )
        assert sorted(span.name for span in written(tmp_path / "runs").spans) == [
            "chat m",
            "outside",
            "rollout",
        ]


def test_finish_collects_what_waits_in_the_sdk_first(tmp_path: Path) -> None:
    late = "otel_bridge.finish()\ngauge.set(99.0, {'step': 99})\n"

    ended = run_program(tmp_path, OWN + WORK + late, instrument=False)

    assert ended.returncode == 0, ended.stderr
    check(tmp_path / "runs")


def test_a_forked_worker_records_the_points_of_its_own_instruments(
    tmp_path: Path,
) -> None:
    code = """
    import multiprocessing, os
    from opentelemetry import metrics
    samples = metrics.get_meter("app").create_counter("samples")
    gauge = metrics.get_meter("app").create_gauge("pid_of_parent")
    def work():
        samples.add(100)
        samples.add(200)
        gauge.set(float(os.getppid()))
    def rest():
        pass
    samples.add(10)
    for target in (work, rest):
        worker = multiprocessing.get_context("fork").Process(target=target)
        worker.start()
        worker.join()
        assert worker.exitcode == 0
    samples.add(10)
    print(os.getpid())
    """

    ended = run_program(tmp_path, OWN + textwrap.dedent(code), instrument=False)

    assert ended.returncode == 0, ended.stderr
    found = written(tmp_path / "runs")
    assert {value for _, value in found.points("samples")} == {20, 300}
    assert [value for _, value in found.points("pid_of_parent")] == [
        float(ended.stdout)
    ]
    assert len({header.instance_id for header in found.headers}) == 2


def test_a_process_that_forks_while_another_thread_collects_has_a_child_that_can_collect(
    tmp_path: Path,
) -> None:
    code = """
    import os, threading
    from opentelemetry import metrics
    begun, *begins = os.pipe()  # a child inherits what is locked: the program itself locks nothing
    def observe(_options):
        if begins:
            os.write(begins.pop(), b".")
        yield metrics.Observation(1.0)
    metrics.get_meter("app").create_observable_gauge("observed", [observe])
    provider = metrics.get_meter_provider()
    stop = threading.Event()
    def collect():
        while not stop.is_set():
            provider.force_flush()
    thread = threading.Thread(target=collect)
    thread.start()
    os.read(begun, 1)
    for _ in range(20):
        pid = os.fork()
        if not pid:
            provider.force_flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join()
    """

    ended = run_program(tmp_path, OWN + textwrap.dedent(code), instrument=False)

    assert ended.returncode == 0, ended.stderr


def test_metrics_of_an_explicit_rl_step_that_are_not_finite_do_not_end_the_program(
    tmp_path: Path,
) -> None:
    source = (
        OWN
        + "from opentelemetry import metrics\nmetrics.get_meter('a').create_gauge('g').set(float('nan'))\n"
    )

    ended = run_program(tmp_path, source, instrument=False)

    assert ended.returncode == 0
    assert written(tmp_path / "runs").ends == ["finished"]


def test_without_otel_nothing_global_is_set(tmp_path: Path) -> None:
    source = """
import otel_bridge
otel_bridge.init(exporters="file")
with otel_bridge.rollout():
    pass
from opentelemetry import metrics, trace
print(type(trace.get_tracer_provider()).__name__, type(metrics.get_meter_provider()).__name__)
"""
    ended = run_program(tmp_path, source, instrument=False)

    assert ended.stdout == "ProxyTracerProvider _ProxyMeterProvider\n"


def test_seeded_programs_draw_the_same_numbers_with_and_without_it(
    tmp_path: Path,
) -> None:
    draw = "\nimport random\nprint(random.random())\n"
    seeded = "import random\nrandom.seed(7)\n"

    without = run_program(tmp_path, seeded + draw, instrument=False)
    with_it = run_program(tmp_path, OWN.replace("otel_bridge.init", seeded + "otel_bridge.init") + WORK + draw,
                          instrument=False)  # fmt: skip

    assert with_it.stdout == without.stdout != ""


def test_a_second_run_of_the_process_has_what_the_sdk_records_during_it(
    tmp_path: Path,
) -> None:
    program = """
import otel_bridge
from opentelemetry import metrics, trace
for name in ("one", "two"):
    otel_bridge.init("p", name, exporters="file", otel=True)
    metrics.get_meter("app").create_gauge("loss").set(1.0, {"rl.step": 3})
    trace.get_tracer("app").start_span(name).end()
    otel_bridge.finish()
"""

    run_program(tmp_path, program, instrument=False, OTEL_BRIDGE_OFFLINE="0")

    reports = map(read_report, run_folders(tmp_path / "runs"))
    rows = {report.name: (report.rows, report.drops) for report in reports if report}
    assert rows == {"one": (1, {}), "two": (1, {})}


def test_the_last_value_of_a_counter_comes_once(tmp_path: Path) -> None:
    program = (
        OWN
        + "from opentelemetry import metrics\n"
        + "metrics.get_meter('app').create_counter('tokens').add(5)\n"
        + "otel_bridge.finish()\n"
    )

    run_program(tmp_path, program, instrument=False)

    assert len(written(tmp_path / "runs").points("tokens")) == 1
