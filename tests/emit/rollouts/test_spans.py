"""Hand-packed spans equal what the public encoder makes of the same data."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from otel_bridge.emit.encode import span as span_encoding

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_SCALAR = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | _TEXT
_VALUE = (
    _SCALAR
    | st.lists(_SCALAR, max_size=4)
    | st.dictionaries(_TEXT, _SCALAR, max_size=3)
)
_SPAN_ID = st.integers(1, 2**64 - 1)
_TRACE_ID = st.integers(1, 2**128 - 1)
_TIME = st.integers(1, 2**63)


def context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False)


class Attributes(dict[str, Any]):
    """What the SDK keeps attributes in counts those it dropped."""

    dropped = 0


@given(
    st.tuples(_TRACE_ID, _SPAN_ID, st.none() | _SPAN_ID),
    _TEXT.filter(bool),
    st.tuples(_TIME, _TIME),
    st.dictionaries(_TEXT, _VALUE, max_size=6),
    st.none() | _TEXT,
    st.none() | st.tuples(_TRACE_ID, _SPAN_ID),
)
def test_a_span_equals_that_of_the_public_encoder(
    ids: tuple[int, int, int | None],
    name: str,
    times: tuple[int, int],
    attributes: dict[str, Any],
    error: str | None,
    link: tuple[int, int] | None,
) -> None:
    trace_id, span_id, parent_id = ids
    facts = {"exception.type": "Error", "exception.message": error or ""}
    theirs = ReadableSpan(
        name=name,
        context=context(trace_id, span_id),
        parent=None if parent_id is None else context(trace_id, parent_id),
        resource=Resource({}),
        attributes=Attributes(attributes),
        events=() if error is None else (Event("exception", facts, times[1]),),
        links=() if link is None else (Link(context(*link)),),
        kind=SpanKind.CLIENT,
        status=Status(StatusCode.UNSET)
        if error is None
        else Status(StatusCode.ERROR, error),
        start_time=times[0],
        end_time=times[1],
        instrumentation_scope=InstrumentationScope("otel_bridge"),
    )
    [resource_spans] = encode_spans([theirs]).resource_spans

    ours = span_encoding.span(
        (
            trace_id.to_bytes(16, "big"),
            span_id.to_bytes(8, "big"),
            parent_id and parent_id.to_bytes(8, "big"),
        ),
        name,
        times,
        span_encoding.span_attributes(attributes.items()),
        kind=span_encoding.KIND_CLIENT,
        events=b""
        if error is None
        else span_encoding.exception_event(times[1], "Error", error),
        links=b""
        if link is None
        else span_encoding.link(
            link[0].to_bytes(16, "big"), link[1].to_bytes(8, "big")
        ),
        error=error,
    )

    assert (
        span_encoding.scope_spans([ours])
        == resource_spans.scope_spans[0].SerializeToString()
    )


@given(st.lists(st.binary(max_size=20), max_size=5), _TEXT)
def test_an_array_of_encoded_texts_equals_the_array_as_text(
    items: list[bytes], name: str
) -> None:
    texts = [item.hex().encode() for item in items]

    packed = span_encoding.span_attributes([(name, span_encoding.utf8_array(texts))])

    whole = span_encoding.span_attributes(
        [(name, ("[" + ",".join(t.decode() for t in texts) + "]"))]
    )
    assert packed == whole
