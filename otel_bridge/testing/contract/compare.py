"""Comparisons of what a tracker holds with what it was given; plain functions, for tests of any kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from otel_bridge.exporter import RunWriter
from otel_bridge.records import Distribution, Record, Row
from otel_bridge.testing.contents import Contents, value_text
from otel_bridge.testing.delivery import deliver


def written(writer: RunWriter, records: Sequence[Record]) -> None:
    """Give *records* behind what *writer* holds to it, expect none refused, close it."""
    refused = deliver(writer, records, held=writer.durable())
    writer.close()
    same(refused, list[int](), "records refused")


def same(seen: object, wanted: object, what: str) -> None:
    """Compare; the contract's own words, since pytest does not rewrite the asserts of a library.

    Raises:
        AssertionError: They differ; the message shows what is missing and what is too much where that can be
            determined.
    """
    if seen == wanted:
        return
    detail = f"seen {_short(seen)}, expected {_short(wanted)}"
    if isinstance(seen, Counter) and isinstance(wanted, Counter):
        seen_counts = cast("Counter[object]", seen)
        wanted_counts = cast("Counter[object]", wanted)
        missing = wanted_counts - seen_counts
        extra = seen_counts - wanted_counts
        detail = f"missing {_short(dict(missing))}, too much {_short(dict(extra))}"
    raise AssertionError(f"{what}: {detail}")


def same_scalars(contents: Contents, records: Iterable[Record]) -> None:
    """Compare key, step and value of every scalar, doubles counted; a step of none matches any."""
    rows = [record for record in records if isinstance(record, Row)]
    wanted = Counter(
        (key, row.step, value_text(value))
        for row in rows
        for key, value in row.values.items()
        if not isinstance(value, Distribution)
    )
    same(Counter(scalar.triple for scalar in contents.scalars), wanted, "scalars")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 600 else f"{shown[:600]}… ({len(shown)} characters)"
