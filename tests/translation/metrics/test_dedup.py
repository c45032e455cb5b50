from __future__ import annotations

from otel_bridge.translation.metrics.dedup import Deduplicator
from otel_bridge.translation.state import identity
from support.otlp.memory_state import MemoryState


def test_a_hash_is_new_once_also_behind_a_restart() -> None:
    state = MemoryState()
    seen = Deduplicator(state, 10_000)
    hashes = [identity("loss", number) for number in range(2_500)]

    first = [seen.add(each) for each in hashes]
    seen.flush()
    restored = Deduplicator(state, 10_000)
    again = [restored.add(each) for each in hashes]

    assert (all(first), any(again)) == (True, False)
    assert [len(value) // 8 for _, value in state.items("seen/")] == [1_024, 1_024, 452]  # type: ignore[arg-type]


def test_what_a_point_is_distinguished_by() -> None:
    points = [
        ("loss", 1),
        ("loss", 1.0),
        ("loss", "1"),
        ("loss", None),
        ("loss1", ""),
        ("loss", float("nan")),
    ]

    assert len({identity(*parts) for parts in points}) == len(points)
    assert identity("loss", float("nan")) == identity("loss", float("nan"))


def test_beyond_the_limit_the_oldest_go_and_the_state_with_them() -> None:
    state = MemoryState()
    seen = Deduplicator(state, 2_048)

    for number in range(50_000):
        seen.add(identity(number))
        if number % 700 == 0:
            seen.flush()
    seen.flush()

    assert (seen.add(identity(0)), seen.add(identity(49_999))) == (True, False)
    assert sum(len(value) for _, value in state.items("seen/")) <= 8 * 2_048  # type: ignore[arg-type]
