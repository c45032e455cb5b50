"""Comparisons of what a tracker holds with what it was given.

Plain functions, for tests of any kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from otel_bridge.exporter import RunWriter
from otel_bridge.records import Distribution, Record, Row
from otel_bridge.testing.contents import Contents, value_text
from otel_bridge.testing.delivery import deliver


def written(writer: RunWriter, records: Sequence[Record]) -> None:
    """Give *records* behind what *writer* holds to it, expect none refused, close it.

    Raises:
        AssertionError: The writer refused some for good.
        ExporterError: As `deliver`.
    """
    refused = deliver(writer, records, held=writer.durable())
    writer.close()
    same(refused, list[int](), "records refused")


def same(actual: object, expected: object, subject: str) -> None:
    """Compare; the contract's own words, since pytest does not rewrite the asserts of a library.

    Raises:
        AssertionError: They differ; the message shows what is missing and what is too much where
            that can be determined.
    """
    if actual == expected:
        return
    detail = f"seen {_short(actual)}, expected {_short(expected)}"
    # Only what differs: two counters of a thousand rows would hide it.
    if isinstance(actual, Counter) and isinstance(expected, Counter):
        seen_counts = cast("Counter[object]", actual)
        wanted_counts = cast("Counter[object]", expected)
        missing = wanted_counts - seen_counts
        extra = seen_counts - wanted_counts
        detail = f"missing {_short(dict(missing))}, too much {_short(dict(extra))}"
    raise AssertionError(f"{subject}: {detail}")


def same_scalars(contents: Contents, records: Iterable[Record]) -> None:
    """Compare key, step and value of every scalar, doubles counted; distributions are left out.

    Raises:
        AssertionError: They differ, as in `same`.
    """
    expected: Counter[tuple[str, int | None, str]] = Counter()
    for record in records:
        if isinstance(record, Row):
            for key, value in record.values.items():
                # Trackers show a distribution as several numbers, under names of their own.
                if not isinstance(value, Distribution):
                    expected[key, record.step, value_text(value)] += 1
    same(Counter(contents.triples()), expected, "scalars")


def _short(value: object) -> str:
    text = repr(value)
    if len(text) <= 600:
        return text
    return f"{text[:600]}… ({len(text)} characters)"
