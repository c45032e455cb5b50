"""A service that was away: what waited for producers elsewhere goes on waiting, as nobody could hear them."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from otel_bridge.records import End, Record
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import (
    LOGS,
    RUN,
    TRACES,
    Bench,
    end,
    logs_request,
    metrics_request,
    resource,
    row,
    source,
    who,
)
from support.otlp.trace_samples import rollout_spans, rollouts_in, rows_in, scope_spans

HOUR_S = 3600.0


def of_rows(*seqs: int, instance: str = "i1") -> bytes:
    return metrics_request(
        (who(instance), [row(seq, {"loss": float(seq)}) for seq in seqs])
    )


def of_spans(*spans: Span) -> bytes:
    part = ResourceSpans(
        resource=resource(who(role="explorer")), scope_spans=[scope_spans(spans)]
    )
    return ExportTraceServiceRequest(resource_spans=[part]).SerializeToString()


def rewards(records: list[Record]) -> list[float | None]:
    return [rollout.reward for rollout in rollouts_in(records)]


def ids(records: list[Record]) -> list[str]:
    return [record.id for record in records]


def test_rows_behind_a_gap_still_wait_for_those_that_are_under_way() -> None:
    bench = Bench()
    bench.request(of_rows(1, 4, 5))

    bench.restart(away_s=HOUR_S)
    bench.tick()
    bench.tick(100)  # the connection comes back late
    bench.request(of_rows(6))
    bench.tick(9)
    bench.request(of_rows(2, 3))

    assert ids(bench.records) == [f"m:i1:{seq}" for seq in (1, 2, 3, 4, 5, 6)]


def test_what_never_comes_is_given_up_a_row_wait_after_the_first_rows() -> None:
    bench = Bench()
    bench.request(of_rows(1, 4))

    bench.restart(away_s=HOUR_S)
    bench.request(of_rows(1, instance="i2"))
    early, due = bench.tick(9.9), bench.tick(0.1)

    assert (ids(early), ids(due)) == ([], ["m:i1:4"])


def test_where_no_rows_come_at_all_it_is_given_up_a_tail_wait_after_the_start() -> None:
    bench = Bench()
    bench.request(of_rows(1, 4))

    bench.restart(away_s=HOUR_S)
    early, due = bench.tick(149), bench.tick(1)

    assert (ids(early), ids(due)) == ([], ["m:i1:4"])


def test_requests_read_late_that_came_before_are_not_the_first_rows() -> None:
    bench = Bench()
    before_ns = bench.now_ns
    bench.restart(away_s=HOUR_S)
    opened_ns, bench.now_ns = bench.now_ns, before_ns
    bench.request(of_rows(1, 3))

    bench.now_ns = opened_ns
    early = bench.tick(60)
    bench.request(of_rows(2))

    assert (ids(early), ids(bench.records)) == ([], ["m:i1:1", "m:i1:2", "m:i1:3"])


def test_nobody_is_treated_as_dead_for_what_nobody_could_hear() -> None:
    bench = Bench()
    bench.request(of_rows(1))
    liveness_timeout_s = bench.options.liveness_timeout_ns / 1e9

    bench.restart(away_s=HOUR_S)
    early, due = bench.tick(liveness_timeout_s - 1), bench.tick(1)

    assert (ids(early), [type(record) for record in due]) == ([], [End])


def test_an_end_waits_for_its_rows_through_an_hour_without_a_service() -> None:
    bench = Bench()
    bench.request(logs_request((who(), [end("finished", 1, last_row=2)])), LOGS)

    bench.restart(away_s=HOUR_S)
    bench.tick(140)
    bench.request(of_rows(2))
    bench.request(of_rows(1))

    assert ids(bench.records) == ["m:i1:1", "m:i1:2", "e:1"]


def test_a_rollout_still_waits_for_the_spans_that_are_under_way() -> None:
    bench = Bench()
    root, *children = rollout_spans("t")
    bench.request(of_spans(root), TRACES)

    bench.restart(away_s=HOUR_S)
    bench.tick()
    bench.tick(100)  # the connection comes back late
    bench.request(of_spans(children[0]), TRACES)
    bench.tick(1.9)
    bench.request(of_spans(*children[1:]), TRACES)
    bench.close()

    [rollout] = rollouts_in(bench.records)
    assert len(rollout.spans) == 4
    assert bench.counts() == {}


def test_spans_that_never_come_are_given_up_a_grace_after_the_first_spans() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, selection="first"))
    bench.request(of_spans(rollout_spans("t")[0]), TRACES)

    bench.restart(away_s=HOUR_S)
    bench.request(of_spans(rollout_spans("other")[0]), TRACES)
    early, due = bench.tick(1.9), bench.tick(0.1)

    assert (len(rollouts_in(early)), len(rollouts_in(due))) == (0, 2)


def test_where_no_spans_come_at_all_they_are_given_up_a_tail_wait_after_the_start() -> (
    None
):
    bench = Bench(TranslationOptions(run_id=RUN, selection="first"))
    bench.request(of_spans(rollout_spans("t")[0]), TRACES)

    bench.restart(away_s=HOUR_S)
    early, due = bench.tick(149), bench.tick(1)

    assert (len(rollouts_in(early)), len(rollouts_in(due))) == (0, 1)


def test_a_step_is_chosen_among_those_too_that_were_under_way() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, max_rollouts=1))
    bench.request(of_spans(*rollout_spans("poor", reward=0.0, rl__group="g")), TRACES)

    bench.restart(away_s=HOUR_S)
    bench.tick(100)
    bench.request(of_spans(*rollout_spans("rich", reward=1.0, rl__group="g")), TRACES)
    early, due = bench.tick(29.9), bench.tick(0.1)

    assert (rewards(early), rewards(due)) == ([], [1.0])
    assert [record.values["explorer/rollouts/total"] for record in rows_in(due)] == [2]


def test_what_was_in_a_segment_here_waits_for_nobody_elsewhere() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, selection="first"))
    here = source("i1", "explorer")
    bench.open(here)
    frame = scope_spans([rollout_spans("t")[0]]).SerializeToString()
    bench.records += bench.translator.frame(
        here, TRACES, frame, False, bench.now_ns, bench.now_ns
    )

    bench.restart(away_s=HOUR_S)

    assert len(rollouts_in(bench.tick())) == 1
