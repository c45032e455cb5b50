"""Which lines are held, and what is given again after a restart."""

from __future__ import annotations

import pytest

from otel_bridge.errors import JournalError
from otel_bridge.testing import MemoryTable
from otel_bridge_wandb.online.line_ledger import MAX_SENT, LineLedger


class FullTable(MemoryTable):
    is_full = False

    def put(self, key: str, value: bytes) -> None:
        if self.is_full:
            raise JournalError("the disk is full")
        super().put(key, value)


class KilledTable(MemoryTable):
    """A memory whose process is killed before a further change."""

    changes_left: int | None = None

    def put(self, key: str, value: bytes) -> None:
        self._change()
        super().put(key, value)

    def delete(self, key: str) -> None:
        self._change()
        super().delete(key)

    def _change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise KeyboardInterrupt
            self.changes_left -= 1


def logged(lines: LineLedger, *positions: int) -> None:
    lines.announce(positions)
    lines.logged(len(positions))


def logged_table(lines: LineLedger, *positions: int, at: int) -> None:
    lines.announce(positions, "t", at)
    lines.logged(1, at + 5)


def test_a_position_is_safe_when_the_server_holds_its_line() -> None:
    lines = LineLedger(MemoryTable(), 0)
    logged(lines, 2, 3, 7)
    logged(lines, 8)

    seen = [lines.durable()]
    for held in (1, 2, 3, 4):
        lines.advance(held)
        seen.append(lines.durable())

    assert seen == [0, 2, 3, 7, 8]


def test_the_memory_holds_only_lines_that_are_not_known_to_be_held() -> None:
    memory = MemoryTable()
    lines = LineLedger(memory, 0)
    for position in range(1, 1001):
        logged(lines, position)
        lines.advance(position)

    assert dict(memory.items()) == {"held": b"[1000, 1000]"}


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_kill_while_the_memory_forgets_lines_that_arrived_sends_none_of_them_again(
    changes: int,
) -> None:
    memory = KilledTable()
    before = LineLedger(memory, 0)
    logged(before, 1, 2)
    logged(before, 3, 4)
    memory.changes_left = changes
    with pytest.raises(KeyboardInterrupt):
        before.advance(4)
    memory.changes_left = None

    lines = LineLedger(memory, 4)

    assert (lines.durable(), lines.due([1, 2, 3, 4, 5])) == (4, [5])


@pytest.mark.parametrize("changes", [0, 1])
def test_a_kill_while_the_memory_forgets_a_committed_increment_sends_none_of_it_again(
    changes: int,
) -> None:
    memory = KilledTable()
    logged_table(LineLedger(memory, 0), 1, 2, at=100)
    second = LineLedger(memory, 1)
    second.lose_pending(200)
    logged_table(second, 1, 2, at=300)
    second.advance(2)
    memory.changes_left = changes
    with pytest.raises(KeyboardInterrupt):
        second.committed({"t": [303]})
    memory.changes_left = None

    third = LineLedger(memory, 2)
    third.committed({"t": [303]})
    third.lose_pending(400)

    assert (third.durable(), third.due([1, 2, 3])) == (2, [3])


def test_a_new_writer_goes_on_right_behind_the_servers_count() -> None:
    memory = MemoryTable()
    before = LineLedger(memory, 0)
    logged(before, 1, 2, 3)
    before.announce([4, 5, 6])  # killed while it logged these: two of them arrived

    lines = LineLedger(memory, 5)

    assert (lines.next, lines.durable(), list(lines.due([1, 4, 5, 6, 7]))) == (
        5,
        5,
        [6, 7],
    )
    logged(lines, 6, 7)
    lines.advance(7)
    assert lines.durable() == 7


def test_lines_that_were_announced_and_never_logged_are_void() -> None:
    memory = MemoryTable()
    lines = LineLedger(memory, 0)
    lines.announce([1, 2, 3])
    lines.logged(1)
    logged(lines, 3)
    lines.advance(2)

    assert (lines.next, lines.durable(), LineLedger(memory, 2).durable()) == (2, 3, 3)


def test_an_increment_that_was_logged_is_not_due_again_when_the_memory_is_full_behind_it() -> (
    None
):
    memory = FullTable()
    lines = LineLedger(memory, 0)
    lines.announce([1, 2], "t", 1000)
    memory.is_full = True
    with pytest.raises(JournalError):
        lines.logged(1, 1005)
    memory.is_full = False
    due = list(lines.due([1, 2, 3]))
    lines.advance(1)
    waiting = lines.durable()
    lines.committed({"t": [1002]})

    assert (due, waiting, lines.durable()) == ([3], 0, 2)


