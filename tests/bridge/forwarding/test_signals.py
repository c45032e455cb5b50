"""Each signal of ``otlp`` has its own endpoint, position and state: no signal waits for another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.bridge.forwarding.forwarder import Forwarder
from otel_bridge.bridge.ledger.queries import SegmentPosition
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.journal.frames import Signal
from support.bridge.bridge_doubles import Process, run_folder, until
from support.bridge.forwarded_metrics import scope, values_of
from support.otlp.trace_backend import GrpcBackend, HttpBackend

HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


class Run:
    """A run with one process, whose segments are forwarded; the reader has them."""

    def __init__(self, base: Path) -> None:
        self.folder = run_folder(base)
        self.ledger = Ledger(self.folder.ledger_path)
        self.process = Process.start(self.folder, "otlp")
        self.ledger.commit(
            [], sources=[SegmentPosition(self.process.instance, 0, 0, b"")]
        )
        self.lines: list[str] = []

    def write(self, number: int) -> None:
        """Append a metric, a span and an event."""
        writer = self.process.writer
        writer.append(Signal.METRICS, scope(float(number)), time.time_ns())
        writer.append(
            Signal.TRACES,
            ScopeSpans(spans=[Span(name=f"s{number}")]).SerializeToString(),
            time.time_ns(),
        )
        record = LogRecord(body=AnyValue(string_value=f"e{number}"))
        writer.append(
            Signal.LOGS,
            ScopeLogs(log_records=[record]).SerializeToString(),
            time.time_ns(),
        )

    @contextmanager
    def forwarder(self, **env: str) -> Iterator[Forwarder]:
        worker = Forwarder(
            self.folder, self.ledger, {**HTTP, **env}, every_process=False, log_line=self.lines.append,
            progressed=lambda: None,
        )  # fmt: skip
        worker.start()
        yield worker
        worker.stop()
        assert worker.join(10)

    def forwarded(self) -> int:
        """Return the offset up to which everything is forwarded, before which segments are deleted."""
        view = self.ledger.view()
        (source,) = view.sources()
        view.close()
        return source.forwarded_offset

    @property
    def written(self) -> int:
        return self.process.writer.offset


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.process.die()
    run.ledger.close()


def state(worker: Forwarder, name: str) -> Callable[[], bool]:
    return lambda: worker.exporter_state.state == name


@pytest.mark.parametrize("kind", [404, 405, 501, "grpc"])
def test_signals_that_the_other_end_lacks_are_named_once_and_end_and_the_others_go_on(
    run: Run, kind: int | str
) -> None:
    backend = (
        GrpcBackend("traces")
        if kind == "grpc"
        else HttpBackend("traces", otherwise=int(kind))
    )
    protocol = "grpc" if kind == "grpc" else "http/protobuf"
    run.write(0)

    with run.forwarder(
        OTEL_EXPORTER_OTLP_ENDPOINT=backend.url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol
    ) as worker:
        until(state(worker, "idle"))
        for number in range(1, 4):
            run.write(number)
            worker.notify()
            until(lambda number=number: len(backend.spans()) == number + 1)
        until(lambda: run.forwarded() == run.written)
    backend.close()

    answered = "gRPC status 12" if kind == "grpc" else f"{kind} "
    assert backend.spans() == ["s0", "s1", "s2", "s3"]
    assert [line.partition(" are not sent: ")[0] for line in run.lines] == [
        "otlp: metrics",
        "otlp: logs",
    ]
    assert [
        sentence.partition(" are not sent: ")[0]
        for sentence in worker.exporter_state.degraded
    ] == [
        "metrics",
        "logs",
    ]
    assert all(
        f"answered {answered}" in line
        for line in (*run.lines, *worker.exporter_state.degraded)
    )
    assert backend.tries.count("metrics") <= 1


def test_with_the_endpoint_of_traces_alone_nothing_else_is_sent(run: Run) -> None:
    backend = HttpBackend("traces", "metrics", "logs")
    run.write(0)

    with run.forwarder(
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{backend.url}/v1/traces"
    ) as worker:
        until(lambda: run.forwarded() == run.written)
        until(state(worker, "idle"))
    backend.close()

    assert (backend.spans(), set(backend.tries), run.lines) == (["s0"], {"traces"}, [])
    assert worker.exporter_state.destination == {"traces": f"{backend.url}/v1/traces"}


def test_an_address_at_which_there_is_no_signal_at_all_is_blocked_and_nothing_is_given_up(
    run: Run,
) -> None:
    backend = HttpBackend()
    run.write(0)

    with run.forwarder(OTEL_EXPORTER_OTLP_ENDPOINT=backend.url) as worker:
        until(state(worker, "blocked"))
        assert (run.forwarded(), worker.exporter_state.degraded) == (0, [])
        assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in worker.exporter_state.help
        backend.answers = dict.fromkeys(("metrics", "traces", "logs"), 200)
        worker.notify(retry=True)
        until(lambda: run.forwarded() == run.written)
    backend.close()

    assert (backend.values(), backend.spans()) == ([0.0], ["s0"])


def test_a_signal_whose_endpoint_is_down_waits_alone_and_every_position_survives_a_restart(
    run: Run,
) -> None:
    metrics, traces = HttpBackend("metrics", "logs"), HttpBackend("traces")
    metrics.answers["metrics"] = 503
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": metrics.url,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{traces.url}/v1/traces",
    }
    run.write(0)
    run.write(1)

    with run.forwarder(**env) as worker:
        until(
            lambda: (
                len(traces.spans()) == 2 and worker.exporter_state.state == "retrying"
            )
        )
        assert run.forwarded() == 0
    run.write(2)
    metrics.answers["metrics"] = 200
    with run.forwarder(**env):
        until(lambda: run.forwarded() == run.written)
    metrics.close()
    traces.close()

    assert metrics.values() == [0.0, 1.0, 2.0]
    assert traces.spans() == ["s0", "s1", "s2"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_signal_that_is_refused_blocks_no_other(run: Run, status: int) -> None:
    backend = HttpBackend("traces", "logs")
    backend.answers["metrics"] = status
    run.write(0)

    with run.forwarder(OTEL_EXPORTER_OTLP_ENDPOINT=backend.url) as worker:
        until(
            lambda: (
                backend.spans() == ["s0"] and worker.exporter_state.state == "blocked"
            )
        )
        run.write(1)
        worker.notify()
        until(lambda: backend.spans() == ["s0", "s1"])
    backend.close()

    assert "/v1/metrics answered" in worker.exporter_state.reason
    assert run.forwarded() == 0


def test_each_signal_has_its_own_protocol_and_headers(run: Run) -> None:
    metrics, traces = HttpBackend("metrics", "logs"), GrpcBackend("traces")
    run.write(0)

    with run.forwarder(
        OTEL_EXPORTER_OTLP_ENDPOINT=metrics.url,
        OTEL_EXPORTER_OTLP_HEADERS="x-team=rl",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=traces.url,
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="x-mlflow-experiment-id=7",
    ):
        until(lambda: run.forwarded() == run.written)
    metrics.close()
    traces.close()

    assert (metrics.values(), traces.spans()) == ([0.0], ["s0"])
    assert (
        metrics.headers["metrics"]["x-team"],
        traces.headers["traces"]["x-mlflow-experiment-id"],
    ) == ("rl", "7")
    assert "x-team" not in traces.headers["traces"]


def test_a_run_that_goes_on_ends_what_the_other_end_was_known_to_lack_although_only_that_is_left(
    run: Run,
) -> None:
    backend = HttpBackend("traces")
    run.write(0)
    with run.forwarder(OTEL_EXPORTER_OTLP_ENDPOINT=backend.url):
        until(lambda: run.forwarded() == run.written)
    run.process.writer.append(Signal.METRICS, scope(1.0), time.time_ns())

    with run.forwarder(OTEL_EXPORTER_OTLP_ENDPOINT=backend.url) as worker:
        until(lambda: run.forwarded() == run.written)
        until(state(worker, "idle"))
    backend.close()


@pytest.mark.parametrize("restart", [False, True])
def test_a_signal_that_was_accepted_before_is_kept_while_its_path_is_gone(
    run: Run, *, restart: bool
) -> None:
    backend = HttpBackend("metrics", "traces", "logs")
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.url}

    def is_held_or_ended(worker: Forwarder) -> bool:
        return state(worker, "blocked")() or bool(worker.exporter_state.degraded)

    def append(number: int) -> None:
        # Metrics alone: that other signals are gone too is not known then.
        run.process.writer.append(Signal.METRICS, scope(float(number)), time.time_ns())

    run.write(0)
    with run.forwarder(**endpoint) as worker:
        until(lambda: run.forwarded() == run.written)
        backend.answers["metrics"] = 404
        if not restart:
            append(1)
            worker.notify()
            until(lambda worker=worker: is_held_or_ended(worker))
    append(2)
    with run.forwarder(**endpoint) as worker:
        until(lambda worker=worker: is_held_or_ended(worker))
        backend.answers["metrics"] = 200
        worker.notify(retry=True)
        until(lambda: run.forwarded() == run.written)
    backend.close()

    assert backend.values() == ([0.0, 2.0] if restart else [0.0, 1.0, 2.0])
    assert worker.exporter_state.degraded == []


class _RefusingFirst(HttpBackend):
    """Refuses the first value of metrics for good, and is busy once for the second."""

    def __init__(self) -> None:
        super().__init__("metrics", "traces", "logs")
        self.was_busy = False

    def take(self, signal: str, body: bytes, headers: Mapping[str, str]) -> int:
        if signal == "metrics" and 0.0 in values_of([body]):
            return 400
        if signal == "metrics" and not self.was_busy:
            self.was_busy = True
            return 503
        return super().take(signal, body, headers)


def test_an_item_that_is_refused_in_two_tries_counts_once_and_for_the_next_bridge_too(
    run: Run,
) -> None:
    backend = _RefusingFirst()
    run.write(0)
    run.write(1)

    with run.forwarder(OTEL_EXPORTER_OTLP_ENDPOINT=backend.url) as worker:
        until(lambda: run.forwarded() == run.written)
    refused = worker.exporter_state.dead_letters
    with run.forwarder(OTEL_EXPORTER_OTLP_ENDPOINT=backend.url) as worker:
        until(state(worker, "idle"))
    backend.close()

    assert backend.values() == [1.0]
    assert backend.was_busy
    assert (refused, worker.exporter_state.dead_letters) == (1, 1)
