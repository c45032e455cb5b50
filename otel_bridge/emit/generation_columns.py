"""Parallel lists as training code has them -> guarded columns: any may be missing, short, or hold ``None``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from otel_bridge.emit import facts


class Column:
    """One parallel list; asking for what is not there gives ``None``.

    Args:
        given: A list, tuple or array; ``None``; or one value that holds for every sample.
    """

    __slots__ = ("_one", "values")

    def __init__(self, given: object) -> None:
        self._one: object = None
        self.values: Sequence[object] | None = None
        tolist = getattr(given, "tolist", None)
        if callable(tolist):
            given = tolist()
        if given is None or isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            self._one = given
        else:
            entries = cast("Iterable[object]", given)
            self.values = entries if isinstance(entries, (list, tuple)) else list(entries)

    def at(self, index: int) -> Any:  # whatever the user put there
        """Return the value of sample *index*."""
        if self.values is None:
            return self._one
        return self.values[index] if 0 <= index < len(self.values) else None

    @property
    def given(self) -> bool:
        """Whether there is anything in it."""
        return self.values is not None or self._one is not None

    def __len__(self) -> int:
        return 0 if self.values is None else len(self.values)


class Rewards:
    """The column of rewards: numbers, per-token lists, or ``{name: list}``."""

    def __init__(self, given: object) -> None:
        self._parts: dict[str, Column] = {}
        self._column = Column(None)
        if isinstance(given, Mapping):
            self._parts = {str(name): Column(values) for name, values in cast("Mapping[object, object]", given).items()}
        else:
            self._column = Column(given)

    def at(self, index: int) -> Any:
        """Return the reward of sample *index*: as given, or its named parts."""
        if not self._parts:
            return self._column.at(index)
        parts = {
            name: number
            for name, column in self._parts.items()
            if (number := facts.number(column.at(index))) is not None
        }
        return parts or None

    def __len__(self) -> int:
        return max([len(self._column), *map(len, self._parts.values())])


class ToolFacts:
    """Facts of tool use: a dict a sample, or a dict of lists."""

    def __init__(self, given: object) -> None:
        self._columns: dict[str, Column] | None = None
        self._column = Column(None)
        if isinstance(given, Mapping):
            columns = cast("Mapping[object, object]", given)
            self._columns = {str(name): Column(values) for name, values in columns.items()}
        else:
            self._column = Column(given)

    def at(self, index: int) -> dict[str, Any]:
        """Return the facts of sample *index*."""
        if self._columns is None:
            return dict(facts.mapping(self._column.at(index)))
        return {name: value for name, column in self._columns.items() if (value := column.at(index)) is not None}


class Decoder:
    """The user's decode function; one that raises costs a text, nothing else.

    Args:
        decode: From token ids to text; ``None``: there is none.
        count_drop: Told of each failure.
    """

    def __init__(self, decode: Callable[[Any], Any] | None, count_drop: Callable[[str], None]) -> None:
        self._decode = decode
        self._count_drop = count_drop

    def text(self, token_ids: Sequence[Any]) -> str:
        """Return the text of *token_ids*, or what is to be said in its place."""
        if self._decode is None:
            return f"[{len(token_ids)} tokens; pass decode= to see them]"
        try:
            decoded = self._decode(token_ids)
        except Exception as exc:  # noqa: BLE001  # the user's code
            self._count_drop("rollout_decode")
            return f"[{len(token_ids)} tokens that could not be decoded: {type(exc).__name__}]"
        if isinstance(decoded, list) and decoded:  # batch_decode
            decoded = cast("list[object]", decoded)[0]
        return decoded if isinstance(decoded, str) else str(cast("object", decoded))


def token_ids(value: object) -> list[Any] | None:
    """Return a row of token ids as a list; ``None`` when it is none or empty."""
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    return (list(cast("Sequence[Any]", value)) or None) if isinstance(value, (list, tuple)) else None


def is_blank(prompt: object) -> bool:
    """Tell whether a prompt says nothing."""
    try:
        return not prompt
    except Exception:  # noqa: BLE001  # an array has no truth value, but it has entries
        return not token_ids(prompt)