def test_an_increment_is_safe_only_when_its_file_is_committed() -> None:
    lines = LineLedger(MemoryTable(), 0)
    logged(lines, 1)
    logged_table(lines, 2, 3, at=100)
    logged(lines, 4)
    lines.advance(3)

    before = (lines.durable(), lines.awaited_tables())
    lines.committed({"t": [99, 106]})
    other = lines.durable()
    lines.committed({"t": [102]})

    assert (before, other, lines.durable(), lines.awaited_tables()) == (
        (1, {"t": 100}),
        1,
        4,
        {},
    )


def test_rollouts_whose_file_never_came_are_due_again_and_rows_behind_them_are_not() -> (
    None
):
    memory = MemoryTable()
    before = LineLedger(memory, 0)
    logged_table(before, 1, 2, at=100)
    logged(before, 3)
    before.advance(2)

    lines = LineLedger(memory, 2)
    lines.lose_pending(150)
    due = list(lines.due([1, 2, 3, 4]))
    logged_table(lines, 1, 2, at=200)
    logged(lines, 4)
    lines.advance(4)
    waiting = lines.durable()
    lines.committed({"t": [203]})

    assert (due, list(lines.due([1, 2, 3, 4])), waiting, lines.durable()) == (
        [1, 2, 4],
        [],
        0,
        4,
    )
    assert dict(memory.items()) == {"held": b"[4, 4]"}


def test_rollouts_sent_again_and_killed_before_they_arrived_are_due_once_more() -> None:
    memory = MemoryTable()
    first = LineLedger(memory, 0)
    logged_table(first, 1, 2, at=100)
    first.advance(1)
    second = LineLedger(memory, 1)
    second.lose_pending(150)
    logged_table(second, 1, 2, at=200)

    third = LineLedger(memory, 1)
    third.committed({"t": [300]})
    third.lose_pending(350)

    assert (third.durable(), list(third.due([1, 2]))) == (0, [1, 2])


def test_an_increment_that_is_never_seen_is_not_sent_for_ever() -> None:
    memory = MemoryTable()
    for turn in range(MAX_SENT):
        lines = LineLedger(memory, turn)
        lines.lose_pending(turn * 100)
        assert list(lines.due([1])) == [1]
        logged_table(lines, 1, at=turn * 100 + 50)
        lines.advance(turn + 1)

    lines = LineLedger(memory, MAX_SENT)
    lines.lose_pending(10_000)

    assert (list(lines.due([1])), lines.durable()) == ([], 1)


def test_a_run_that_was_deleted_at_the_server_is_written_from_the_beginning() -> None:
    memory = MemoryTable()
    before = LineLedger(memory, 0)
    logged(before, 1, 2)
    before.advance(2)

    lines = LineLedger(memory, 0)

    assert (lines.durable(), list(lines.due([1, 2]))) == (0, [1, 2])


def test_a_dead_letter_that_is_tried_again_is_due_and_moves_no_position() -> None:
    lines = LineLedger(MemoryTable(), 0)
    logged(lines, 1, 2)

    due = list(lines.due([0]))
    logged_table(lines, 0, at=100)
    logged_table(lines, 0, at=200)
    lines.advance(4)
    waiting = (lines.durable(), len(lines.pending))
    lines.committed({"t": [102]})

    assert (due, waiting) == ([0], (2, 2))
    assert (lines.durable(), len(lines.pending), list(lines.due([2, 3]))) == (2, 1, [3])


def test_records_of_a_lost_increment_that_are_not_kept_any_more_hold_up_nothing() -> (
    None
):
    memory = MemoryTable()
    before = LineLedger(memory, 0)
    logged_table(before, 1, 2, at=100)
    logged_table(before, 3, 4, at=200)
    logged(before, 5)
    before.advance(3)

    lines = LineLedger(memory, 3, oldest=4)
    lines.lose_pending(300)
    due = list(lines.due([4, 5, 6]))
    logged_table(lines, 4, at=400)
    logged(lines, 6)
    lines.advance(5)
    lines.committed({"t": [402]})

    assert (due, lines.durable()) == ([4, 6], 6)
    assert dict(memory.items()) == {"held": b"[5, 6]"}
