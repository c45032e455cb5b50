"""Tests of the JSON of dataclasses in the state."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_bridge.bridge.ledger.codec import decode_value, encode_value
from otel_bridge.records import Json, Status
from otel_bridge.translation.packing import packed, unpacked


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    labels: tuple[str, ...]


@dataclass(slots=True)
class Whole:
    track: tuple[str, int]
    step: int | None
    data: bytes
    numbers: set[int]
    parts: dict[Key, list[float]]
    by_step: dict[tuple[tuple[str, int], int], bytes]
    facts: dict[str, Json]
    status: Status | None
    keys: list[Key] = field(default_factory=list[Key])


def test_a_dataclass_with_others_inside_is_restored_from_the_ledger() -> None:
    whole = Whole(
        ("trainer", 2),
        None,
        b"\0\xff",
        {3, 1},
        {Key("a", ("x", "y")): [0.5, float("inf")], Key("b", ()): []},
        {(("", 1), 7): b"half"},
        {"messages": [{"role": "user", "parts": []}], "empty": {}},
        Status.FAILED,
        [Key("", ("z",))],
    )

    stored = encode_value(packed(whole))

    restored = unpacked(Whole, decode_value(stored))
    assert restored == whole
    # Equal to its text as well, which has no `value`.
    assert restored.status is Status.FAILED
