"""Spans of NVIDIA NeMo Lens: each names its iteration, and its numbers are a row at that step."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from otel_bridge.records import Row
from support.otlp.otlp_samples import RUN, TRACES, Bench, resource
from support.otlp.trace_samples import NOW, scope_spans, span

LENS = {
    "rl.run.id": RUN,
    "service.name": "megatron",
    "nemo.run.id": "42",
    "service.instance.id": "42-rank0",
    "dl.rank": 0,
}


def iteration(number: int, **more: Any) -> Span:
    """A span as ``managed_span("iteration", "train_step", **{"dl.iteration": …})`` sends it."""
    measured = {
        "dl.loss": 2.5 - number / 10,
        "dl.learning_rate": 1e-4,
        "dl.data_parallel.rank": 0,
        "thread.id": 7,
    }
    return span(
        f"lens{number}", 1, "train_step", {"dl.iteration": number, **measured, **more}
    )


def request(*spans: Span, **more: Any) -> bytes:
    part = ResourceSpans(
        resource=resource({**LENS, **more}),
        scope_spans=[scope_spans(spans, "megatron.training")],
    )
    return ExportTraceServiceRequest(resource_spans=[part]).SerializeToString()


def rows(bench: Bench) -> list[tuple[int | None, str | None, dict[str, Any]]]:
    return [
        (row.step, row.axis, {**row.values})
        for row in bench.records
        if isinstance(row, Row)
    ]


def test_six_iterations_are_six_rows_at_their_own_steps() -> None:
    bench = Bench()

    bench.request(request(*map(iteration, range(1, 4))), TRACES)
    bench.restart()
    bench.request(
        request(*map(iteration, range(3, 7))), TRACES
    )  # one of them comes again
    bench.close()

    assert rows(bench) == [
        (
            n,
            "megatron/step",
            {"megatron/dl.loss": 2.5 - n / 10, "megatron/dl.learning_rate": 1e-4},
        )
        for n in range(1, 7)
    ]
    assert [
        record.time_unix_ns for record in bench.records if isinstance(record, Row)
    ] == [NOW + 101] * 6


def test_ranks_have_keys_of_their_own() -> None:
    bench = Bench()

    bench.request(
        request(
            span("r1", 1, "step", {"dl.iteration": 1, "dl.loss": 2.0}), **{"dl.rank": 1}
        ),
        TRACES,
    )

    assert rows(bench) == [(1, "megatron/step", {"megatron/dl.loss/rank1": 2.0})]


def test_spans_without_an_iteration_or_numbers_and_calls_of_a_model_make_no_row() -> (
    None
):
    bench = Bench()
    spans = [
        span("a", 1, "step", {"dl.loss": 2.0}),
        span("b", 1, "step", {"dl.iteration": 1, "dl.rank": 3, "ok": True}),
        span(
            "c",
            1,
            "chat",
            {
                "dl.iteration": 1,
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": 7,
            },
        ),
        span("d", 1, "step", {"dl.iteration": "x", "dl.loss": 2.0}),
    ]

    bench.request(request(*spans), TRACES)

    assert rows(bench) == []
