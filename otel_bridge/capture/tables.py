"""Tables of prompts and responses -> rollouts: each row once, although programs log a growing table whole each time."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from otel_bridge.capture.metric_axes import whole
from otel_bridge.emit.messages.reader import is_message
from otel_bridge.errors import any_error

_PROMPT: Final = re.compile(r"(?:^|.*[_./ -])(?:prompt|input|question|query|instruction|problem|context)s?(?:_text)?$")
_RESPONSE: Final = re.compile(
    r"(?:^|.*[_./ -])(?:response|completion|output|generation|generated|answer|prediction)s?(?:_text)?$"
)
_TEXT: Final = frozenset({"text", "texts", "sample", "samples", "generated_text", "conversation", "messages"})
_REWARD: Final = re.compile(r"(?:^|.*[_./ -])(?:reward|score|return)s?(?:$|[_./ -].*)")
_ADVANTAGE: Final = frozenset({"advantage", "advantages"})
_STEP: Final = frozenset({"step", "global_step", "training_step", "train_step", "iteration"})
_NOT_REWARD: Final = re.compile(
    r"(?:.*[_./ -])?(?:len|lengths?|sizes?|count|tokens?|steps?|epochs?|iter|iteration|index|idx|ids?|uid|rank|seed"
    r"|turns?|version|time|timestamp|seconds|duration)|(?:num|n|len|idx|index)[_./ -].+"
)
"""Sizes, counters, identities and times, whose numbers are not rewards."""
_TRUTH: Final = re.compile(r"ground|truth|label|target|reference|gold|expected")
_WIDE: Final = re.compile(r"(.+?)[_ ]?(\d+)$")
_REWARD_KEY: Final = re.compile(r"(?:^|/)rewards/(.+)/mean$")
_CLOCKS: Final = frozenset({"train/epoch", "train/global_step"})
_EVAL: Final = ("val", "eval", "test")
_MAX_TABLES: Final = 256
_MAX_ROWS: Final = 100_000
"""Most rows of a table whose hashes are remembered."""


class _Roles(NamedTuple):
    """Names the columns of a table by meaning: indices, and names of rewards."""

    prompt: int | None
    response: int
    rewards: dict[str, int]
    advantage: int | None
    step: int | None


@dataclass(slots=True)
class TableRollouts:
    """Holds rollouts of one step, with or without prompts, as columns of `log_generations`."""

    step: int | None
    columns: dict[str, Any] = field(default_factory=dict[str, Any])


class SeenTables:
    """Holds hashes of the rows of the table last logged under each key."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[list[int], int]] = {}

    def new_rows(
        self, key: str, rows: Sequence[Sequence[Any]], step: int, *, own_step: bool
    ) -> Sequence[Sequence[Any]]:
        """Return the rows that were not in the table logged before.

        Args:
            key: Key of the table.
            rows: All its rows.
            step: Step at which it is logged.
            own_step: Whether the rows hold their step, so that equal rows are one row.
        """
        hashes = [_hash(row) for row in rows]
        before, step_before = self._rows.get(key, ([], step))
        if len(self._rows) >= _MAX_TABLES and key not in self._rows:
            del self._rows[next(iter(self._rows))]
        self._rows[key] = (hashes[-_MAX_ROWS:], step)
        if hashes == before and not own_step and step != step_before:
            return rows  # the same text again in a later step
        return rows[_overlap(before, hashes) :]


