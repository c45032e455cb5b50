from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge.bridge.ledger.codec import CONFIG, ROW
from otel_bridge.bridge.ledger.recent_cache import CacheBudget, RecentRecords
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.records import Config, Distribution, Record, Row


def row(number: int) -> Row:
    values = {
        "t/loss": number / 3,
        "t/left": math.inf,
        "t/many": Distribution(2, 3.0, 1.0, 2.0, (1.0, 2.0), (2,)),
    }
    return Row(
        f"m:i:{number}", "t", number, "t/step", number, values, {"t/step": number}
    )


def config(number: int) -> Config:
    return Config(f"c:{number}", "t", {"lr": number}, number)


COMMITS = st.lists(
    st.lists(st.sampled_from([row, config]), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40)
@given(
    commits=COMMITS,
    after=st.integers(0, 20),
    forgotten=st.integers(0, 20),
    kinds=st.sampled_from([(ROW,), (CONFIG,), (ROW, CONFIG)]),
    limit=st.integers(1, 9),
    limit_bytes=st.integers(1, 600),
)
def test_records_from_memory_are_those_of_the_ledger(
    commits: list[list[type]],
    after: int,
    forgotten: int,
    kinds: tuple[int, ...],
    limit: int,
    limit_bytes: int,
) -> None:
    with TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.sqlite")
        for made in commits:
            ledger.commit(
                [make(ledger.position + number) for number, make in enumerate(made, 1)]
            )
        ledger.recent.forget(forgotten)
        view = ledger.view()

        found = ledger.records(view, after, kinds, limit=limit, limit_bytes=limit_bytes)

        assert found == view.records(after, kinds, limit=limit, limit_bytes=limit_bytes)
        view.close()
        ledger.close()


def test_what_was_just_committed_is_not_read_from_the_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    records = [row(1), row(2)]
    ledger.commit(records)

    found = ledger.recent.records(0, (ROW,), limit=9, limit_bytes=1 << 20)

    assert found is not None
    assert [id(record) for record in found.records] == [
        id(record) for record in records
    ]
    assert [record.position for record in found.records] == [1, 2]


def added(recent: RecentRecords, first: int, count: int, size_bytes: int = 10) -> None:
    records: list[Record] = [row(number) for number in range(first, first + count)]
    recent.add(
        records,
        [(number, ROW, bytes(size_bytes)) for number in range(first, first + count)],
    )


def held(recent: RecentRecords, after: int) -> list[int] | None:
    found = recent.records(after, (ROW,), limit=99, limit_bytes=1 << 20)
    return (
        None
        if found is None
        else [int(record.id.rpartition(":")[2]) for record in found.records]
    )


def test_the_oldest_commit_goes_when_the_limit_is_reached() -> None:
    recent = RecentRecords(limit_bytes=200, room=CacheBudget(1_000))
    added(recent, 1, 2)
    added(recent, 3, 2)

    added(recent, 5, 3)

    assert (held(recent, 0), held(recent, 2), held(recent, 4)) == (
        None,
        [3, 4, 5, 6, 7],
        [5, 6, 7],
    )


@pytest.mark.parametrize("size_bytes", [60, 1_000])
def test_a_commit_that_finds_no_room_leaves_no_gap_behind(size_bytes: int) -> None:
    room = CacheBudget(200)
    recent = RecentRecords(limit_bytes=400, room=room)
    added(recent, 1, 2)

    added(recent, 3, 1, size_bytes)
    empty = held(recent, 1), room.take(201), room.take(200)
    room.give_back(200)
    added(recent, 4, 1)

    assert (empty, held(recent, 3)) == ((None, False, True), [4])


def test_runs_share_their_room_and_give_it_back() -> None:
    room = CacheBudget(100)
    one, other = RecentRecords(room=room), RecentRecords(room=room)
    added(one, 1, 2)
    added(other, 1, 1)

    refused = held(other, 0)
    one.forget(2)
    added(other, 2, 2)
    other.close()

    assert (refused, held(one, 0), held(other, 1), room.take(100)) == (
        None,
        None,
        None,
        True,
    )
