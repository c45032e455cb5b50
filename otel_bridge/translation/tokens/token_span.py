"""Spans ``rl.tokens`` -> the sums and streams of the tokens of rollouts. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.tokens``.

numpy is imported by what reads a span, since most bridges see none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.tokens.names import MISMATCH
from otel_bridge.tokens.statistics import BUCKETS, DECILES, Figure, Numbers
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.step_rows import StepSpan

_TYPES = {
    semconv.TOKENS_FIGURES: "<f8",
    semconv.TOKENS_DECILES: "<f8",
    semconv.TOKENS_BUCKETS: "<i8",
    semconv.TOKENS_LENGTHS: "<i8",
    semconv.TOKENS_STREAM: "<f4",
}
"""Beginning of the keys of attributes that hold many numbers, to the type of these."""
_Lists: TypeAlias = dict[str, dict[str, Numbers]]
"""Beginning of the keys, then the rest of a key, to the numbers."""
_MAX_FIGURES = 32
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class TokenSpan(StepSpan):
    """Holds one span of values of tokens, as received.

    Attributes:
        figures: Figure by name, of its rollouts.
        streams: Trace id to the 32-bit floats of each stream by name.
        texts: Texts of the tokens by trace id.
    """

    figures: Mapping[str, Figure] = field(kw_only=True)
    streams: Mapping[str, Mapping[str, bytes]] = field(kw_only=True)
    texts: Mapping[str, list[str]] = field(kw_only=True)

    @property
    def has_mismatch(self) -> bool:
        """Return whether its sender compared the two log-probabilities."""
        return MISMATCH[0] in self.figures


def read_token_span(span: Span) -> TokenSpan | None:
    """Return what *span* holds.

    ``None`` without a step, a time, or a different rollout for each link.

    What does not have the size that the number of rollouts demands makes the whole span unreadable,
    since it is unknown which rollouts its numbers belong to. The caller counts it then.
    """
    attributes = mapping_of(
        pair for pair in span.attributes if not pair.key.startswith((*_TYPES,))
    )
    step = int_in(attributes, semconv.STEP)
    rollouts = _rollouts(span)
    if step is None or not rollouts or not span.end_time_unix_nano:
        return None
    try:
        lists = _lists(span.attributes)
        return TokenSpan(
            span.span_id.hex(),
            step,
            text_in(attributes, semconv.ROLE) or None,
            span.end_time_unix_nano,
            rollouts,
            figures=dict(_figures(lists, len(rollouts))),
            streams=_streams(lists, rollouts),
            texts=_texts(text_in(attributes, semconv.TOKENS_TEXTS), rollouts),
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        # Whatever another producer sent.
        return None


def _lists(attributes: Iterable[KeyValue]) -> _Lists:
    """Return the attributes that hold many numbers.

    Raises:
        ValueError: One of them is neither bytes nor an array, or an entry or the size does not fit.
    """
    lists: _Lists = {beginning: {} for beginning in _TYPES}
    for pair in attributes:
        for beginning, kind in _TYPES.items():
            if pair.key.startswith(beginning):
                name = pair.key.removeprefix(beginning)[:_MAX_NAME_CHARS]
                lists[beginning][name] = _numbers(pair.value, kind)
    return lists


def _numbers(value: AnyValue, kind: str) -> Numbers:
    import numpy  # noqa: PLC0415

    if value.HasField("bytes_value"):
        return numpy.frombuffer(value.bytes_value, kind)
    if not value.HasField("array_value"):
        raise ValueError(value)
    # Most SDKs have no bytes. JavaScript's sends a double without a fraction as an integer (2.12).
    entries = [
        entry.int_value if entry.HasField("int_value") else entry.double_value
        for entry in value.array_value.values
    ]
    return numpy.array(entries, kind)


def _rollouts(span: Span) -> tuple[str, ...]:
    """Return the trace ids that *span* links to, 32 hex digits each.

    None of them unless all are valid and different.
    """
    trace_ids = tuple(
        link.trace_id.hex() for link in span.links if len(link.trace_id) == 16
    )
    # The numbers follow the order of the links: one that is left out would shift all others.
    if len(set(trace_ids)) == len(span.links):
        return trace_ids
    return ()


def _figures(lists: _Lists, rollouts: int) -> Iterator[tuple[str, Figure]]:
    """Yield the first `_MAX_FIGURES` figures by name: each becomes keys of the run and bits of each rollout.

    Raises:
        ValueError: One of them has another size, a number that is not finite, or a bucket that does
            not exist: the row of its step could not be made.
    """
    import numpy  # noqa: PLC0415

    for name, entries in [*lists[semconv.TOKENS_FIGURES].items()][:_MAX_FIGURES]:
        # Maxima are optional: two numbers or three for each rollout.
        counts, sums, *maxima = entries.reshape(-1, rollouts).tolist()
        if len(maxima) > 1 or not numpy.isfinite(entries).all():
            raise ValueError(name)
        deciles = lists[semconv.TOKENS_DECILES].get(name, numpy.zeros(2 * DECILES))
        decile_counts, decile_sums = deciles.reshape(-1, DECILES).tolist()
        buckets = (
            lists[semconv.TOKENS_BUCKETS]
            .get(name, numpy.zeros(0, "<i8"))
            .reshape(-1, 2)
        )
        is_bucket = (buckets[:, 0] >= 0) & (buckets[:, 0] < BUCKETS)
        if not is_bucket.all():
            raise ValueError(name)
        figure = Figure(
            counts,
            sums,
            maxima[0] if maxima else [],
            decile_counts,
            decile_sums,
            Counter(dict(buckets.tolist())),
        )
        yield name, figure


def _streams(lists: _Lists, rollouts: tuple[str, ...]) -> dict[str, dict[str, bytes]]:
    """Return the streams by trace id and name; a stream may be of the first rollouts alone.

    Raises:
        ValueError: A stream ends within a rollout.
    """
    lengths = [*map(int, lists[semconv.TOKENS_LENGTHS].get("", []))]
    streams: dict[str, dict[str, bytes]] = {}
    for name, entries in lists[semconv.TOKENS_STREAM].items():
        start = 0
        for trace_id, length in zip(rollouts, lengths, strict=False):
            if start >= len(entries):
                break
            row = streams.setdefault(trace_id, {})
            row[name] = entries[start : start + length].tobytes()
            start += length
        # What is left belongs to no rollout, so that the lengths are wrong for all of them.
        if start != len(entries):
            raise ValueError(name)
    return streams


def _texts(text: str, rollouts: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the texts of the tokens by trace id; *text* is a JSON object by the number of the rollout.

    Raises:
        ValueError: It is not JSON, or an index is not a number.
        LookupError: An index is beyond the rollouts.
        AttributeError: It is not an object.
        TypeError: An entry is not a list.
    """
    if not text:
        return {}
    indexed = cast("dict[str, list[object]]", orjson.loads(text))
    return {
        rollouts[int(index)]: [str(entry) for entry in entries]
        for index, entries in indexed.items()
    }
