"""Left-out rollouts -> the event ``rl.rollouts``: per group the mergeable statistics of their rewards.

Packed by hand: a call may leave out a thousand of a hundred groups.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from otel_bridge import semconv
from otel_bridge.emit.rows import SCOPE
from otel_bridge.emit.wire import Attribute, attributes, fixed64, message, text, varint

_COUNT: Final = text(1, "count")
_NAMES: Final = [text(1, name) + b"\x12\x09\x21" for name in ("sum", "sum_squares", "min", "max")]
# Each KeyValue as an element of the list: its tag, its length, then key and a double.
_SUM, _SQUARES, _MIN, _MAX = (b"\x0a" + varint(len(head) + 8) + head for head in _NAMES)
_NUMBERS: Final = Struct("<" + "".join(f"{len(head)}sd" for head in (_SUM, _SQUARES, _MIN, _MAX)))


def left_out_event(
    rewards: Sequence[float | None],
    groups: Sequence[str | None],
    kept: Sequence[int],
    place: tuple[int | None, str | None, str | None],
    event_seq: int,
) -> bytes:
    """Encode the event as a ``ScopeLogs``.

    Args:
        rewards: Of all rollouts of the call, one each.
        groups: One each; those without a group are counted under the empty name.
        kept: Indices that are not left out.
        place: Step, split, and the role where it differs from the resource's.
        event_seq: Number of the event.
    """
    left = list(rewards)
    for index in kept:
        left[index] = None
    members: defaultdict[str | None, list[float]] = defaultdict(list)
    for reward, group in zip(left, groups, strict=True):
        if reward is not None:
            members[group].append(reward)
    body = b"".join([_entry(name or "", values) for name, values in members.items()])
    step, split, role = place
    pairs: list[tuple[str, Attribute]] = [
        (semconv.STEP, step),
        (semconv.SPLIT, split),
        (semconv.ROLE, role),
        (semconv.ROLLOUTS_COUNT, len(rewards) - len(kept)),
        (semconv.EVENT_SEQ, event_seq),
    ]
    now = time.time_ns()
    record = (
        fixed64(1, now),
        message(5, message(6, body)),
        attributes(6, [pair for pair in pairs if pair[1] is not None]),
        fixed64(11, now),
        text(12, semconv.EVENT_ROLLOUTS),
    )
    return SCOPE + message(2, b"".join(record))


def _entry(name: str, values: Sequence[float]) -> bytes:
    """Encode ``name: {count, sum, sum_squares, min, max}`` as one element of a ``KeyValueList``."""
    squares = sum([value * value for value in values])
    numbers = _NUMBERS.pack(_SUM, sum(values), _SQUARES, squares, _MIN, min(values), _MAX, max(values))
    return message(1, b"".join((text(1, name), _head(len(values)), numbers)))


@lru_cache(maxsize=1024)
def _head(count: int) -> bytes:
    """Encode all of an entry between its name and its numbers."""
    counted = message(1, _COUNT + message(2, b"\x18" + varint(count)))
    size = len(counted) + _NUMBERS.size
    inner = b"\x32" + varint(size)
    return b"\x12" + varint(len(inner) + size) + inner + counted
