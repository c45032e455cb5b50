from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge.bridge.ledger import run_ledger
from otel_bridge.bridge.ledger.database import open_for_reading
from otel_bridge.bridge.ledger.queries import SegmentPosition
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.ledger.translation_state import LedgerState
from otel_bridge.errors import FormatVersionError, JournalFullError
from otel_bridge.records import PHASES_ID, STATISTICS_ID, Config, Row
from support.otlp.memory_state import MemoryState


def rows(count: int, first: int = 1) -> list[Row]:
    return [
        Row(
            f"m:i:{number}",
            "t",
            number,
            "t/step",
            number,
            {"t/loss": number / 2},
            {"t/step": number},
        )
        for number in range(first, first + count)
    ]


def numbers(
    ledger: Ledger, after: int = 0, limit: int = 1000, limit_bytes: int = 1 << 20
) -> list[int]:
    view = ledger.view()
    try:
        return [
            record.position
            for record in view.records(
                after, (0,), limit=limit, limit_bytes=limit_bytes
            ).records
        ]
    finally:
        view.close()


def test_a_batch_is_there_after_opening_again_with_its_offsets_and_state(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    source = SegmentPosition("i", 2, 30, b"header")
    ledger.commit(rows(3), [("axis/t/step", b"3")], [source])
    ledger.close()

    again = Ledger(tmp_path / "ledger.sqlite")

    view = again.view()
    assert (again.position, again.counts.rows, again.counts.rollouts) == (3, 3, 0)
    assert view.sources() == [source]
    assert view.state("axis/") == (3, {"axis/t/step": 3})
    assert [(record.position, record.id) for record in view.records(1, (0,), limit=9, limit_bytes=9**9).records] == [
        (2, "m:i:2"), (3, "m:i:3"),
    ]  # fmt: skip


def test_a_batch_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit(rows(1))
    with ledger.database.transaction() as sql:
        pages = sql.execute("PRAGMA page_count").fetchone()[0]
        sql.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(JournalFullError):
        ledger.commit(
            rows(5000, 2), [("axis/t/step", b"9")], [SegmentPosition("i", 0, 9, b"")]
        )

    view = ledger.view()
    assert (numbers(ledger), ledger.position, view.sources(), view.state("axis/")) == (
        [1],
        1,
        [],
        (1, {}),
    )


def test_positions_go_on_although_all_records_are_deleted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit(rows(3))
    ledger.prune(3)
    ledger.close()

    again = Ledger(tmp_path / "ledger.sqlite")
    again.commit(rows(1, 4))

    assert numbers(again) == [4]


def test_the_file_gives_its_pages_back_but_those_that_the_next_records_fill(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.commit(rows(120_000))
    checkpoint(ledger)
    full = path.stat().st_size

    while ledger.prune(119_990):
        pass

    checkpoint(ledger)
    spare = path.stat().st_size
    assert 4 << 20 > spare > 3 << 20
    assert spare < full / 2
    assert numbers(ledger) == list(range(119_991, 120_001))
    ledger.give_back()
    checkpoint(ledger)
    assert path.stat().st_size < full / 10


def test_rows_that_the_translation_made_are_counted_by_their_source_also_after_a_restart(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    logged, statistics, phases = rows(3)
    ledger.commit(
        [
            logged,
            replace(statistics, id=f"{STATISTICS_ID}:train:1"),
            replace(phases, id=f"{PHASES_ID}:1:a1"),
        ]
    )
    ledger.close()

    again = Ledger(path)

    assert (again.counts.rows, again.counts.derived_rows) == (
        3,
        {"rollout statistics": 1, "phases": 1},
    )
    assert again.counts.rows_by_axis == {logged.axis: 1}


def test_rows_without_a_step_count_for_their_role(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    stepped, stock = rows(2)

    ledger.commit([stepped, replace(stock, role="svc", step=None, axis=None)])

    assert ledger.counts.rows_by_axis == {stepped.axis: 1, "svc/step": 1}
    assert ledger.counts.row_times["svc/step"] == stock.time_unix_ns


def test_pages_that_one_call_left_go_though_nothing_more_is_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.commit(
        [replace(row, values={"text": 1.0, "x" * 20_000: 2.0}) for row in rows(3_000)]
    )
    assert ledger.prune(3_000) == 3_000
    checkpoint(ledger)
    assert path.stat().st_size > 20 << 20  # at most some pages a call

    for _ in range(10):
        assert ledger.prune(3_000) == 0

    checkpoint(ledger)
    assert path.stat().st_size < 5 << 20


def checkpoint(ledger: Ledger) -> None:
    ledger.database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Ledger(tmp_path / "ledger.sqlite")
    finally:
        os.umask(before)

    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()
    }
    assert modes == dict.fromkeys(modes, 0o600)


def test_a_read_ends_at_the_limits_and_says_how_far_it_went(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit([*rows(3), Config("c:1", None, {"a": 1}, 1), *rows(2, 4)])
    view = ledger.view()

    by_count = view.records(0, (0,), limit=2, limit_bytes=1 << 20)
    by_size = view.records(0, (0,), limit=99, limit_bytes=1)
    of_a_kind = view.records(0, (3,), limit=99, limit_bytes=1 << 20)

    assert [
        [record.position for record in batch.records]
        for batch in (by_count, by_size, of_a_kind)
    ] == [
        [1, 2],
        [1],
        [4],
    ]
    assert [
        (batch.through, batch.last) for batch in (by_count, by_size, of_a_kind)
    ] == [
        (2, 6),
        (1, 6),
        (6, 6),
    ]


def test_a_record_that_cannot_be_decoded_is_distinguished(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit(rows(3))
    with ledger.database.transaction() as sql:
        sql.execute("UPDATE records SET data = x'ff' WHERE position = 2")

    batch = ledger.view().records(0, (0,), limit=99, limit_bytes=1 << 20)

    assert [record.position for record in batch.records] == [1, 3]
    assert [broken[:3] for broken in batch.broken] == [(2, 0, b"\xff")]


def test_the_memory_of_a_destination_is_its_own_and_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    one, other = (
        ledger.memory(ledger.destination(name, {}).id) for name in ("one", "other")
    )
    one.put("line/2", b"b")
    one.put("line/1", b"a")
    one.put("note", b"c")
    one.delete("note")
    other.put("line/1", b"z")
    ledger.close()

    again = Ledger(tmp_path / "ledger.sqlite")

    memory = again.memory(again.destination("one", {}).id)
    assert (list(memory.items("line/")), memory.get("note")) == (
        [("line/1", b"a"), ("line/2", b"b")],
        None,
    )


def test_positions_are_kept_for_each_place_an_exporter_delivers_to(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit(rows(5))
    here = ledger.destination("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:///a"})
    ledger.save(replace(here, written=5, durable=5))
    ledger.prune(2)

    there = ledger.destination("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:///b"})

    assert (
        ledger.destination("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:///a"}).written
        == 5
    )
    assert (there.written, there.id == here.id) == (2, False)


def test_what_a_destination_no_longer_named_has_not_got_can_be_taken_and_is_counted(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    gone, stays = ledger.destination("gone", {}), ledger.destination("stays", {})
    ledger.commit(rows(10))
    ledger.name_destinations([stays.id])

    ledger.evict_from_unnamed(6)

    found = {
        item.exporter: (item.named, item.durable, item.evicted)
        for item in ledger.view().destinations()
    }
    assert found == {"gone": (False, 6, 6), "stays": (True, 0, 0)}
    assert gone.id != stays.id


def test_dead_letters_are_kept_counted_and_can_be_discarded(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    at = ledger.destination("mlflow", {})
    ledger.dead_letter(at.id, 4, 0, b"[]", record_id="m:i:4", reason="too odd")

    counted = ledger.destination("mlflow", {}).dead_letters
    discarded = ledger.discard_dead_letters("mlflow")

    assert (counted, discarded, ledger.destination("mlflow", {}).dead_letters) == (
        1,
        1,
        0,
    )


def test_dead_letters_are_looked_up_by_more_ids_and_larger_ones_than_sqlite_takes(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    at = ledger.destination("mlflow", {})
    for position in (4, 5):
        ledger.dead_letter(
            at.id, position, 0, b"[]", record_id=f"m:i:{position}", reason="odd"
        )

    letters = ledger.view().dead_letters([*range(2, 300_000), 10**30, -(10**30)])

    assert [letter.id for letter in letters] == [2]
    assert ledger.view().dead_letters([]) == []


def test_a_tracker_that_refuses_everything_releases_the_content_of_no_other_trackers_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ledger, "DEAD_LETTERS_KEPT", 2)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    at = ledger.destination("wandb", {})
    other = ledger.destination("mlflow", {})
    ledger.dead_letter(other.id, 1, 0, b"[]", record_id="1", reason="odd")

    for position in range(1, 5):
        record = f"{position}"
        ledger.dead_letter(at.id, position, 0, b"[]", record_id=record, reason="odd")

    kept = [
        (letter.exporter, letter.position)
        for letter in ledger.view().dead_letters()
        if letter.data
    ]
    assert kept == [("mlflow", 1), ("wandb", 3), ("wandb", 4)]


def test_a_record_that_is_refused_again_stays_one_dead_letter_with_the_last_reason(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    at = ledger.destination("wandb", {})
    other = ledger.destination("mlflow", {})
    ledger.dead_letter(other.id, 4, 0, b"[]", record_id="m:i:4", reason="odd")

    added = [
        ledger.dead_letter(at.id, position, 0, b"[]", record_id=record, reason=reason)
        for position, record, reason in (
            (4, "m:i:4", "too odd"),
            (4, "m:i:4", "still odd"),
            (4, "m:other:4", "of a ledger before"),
        )
    ]

    assert added == [1, 0, 1]
    assert [
        (letter.id, letter.exporter, letter.reason)
        for letter in ledger.view().dead_letters()
    ] == [
        (1, "mlflow", "odd"),
        (3, "wandb", "still odd"),
        (4, "wandb", "of a ledger before"),
    ]
    assert ledger.destination("wandb", {}).dead_letters == 2


def test_a_ledger_can_be_read_while_it_is_written_to(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit(rows(2))
    view = ledger.view()
    with ledger.database.transaction() as sql:
        sql.execute("DELETE FROM records")

        assert [
            record.position
            for record in view.records(0, (0,), limit=9, limit_bytes=9**9).records
        ] == [1, 2]


def test_a_ledger_on_a_shared_file_system_has_one_connection_and_no_shared_memory(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", exclusive=True)
    ledger.commit(rows(2))

    assert numbers(ledger) == [1, 2]
    assert not (tmp_path / "ledger.sqlite-shm").exists()
    with (
        pytest.raises(sqlite3.OperationalError, match="locked"),
        sqlite3.connect(ledger.database.path, timeout=0) as sql,
    ):
        sql.execute("SELECT * FROM records").fetchall()


KEYS = st.sampled_from(
    ["run", "run/life", "axis/a", "trace/1", "trace/2", "trace/10", "key/ü"]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"),
            KEYS,
            st.one_of(st.integers(0, 9), st.binary(max_size=3000), st.just("x" * 2000)),
        ),
        st.tuples(st.just("delete"), KEYS, st.none()),
        st.tuples(
            st.sampled_from(["commit", "restart", "roll back"]), st.none(), st.none()
        ),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(STEPS)
def test_state_in_the_ledger_is_state_in_memory_over_commits_restarts_and_failed_commits(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, object]]
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("state") / "ledger.sqlite")
    state, memory = LedgerState(ledger.view(), limit_bytes=2500), MemoryState()
    committed = memory.snapshot()
    for what, key, value in steps:
        if what == "set":
            state.set(key, value)
            memory.set(key, value)
        elif what == "delete":
            state.delete(key)
            memory.delete(key)
        elif what == "roll back":
            state, memory = (
                LedgerState(ledger.view(), limit_bytes=2500),
                MemoryState(committed),
            )
        else:
            ledger.commit([], state.changes())
            state.committed()
            committed = memory.snapshot()
            state = (
                LedgerState(ledger.view(), limit_bytes=2500)
                if what == "restart"
                else state
            )
        for prefix in ("run/", "trace/", "trace/1"):
            assert list(state.items(prefix)) == memory.items(prefix)
        assert {key: state.get(key) for key in memory.snapshot()} == memory.snapshot()
    ledger.close()


def test_a_destination_named_later_knows_how_many_records_were_gone_by_then(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.commit(rows(5))
    first = ledger.destination("file", {})
    ledger.prune(3)

    second = ledger.destination("trackio", {"TRACKIO_DIR": "/t"})

    assert (first.missed, second.missed, second.written) == (0, 3, 3)
    assert ledger.destination("trackio", {"TRACKIO_DIR": "/t"}) == second


def test_the_trackers_own_id_of_the_run_is_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.save(replace(ledger.destination("mlflow", {}), tracker_run_id="m1"))
    ledger.close()

    again = Ledger(tmp_path / "ledger.sqlite")

    assert again.destination("mlflow", {}).tracker_run_id == "m1"


@pytest.mark.parametrize("version", [1, 99])
def test_a_ledger_of_another_format_is_refused_with_what_to_do(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    with ledger.database.transaction() as sql:
        sql.execute(f"PRAGMA user_version = {version}")
    ledger.close()

    for opening in (Ledger, open_for_reading):
        with pytest.raises(
            FormatVersionError, match=f"format {version}.*deliver the run with"
        ):
            opening(path)