def _overlap(before: list[int], now: list[int]) -> int:
    """Return how many first rows of *now* are the last rows of *before*: all of a grown table, most of a window."""
    if now[: len(before)] == before:
        return len(before)
    if len(now) == len(before):
        for dropped in range(1, len(before) // 2 + 1):
            if before[dropped:] == now[: len(now) - dropped]:
                return len(now) - dropped
    return 0


def _hash(row: Sequence[Any]) -> int:
    try:
        return hash(tuple("nan" if cell != cell else cell for cell in row))  # noqa: PLR0124  # a NaN equals no other
    except any_error():  # a list of messages, an array
        return hash(tuple(map(repr, row)))


def rollouts_of(
    columns: Sequence[Any], rows: Sequence[Sequence[Any]], logged: Iterable[str] = ()
) -> list[TableRollouts] | None:
    """Return the rollouts in *rows* by step; ``None`` when it is not a table of prompts and responses.

    Such a table has columns of these names, with texts or messages in them: pictures and numbers are not rollouts.

    Args:
        columns: Names of the columns.
        rows: Rows to record.
        logged: Keys that were logged before; ``rewards/<name>/mean`` names the column of a reward function.
    """
    names = [str(name).strip().lower() for name in columns]
    wide = _wide_roles(names)
    functions = {named[1].lower() for key in logged if (named := _REWARD_KEY.search(key))}
    roles = _roles(names, range(len(names)), rows, functions)
    sets = wide or ([] if roles is None else [roles])
    whole_rows = [row for row in rows if len(row) == len(names)]
    if not sets or not all(_holds_texts(one, row) for row in whole_rows for one in sets):
        return None
    steps: dict[tuple[int | None, bool], TableRollouts] = {}
    for row in whole_rows:
        for one in sets:
            step = None if one.step is None else whole(row[one.step])
            prompted = one.prompt is not None and not _is_missing(row[one.prompt])
            found = steps.setdefault((step, prompted), TableRollouts(step))
            _add(found.columns, one, row, list(map(str, columns)), is_wide=bool(wide))
    return list(steps.values())


def has_step(columns: Iterable[Any]) -> bool:
    """Return whether a column is the step of its row."""
    return any(str(name).strip().lower() in _STEP for name in columns)


def split_of(key: str, row: Iterable[str] = ()) -> str:
    """Return the split of a table.

    Args:
        key: Its key, which may name the split.
        row: Keys of the row logged before it, which do so where *key* has no prefix: TRL logs its completions so.
    """
    if "/" in key or key.lower().startswith(_EVAL):
        return "eval" if key.lower().startswith(_EVAL) else "train"
    keys = [one for one in row if one not in _CLOCKS]
    return "eval" if keys and all(one.lower().startswith(_EVAL) for one in keys) else "train"


def _roles(
    names: Sequence[str], indices: Iterable[int], rows: Sequence[Sequence[Any]], functions: Collection[str] = ()
) -> _Roles | None:
    """Return the meaning of the columns *indices*; ``None`` when no response, or nothing besides it, is found."""
    prompt = response = text = advantage = step = None
    rewards: dict[str, int] = {}
    others: dict[str, int] = {}
    for index in indices:
        name = names[index]
        if name in _ADVANTAGE:
            advantage = index
        elif name in _STEP:
            step = index
        elif _REWARD.match(name):
            rewards[name] = index
        elif prompt is None and _PROMPT.match(name):
            prompt = index
        elif response is None and _RESPONSE.match(name) and not _TRUTH.search(name):
            response = index
        elif name in _TEXT:
            text = index
        else:
            others[name] = index
    if response is None and (prompt is not None or rewards):
        response = text
    if response is None or (prompt is None and not rewards):
        return None
    if advantage is not None:  # one column for each reward function, under any name
        named = {name: index for name, index in others.items() if name in functions}
        rewards |= named or {
            name: index for name, index in others.items() if _numbers(rows, index) and not _NOT_REWARD.fullmatch(name)
        }
    return _Roles(prompt, response, rewards, advantage, step)


def _wide_roles(names: Sequence[str]) -> list[_Roles]:
    """Return the columns of each sample of a wide table: ``input_1``, ``output_1``, ``score_1``, ``input_2``, …."""
    numbered: dict[str, list[int]] = {}
    stems = list(names)
    for index, name in enumerate(names):
        found = _WIDE.match(name)
        if found is not None:
            stems[index] = found[1].rstrip("_ ")
            numbered.setdefault(found[2], []).append(index)
    step = next((index for index, name in enumerate(names) if name in _STEP), None)
    sets = [_roles(stems, indices, ()) for indices in numbered.values()]
    return [one._replace(step=step) for one in sets if one is not None]


def _holds_texts(roles: _Roles, row: Sequence[Any]) -> bool:
    """Return whether prompt and response of a row are texts or messages, as far as the row has them."""
    cells = [row[index] for index in (roles.prompt, roles.response) if index is not None]
    return all(_is_missing(cell) or _is_text(cell) for cell in cells)


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is empty: ``None``, the NaN of a data frame, an empty text or list."""
    if isinstance(cell, str | list | tuple | Mapping):
        return not cell
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _is_text(cell: Any) -> bool:
    if isinstance(cell, list | tuple):
        return all(isinstance(one, str) or is_message(one) for one in cast("Sequence[Any]", cell))
    return isinstance(cell, str) or is_message(cell)


def _numbers(rows: Sequence[Sequence[Any]], index: int) -> bool:
    cells: list[Any] = [row[index] for row in rows if row[index] is not None]
    return bool(cells) and all(hasattr(cell, "__float__") for cell in cells)


def _add(columns: dict[str, Any], roles: _Roles, row: Sequence[Any], names: Sequence[str], *, is_wide: bool) -> None:
    """Append one sample to the lists of `log_generations`."""
    used = {roles.response, *roles.rewards.values()}
    response = row[roles.response]
    sample: dict[str, Any] = {"responses": None if _is_missing(response) else response}
    for name, index in (("prompts", roles.prompt), ("advantages", roles.advantage), ("", roles.step)):
        if index is not None:
            used.add(index)
            if name and not (name == "prompts" and _is_missing(row[index])):
                sample[name] = row[index]
    if not is_wide:
        rest = {name: row[index] for index, name in enumerate(names) if index not in used and _plain(row[index])}
        sample["metadata"] = rest or None
    if len(roles.rewards) == 1:
        sample["rewards"] = row[next(iter(roles.rewards.values()))]
    else:
        parts: dict[str, list[Any]] = columns.setdefault("rewards", {}) if roles.rewards else {}
        for name, index in roles.rewards.items():
            parts.setdefault(name, []).append(row[index])
    for name, value in sample.items():
        columns.setdefault(name, []).append(value)


def _plain(cell: Any) -> bool:
    return isinstance(cell, str | int | float | bool)
