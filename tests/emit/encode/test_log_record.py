from __future__ import annotations

from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs

from otel_bridge.emit.encode.log_record import event


def test_an_event_is_a_log_record_in_canonical_bytes() -> None:
    packed = event(
        "rl.run.config",
        time_unix_ns=7,
        body={"lr": 0.5, "n": {"a": [1, None]}},
        pairs={"rl.event.seq": 3},
    )

    parsed = ScopeLogs.FromString(packed)
    (record,) = parsed.log_records
    assert parsed.SerializeToString() == packed
    assert parsed.scope.name == "otel_bridge"
    assert (
        record.event_name,
        record.time_unix_nano,
        record.observed_time_unix_nano,
    ) == (
        "rl.run.config",
        7,
        7,
    )
    assert [(pair.key, pair.value.int_value) for pair in record.attributes] == [
        ("rl.event.seq", 3)
    ]
    assert [pair.key for pair in record.body.kvlist_value.values] == ["lr", "n"]


def test_an_event_may_belong_to_a_trace() -> None:
    packed = event(
        "gen_ai.evaluation.result", time_unix_ns=7, trace_id=bytes(range(16))
    )

    (record,) = ScopeLogs.FromString(packed).log_records
    assert record.trace_id == bytes(range(16))
    assert not record.HasField("body")
