from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.bridge.ledger import codec
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import (
    Alert,
    Config,
    Distribution,
    End,
    Evaluation,
    MediaItem,
    MediaRecord,
    PlainTrace,
    Record,
    RolloutRecord,
    Row,
    Span,
    Status,
    Summary,
)

NUMBERS = st.one_of(st.floats(), st.integers(-(2**70), 2**70))
TEXTS = st.text(st.characters())
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=6,
)
DISTRIBUTIONS = st.builds(
    Distribution, st.integers(0, 9), st.floats(), st.floats(), st.floats(),
    st.lists(st.floats(), max_size=3).map(tuple), st.lists(st.integers(0, 9), max_size=3).map(tuple),
)  # fmt: skip
ROWS = st.builds(
    Row, TEXTS, st.none() | TEXTS, st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | TEXTS,
    st.integers(0, 2**63), st.dictionaries(TEXTS, NUMBERS | DISTRIBUTIONS, max_size=4),
    st.dictionaries(TEXTS, st.integers(0, 9), max_size=2), st.integers(1, 3), st.just(7),
)  # fmt: skip
SPANS = st.builds(
    Span, TEXTS, st.none() | TEXTS, TEXTS, TEXTS, st.integers(0, 9), st.integers(0, 9),
    attributes=st.dictionaries(TEXTS, JSON, max_size=2), input=JSON, output=JSON, otlp=st.binary(max_size=20),
)  # fmt: skip
ROLLOUTS = st.builds(
    RolloutRecord, TEXTS, st.none() | TEXTS, TEXTS, st.none() | st.integers(0, 9), st.none() | TEXTS, st.integers(0, 9),
    st.integers(0, 9), messages=st.lists(st.dictionaries(TEXTS, JSON, max_size=2), max_size=2),
    spans=st.lists(SPANS, max_size=3), reward=st.none() | st.floats(),
    rewards=st.dictionaries(TEXTS, st.floats(), max_size=2), metadata=st.dictionaries(TEXTS, JSON, max_size=2),
    remarks=st.dictionaries(TEXTS, st.lists(st.none() | TEXTS, min_size=2, max_size=2), max_size=2),
    position=st.just(7),
)  # fmt: skip
OTHERS = st.builds(
    PlainTrace, TEXTS, st.none() | TEXTS, TEXTS, st.integers(0, 9), st.integers(0, 9), st.lists(SPANS, max_size=3),
    TEXTS, st.none() | st.integers(0, 9),
    st.just(7),
)  # fmt: skip
LATE = st.builds(
    Evaluation, TEXTS, TEXTS, TEXTS, TEXTS, st.none() | st.floats(), st.none() | TEXTS, st.none() | TEXTS,
    st.none() | TEXTS, st.none() | st.integers(0, 9), st.none() | TEXTS, st.integers(0, 9), st.just(7),
)  # fmt: skip
CONFIGS = st.builds(
    Config,
    TEXTS,
    st.none() | TEXTS,
    st.dictionaries(TEXTS, JSON, max_size=3),
    st.integers(0, 9),
    st.just(7),
)
SUMMARIES = st.builds(
    Summary, TEXTS, st.none() | TEXTS, st.dictionaries(TEXTS, st.booleans() | NUMBERS | TEXTS, max_size=3),
    st.integers(0, 9), st.just(7),
)  # fmt: skip
ITEMS = st.lists(
    st.builds(MediaItem, TEXTS, TEXTS, st.binary(max_size=20), TEXTS, TEXTS), max_size=3
)
MEDIA = st.builds(
    MediaRecord, TEXTS, st.none() | TEXTS, TEXTS, st.none() | st.integers(0, 9), st.none() | TEXTS, st.integers(0, 9),
    ITEMS, ITEMS, st.dictionaries(TEXTS, st.integers(0, 9), max_size=2), st.just(7),
)  # fmt: skip
ALERTS = st.builds(
    Alert, TEXTS, st.none() | TEXTS, TEXTS, TEXTS, st.sampled_from(["info", "warn", "error"]),
    st.none() | st.integers(0, 9), st.integers(0, 9), st.just(7),
)  # fmt: skip
ENDS = st.builds(End, TEXTS, st.sampled_from(Status), st.integers(0, 9), st.just(7))


@given(st.one_of(ROWS, ROLLOUTS, OTHERS, LATE, CONFIGS, SUMMARIES, ALERTS, MEDIA, ENDS))
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    kind, data = codec.encode(record)

    assert repr(codec.decode(kind, data, 7)) == repr(record)


@given(st.one_of(JSON, st.binary(max_size=20)))
def test_every_state_value_comes_back_as_it_was(value: object) -> None:
    assert repr(codec.decode_value(codec.encode_value(value))) == repr(value)


def test_values_that_are_not_finite_are_kept_beside_finite_ones() -> None:
    row = Row(
        "m:i:1",
        "t",
        1,
        "t/step",
        5,
        {"a": math.nan, "b": -math.inf, "c": 0.1, "d": 2**65},
        {"t/step": 1},
        2,
        9,
    )

    back = codec.decode(*codec.encode(row), 9)

    assert repr(back) == repr(row)


def test_a_value_key_that_looks_like_the_marker_of_a_distribution_is_a_number() -> None:
    row = Row(
        "m:i:1",
        None,
        1,
        "step",
        5,
        {"$d": 1.5, "x": Distribution(2, 3.0, 1.0, 2.0)},
        position=9,
    )

    assert codec.decode(*codec.encode(row), 9) == row


@pytest.mark.parametrize(
    "kind",
    [codec.ROW, codec.ROLLOUT, codec.EVALUATION, codec.CONFIG, codec.END, codec.MEDIA],
)
@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\x00\x00\x00\x00", b"Jnot"])
def test_bytes_that_are_not_record_are_said_to_be_none(kind: int, data: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        codec.decode(kind, data, 1)
