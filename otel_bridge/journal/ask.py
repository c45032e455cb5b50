"""``ask/``: files by which `finish`, `dead-letters`, another `init`, `drain` or `run` ask a running bridge."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import put_file

if TYPE_CHECKING:
    from otel_bridge.journal.folder import RunFolder

Kind: TypeAlias = Literal["retry", "discard", "finish", "handover"]
_KINDS: Final = frozenset(get_args(Kind))
_SUFFIX: Final = ".json"
_LEFT_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Something said to the bridge.

    Attributes:
        kind: ``retry``, ``discard``, ``finish`` or ``handover``.
        values: What goes with it: a status, ids of dead letters; never credentials.
        time_unix_ns: When it was asked.
    """

    kind: Kind
    values: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    time_unix_ns: int = 0

    @property
    def letters(self) -> dict[str, list[int]]:
        """Ids of dead letters by exporter, where it is about single ones (``retry``, ``discard``)."""
        given = self.values.get("letters")
        named = cast("dict[str, object]", given) if isinstance(given, dict) else {}
        lists = {name: cast("list[object]", ids) for name, ids in named.items() if isinstance(ids, list)}
        return {name: [number for number in ids if isinstance(number, int)] for name, ids in lists.items()}


def is_asked(folder: RunFolder) -> bool:
    """Say whether something was asked and not taken yet."""
    try:
        return any(not name.startswith(".") for name in os.listdir(folder.ask_dir))
    except OSError:
        return False


def ask(folder: RunFolder, kind: Kind, **values: object) -> None:
    """Ask the bridge of *folder* something; it looks at each poll.

    Args:
        folder: An existing run folder.
        kind: ``retry``, ``discard``, ``finish`` or ``handover``.
        values: JSON-able; the file is 0600.

    Raises:
        JournalError: It cannot be put there.
    """
    now = time.time_ns()
    name = f"{now:020d}-{os.getpid()}-{os.urandom(3).hex()}{_SUFFIX}"
    try:
        put_file(folder.ask_dir / name, orjson.dumps({"kind": kind, "values": values, "time_unix_ns": now}))
    except (OSError, TypeError) as exc:
        raise JournalError(f"{folder.ask_dir}: {kind} cannot be asked there: {exc}; is the run folder yours?") from exc


def take_asks(folder: RunFolder) -> list[Ask]:
    """Take what was asked, oldest first: each is returned once, its file deleted. What is no ask is deleted too."""
    try:
        names = sorted(os.listdir(folder.ask_dir))
    except OSError:
        return []
    asks: list[Ask] = []
    for name in names:
        path = folder.ask_dir / name
        if name.startswith("."):
            _delete_left(path)
            continue
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            path.unlink()
            if (found := _parsed(data)) is not None:
                asks.append(found)
    return asks


def _parsed(data: bytes) -> Ask | None:
    try:
        raw = cast("dict[str, object]", orjson.loads(data))
        kind, values, time_unix_ns = raw["kind"], raw["values"], raw["time_unix_ns"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if kind not in _KINDS or not isinstance(values, dict) or not isinstance(time_unix_ns, int):
        return None
    return Ask(cast("Kind", kind), cast("dict[str, object]", values), time_unix_ns)


def _delete_left(path: Path) -> None:
    """Delete what a process left that died while it asked: it may hold credentials."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _LEFT_AFTER_S:
            path.unlink()
