"""Spans ``rl.tokens`` -> the sums and streams of the tokens of rollouts. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.tokens``.

numpy is imported by what reads a span, since most bridges see none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias, cast

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.tokens.statistics import BUCKETS, MISMATCH, TENTHS, Figure, Numbers
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.step_rows import linked_rollouts

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
_MAX_TOKENS = 1 << 40
"""Most tokens of one rollout: the sum over a step must fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Holds one span of values of tokens, as received.

    Attributes:
        rollouts: Trace ids of its rollouts, 32 hex digits each.
        figures: Figure by name, of its rollouts.
        streams: Trace id to the 32-bit floats of each stream by name.
        texts: Texts of the tokens by trace id.
    """

    end_unix_ns: int
    rollouts: list[str]
    figures: Mapping[str, Figure]
    streams: Mapping[str, Mapping[str, bytes]]
    texts: Mapping[str, list[str]]

    @property
    def has_mismatch(self) -> bool:
        """Return whether its sender compared the two log-probabilities."""
        return MISMATCH[0] in self.figures


def read_token_span(span: Span, attributes: Mapping[str, Json]) -> TokenSpan | None:
    """Return what *span* holds, ``None`` without a different rollout for each link.

    What does not have the size that the number of rollouts demands makes the whole span unreadable,
    since it is unknown which rollouts its numbers belong to. The caller counts it then.
    """
    rollouts = linked_rollouts(span)
    # The numbers follow the order of the links: one that is left out would shift all others.
    if not rollouts or len(set(rollouts)) < len(span.links):
        return None
    try:
        lists = _lists(span.attributes)
        return TokenSpan(
            span.end_time_unix_nano,
            rollouts,
            _figures(lists, len(rollouts)),
            _streams(lists, rollouts),
            _texts(text_in(attributes, semconv.TOKENS_TEXTS), rollouts),
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


def _figures(lists: _Lists, rollouts: int) -> dict[str, Figure]:
    """Return the first `_MAX_FIGURES` figures by name: each becomes keys of the run and bits of each rollout.

    Raises:
        ValueError: One of them has another size, a number that is not finite, a number of tokens
            that cannot be, or a bucket that does not exist: the row of its step could not be made.
    """
    import numpy  # noqa: PLC0415

    figures: dict[str, Figure] = {}
    for name, numbers in [*lists[semconv.TOKENS_FIGURES].items()][:_MAX_FIGURES]:
        of_rollouts = numbers.reshape(-1, rollouts)
        tenths = lists[semconv.TOKENS_DECILES].get(name, numpy.zeros(2 * TENTHS))
        buckets = lists[semconv.TOKENS_BUCKETS].get(name, numpy.zeros(0, "<i8"))
        figure = Figure(of_rollouts, tenths.reshape(2, TENTHS), buckets.reshape(-1, 2))
        is_bucket = (figure.buckets[:, 0] >= 0) & (figure.buckets[:, 0] < BUCKETS)
        is_count = (of_rollouts[:1] >= 0) & (of_rollouts[:1] <= _MAX_TOKENS)
        is_number = numpy.isfinite(numpy.concatenate([numbers, tenths]))
        # Maxima are optional.
        has_rows = len(of_rollouts) in {2, 3}
        if not (has_rows and is_count.all() and is_number.all() and is_bucket.all()):
            raise ValueError(name)
        figures[name] = figure
    return figures


def _streams(lists: _Lists, rollouts: list[str]) -> dict[str, dict[str, bytes]]:
    """Return the streams by trace id and name; a stream may be of the first rollouts alone.

    Raises:
        ValueError: A stream ends within a rollout, so that the lengths are wrong for all of them.
    """
    import numpy  # noqa: PLC0415

    lengths = lists[semconv.TOKENS_LENGTHS].get("", numpy.zeros(0, "<i8"))
    ends = [0, *accumulate(lengths.tolist())]
    streams: dict[str, dict[str, bytes]] = {}
    for name, numbers in lists[semconv.TOKENS_STREAM].items():
        members = bisect_right(ends, len(numbers)) - 1
        if ends[members] != len(numbers):
            raise ValueError(name)
        parts = numpy.split(numbers, ends[1:members])
        for trace_id, part in zip(rollouts, parts, strict=False):
            streams.setdefault(trace_id, {})[name] = part.tobytes()
    return streams


def _texts(text: str, rollouts: list[str]) -> dict[str, list[str]]:
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
    texts: dict[str, list[str]] = {}
    for index, entries in indexed.items():
        texts[rollouts[int(index)]] = [str(entry) for entry in entries]
    return texts
