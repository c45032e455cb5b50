"""Frames: the sender in them and what they said, before anything of it has an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.translation.frame_decoder import (
    DecodedFrame,
    FrameReader,
    ResourceMetricsInput,
)
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.lifecycle import RunLifecycle
from otel_bridge.translation.processes.producers import (
    ProducerContext,
    ProducerRegistry,
    SegmentInfo,
)
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.processes.run_metadata import RunMetadata
from support.otlp.memory_state import MemoryState
from support.otlp.otlp_samples import (
    RECEIVER,
    RUN,
    SCOPE,
    T0,
    end,
    gauge,
    logs,
    logs_request,
    metrics_request,
    row,
    source,
    third_party,
    who,
)
from support.otlp.trace_samples import rollout_spans

OTHER = {**who("i7"), "rl.run.id": "another"}
LOSS = row(1, {"loss": 1.0})
SPANS = ScopeSpans(scope=SCOPE, spans=rollout_spans("t1"))


class Reading:
    """A reader of a run, and what it counted."""

    def __init__(self) -> None:
        self.state = MemoryState()
        life = RunLifecycle(
            self.state, TranslationOptions(run_id=RUN), ReceiveClock(0, 0)
        )
        self.reader = FrameReader(
            self.state, ProducerRegistry(RunMetadata(self.state, RUN), life)
        )

    def drops(self) -> dict[str, object]:
        return {
            key.removeprefix("drop/"): number
            for key, number in self.state.items("drop/")
        }


def alone(payload: bytes, sender: SegmentInfo | None = None) -> DecodedFrame:
    return DecodedFrame(sender or source(), payload, False, T0, T0)


def whole(payload: bytes) -> DecodedFrame:
    return DecodedFrame(RECEIVER, payload, True, T0, T0)


def received(
    said: list[ResourceMetricsInput],
) -> list[tuple[str, list[object], list[str]]]:
    """Instance, rows as values by key, names of the other metrics."""
    return [
        (
            one.context.process.instance,
            [piece.values for piece in one.fragments],
            [metric.name for _, metric in one.metrics],
        )
        for one in said
    ]


def instances(found: Iterable[tuple[ProducerContext, object]]) -> list[str]:
    return [context.process.instance for context, _ in found]


def test_a_frame_of_a_segment_is_of_the_one_that_wrote_it() -> None:
    reading = Reading()
    other = pb.ScopeMetrics(
        scope=SCOPE, metrics=[*LOSS.metrics, gauge("x", 1.0, T0, {})]
    )

    said = reading.reader.metrics(alone(other.SerializeToString()))
    spans = list(reading.reader.spans(alone(SPANS.SerializeToString())))
    events = list(reading.reader.logs(alone(logs(end("finished", 1)))))

    assert received(said) == [("i1", [{"trainer/loss": 1.0}], ["x"])]
    assert (instances(spans), [*spans[0][1]]) == (["i1"], [SPANS])
    assert (
        instances(events),
        [record.event_name for scope in events[0][1] for record in scope.log_records],
    ) == (
        ["i1"],
        ["rl.run.end"],
    )


def test_in_a_request_every_resource_sends_for_itself() -> None:
    reading = Reading()
    latency = third_party(gauge("latency", 3.0, T0, {}))
    payload = metrics_request(
        (who(), [LOSS, row(2, {"loss": 2.0})]),
        ({"rl.run.id": RUN}, [latency]),
        (who("i2"), []),
    )

    ours, app, silent = received(reading.reader.metrics(whole(payload)))

    assert ours == (
        "i1",
        [{"trainer/loss": 1.0}, {"trainer/loss": 2.0}],
        [],
    )
    assert (app[0].startswith("third-party:"), app[1:], silent) == (
        True,
        ([], ["latency"]),
        ("i2", [], []),
    )


def test_a_request_that_is_unusual_says_the_same() -> None:
    usual = metrics_request((who(), [LOSS]))
    later = usual + b"\x12\x00"  # a field of a later version

    assert received(Reading().reader.metrics(whole(later))) == received(
        Reading().reader.metrics(whole(usual))
    )


def test_what_names_another_run_is_left_out_and_counted_once_a_resource() -> None:
    reading = Reading()
    of_another = SegmentInfo(
        "i7", "process", source("i7", rl_run_id="another").resource
    )

    metrics = reading.reader.metrics(
        whole(metrics_request((OTHER, [LOSS]), (who(), [LOSS]), (OTHER, [LOSS])))
    )
    events = list(
        reading.reader.logs(
            whole(logs_request((OTHER, [end("failed", 1)]), (who(), [])))
        )
    )
    spans = list(reading.reader.spans(alone(SPANS.SerializeToString(), of_another)))

    assert (len(metrics), instances(events), spans) == (1, ["i1"], [])
    assert reading.drops() == {"other_run": 4}


def test_a_segment_whose_header_cannot_be_read_says_nothing_and_is_counted_each_time() -> (
    None
):
    reading, unread = Reading(), SegmentInfo("x", "process", b"\x0a\xff")

    said = reading.reader.metrics(alone(LOSS.SerializeToString(), unread))
    found = [
        *reading.reader.spans(alone(b"", unread)),
        *reading.reader.logs(alone(b"", unread)),
    ]

    assert (said, found, reading.reader.of_segment(unread, T0)) == ([], [], None)
    assert reading.drops() == {"undecodable": 4}


def first_spans(reader: FrameReader, frame: DecodedFrame) -> object:
    return next(reader.spans(frame))


def first_logs(reader: FrameReader, frame: DecodedFrame) -> object:
    return next(reader.logs(frame))


@pytest.mark.parametrize(
    "frame", [alone(b"\x0a\xff\x01"), whole(b"\x0a\xff\x01")], ids=["alone", "whole"]
)
@pytest.mark.parametrize("read", [FrameReader.metrics, first_spans, first_logs])
def test_bytes_that_cannot_be_decoded_are_the_callers_to_count(
    read: Callable[[FrameReader, DecodedFrame], object], frame: DecodedFrame
) -> None:
    reading = Reading()

    with pytest.raises(DecodeError):
        read(reading.reader, frame)

    assert reading.drops() == {}


def test_a_producer_is_looked_up_only_when_those_before_it_were_taken() -> None:
    reading = Reading()
    found = reading.reader.logs(whole(logs_request((who("i1"), []), (OTHER, []))))

    first = next(found)

    assert (first[0].process.instance, reading.drops()) == ("i1", {})
    assert (list(found), reading.drops()) == ([], {"other_run": 1})


def test_rows_before_those_of_a_receiver_may_still_come() -> None:
    assert (alone(b"").from_receiver, whole(b"").from_receiver) == (False, True)
