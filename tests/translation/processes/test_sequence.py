from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.processes.sequence import MAX_GAPS, Gap, SequenceTracker


@given(st.permutations(range(1, 13)), st.integers(1, 12))
def test_what_has_come_is_known_by_number_and_by_time_in_any_order(
    order: list[int], come: int
) -> None:
    sequence = SequenceTracker()

    for number in order[:come]:
        sequence.add(number, number * 10)

    here = set(order[:come])
    assert {number for number in range(1, 13) if sequence.seen(number)} == here
    assert {number for number in range(1, 13) if sequence.covers(number * 10)} == here
    assert sequence.missing == max(here) - len(here)


def test_a_sequence_is_restored_from_its_state() -> None:
    sequence = SequenceTracker()
    for number in (1, 2, 5, 9):
        sequence.add(number, number * 10)

    restored = unpacked(SequenceTracker, packed(sequence))

    assert restored == sequence
    assert restored.gaps == [Gap(3, 4, 20, 50), Gap(6, 8, 50, 90)]


def test_gaps_are_bounded_and_the_oldest_stays_missing() -> None:
    sequence = SequenceTracker()

    for number in range(2, 2 * MAX_GAPS + 4, 2):
        sequence.add(number, number)

    assert (len(sequence.gaps), sequence.given_up, sequence.missing) == (
        MAX_GAPS,
        1,
        MAX_GAPS + 1,
    )
    assert sequence.seen(1)
