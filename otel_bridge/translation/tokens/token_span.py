"""Spans ``rl.tokens`` -> the sums and streams of the tokens of rollouts. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.tokens``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.tokens.names import MISMATCH
from otel_bridge.tokens.statistics import DECILES, Figure
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.step_rows import StepSpan

_NUMBERS = (
    semconv.TOKENS_FIGURES,
    semconv.TOKENS_DECILES,
    semconv.TOKENS_BUCKETS,
    semconv.TOKENS_LENGTHS,
    semconv.TOKENS_STREAM,
)
"""Beginnings of the keys of attributes that hold many numbers."""
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

    What does not have the size that the number of rollouts demands makes the whole span unreadable.
    """
    numbers = [pair for pair in span.attributes if pair.key.startswith(_NUMBERS)]
    attributes = mapping_of(
        pair for pair in span.attributes if not pair.key.startswith(_NUMBERS)
    )
    step = int_in(attributes, semconv.STEP)
    rollouts = _rollouts(span)
    if step is None or not rollouts or not span.end_time_unix_nano:
        return None
    try:
        blobs = {pair.key: _blob(pair) for pair in numbers}
        return TokenSpan(
            span.span_id.hex(),
            step,
            text_in(attributes, semconv.ROLE) or None,
            span.end_time_unix_nano,
            rollouts,
            figures=dict(_figures(blobs, len(rollouts))),
            streams=_streams(blobs, rollouts),
            texts=_texts(text_in(attributes, semconv.TOKENS_TEXTS), rollouts),
        )
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        struct.error,
    ):
        # Whatever another producer sent.
        return None


def _blob(pair: KeyValue) -> bytes:
    """Return the numbers of an attribute as bytes; most SDKs have arrays of numbers in their place.

    Raises:
        ValueError: The attribute is neither.
        struct.error: An entry of the array does not fit.
    """
    if pair.value.HasField("bytes_value"):
        return pair.value.bytes_value
    if not pair.value.HasField("array_value"):
        raise ValueError(pair.key)
    entries = [_number(entry) for entry in pair.value.array_value.values]
    return struct.pack(f"<{len(entries)}{_type_of_numbers(pair.key)}", *entries)


def _number(entry: AnyValue) -> float | int:
    """Return an entry of an array; some SDKs send a double without a fraction as an integer (JavaScript 2.12)."""
    if entry.HasField("int_value"):
        return entry.int_value
    return entry.double_value


def _type_of_numbers(key: str) -> str:
    """Return the letter by which `struct` knows the numbers of an attribute."""
    if key.startswith(semconv.TOKENS_STREAM):
        return "f"
    if key == semconv.TOKENS_LENGTHS or key.startswith(semconv.TOKENS_BUCKETS):
        return "q"
    return "d"


def _rollouts(span: Span) -> tuple[str, ...]:
    """Return the trace ids that *span* links to.

    None of them unless all are valid and different.
    """
    trace_ids = tuple(
        link.trace_id.hex() for link in span.links if len(link.trace_id) == 16
    )
    # The numbers follow the order of the links: one that is left out would shift all others.
    if len(set(trace_ids)) == len(span.links):
        return trace_ids
    return ()


def _named(blobs: Mapping[str, bytes], prefix: str) -> Iterator[tuple[str, bytes]]:
    for key, data in blobs.items():
        if key.startswith(prefix) and len(key) > len(prefix):
            yield key[len(prefix) :][:_MAX_NAME_CHARS], data


def _figures(blobs: Mapping[str, bytes], rollouts: int) -> Iterator[tuple[str, Figure]]:
    """Yield the figures by name.

    Raises:
        ValueError: One of them has another size.
        struct.error: A size is not a whole number of numbers.
    """
    for name, data in list(_named(blobs, semconv.TOKENS_FIGURES))[:_MAX_FIGURES]:
        numbers = _doubles(data)
        counts, sums, maxima = (
            numbers[start : start + rollouts]
            for start in range(0, 3 * rollouts, rollouts)
        )
        deciles = _doubles(blobs.get(f"{semconv.TOKENS_DECILES}{name}", b"")) or [
            0.0
        ] * (2 * DECILES)
        # Maxima are optional: two numbers or three for each rollout.
        if (
            len(numbers) not in {2 * rollouts, 3 * rollouts}
            or len(deciles) != 2 * DECILES
        ):
            raise ValueError(name)
        figure = Figure(counts, sums, maxima, deciles[:DECILES], deciles[DECILES:])
        pairs = _integers(blobs.get(f"{semconv.TOKENS_BUCKETS}{name}", b""))
        figure.buckets.update(dict(zip(pairs[::2], pairs[1::2], strict=True)))
        yield name, figure


def _streams(
    blobs: Mapping[str, bytes], rollouts: tuple[str, ...]
) -> dict[str, dict[str, bytes]]:
    """Return the streams by trace id and name.

    Raises:
        ValueError: A stream ends within a rollout.
        struct.error: A size is not a whole number of numbers.
    """
    lengths = _integers(blobs.get(semconv.TOKENS_LENGTHS, b""))
    streams: dict[str, dict[str, bytes]] = {}
    for name, data in _named(blobs, semconv.TOKENS_STREAM):
        start = 0
        for trace_id, length in zip(rollouts, lengths, strict=False):
            if start >= len(data):
                break
            row = streams.setdefault(trace_id, {})
            row[name] = data[start : start + 4 * length]
            start += 4 * length
        # What is left belongs to no rollout, so that the lengths are wrong for all of them.
        if start != len(data):
            raise ValueError(name)
    return streams


def _texts(text: str, rollouts: tuple[str, ...]) -> dict[str, list[str]]:
    if not text:
        return {}
    indexed = cast("dict[str, list[object]]", orjson.loads(text))
    return {
        rollouts[int(index)]: [str(entry) for entry in entries]
        for index, entries in indexed.items()
    }


def _doubles(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def _integers(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 8}q", data))
