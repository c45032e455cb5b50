"""Where the rollouts of one run still lie on this machine: its ledger, and the files of the exporter ``file``.

Each is found once with its light facts, late values merged in; messages and spans are read again for those that are
shown, so that a folder of gigabytes needs little memory. Read-only: the bridge may be at work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, cast

import orjson

from otel_bridge.bridge.codec import LATE, ROLLOUT
from otel_bridge.bridge.database import open_for_reading
from otel_bridge.bridge.view import View
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Json, LateValue, Rollout
from otel_bridge_local.payload import late_payload, rollout_payload

Payload: TypeAlias = dict[str, Json]
"""A rollout as the exporter ``file`` writes it; and ``rollout_id``, ``turns``, ``tool_calls``, ``failed``, ``late``."""
Read: TypeAlias = Callable[[], "Payload | None"]
"""Reads a rollout again; ``None``: it is not there any more."""

_BATCH: Final = 200
_BATCH_BYTES: Final = 8 << 20
_MARKS: Final = {b'{"kind":"rollout"': "rollout", b'{"kind":"late"': "late"}
_HEAVY: Final = ("messages", "spans", "metadata", "tools")


@dataclass(frozen=True, slots=True)
class Found:
    """One rollout: its light facts, and how the rest is read."""

    facts: Payload
    read: Read
    late: Mapping[str, Payload]

    def whole(self) -> Payload | None:
        """Return all of it; ``None``: it was deleted meanwhile."""
        payload = self.read()
        return None if payload is None else _with_late(_counted(payload), self.late)


@dataclass(slots=True)
class Rollouts:
    """The rollouts of one run.

    Attributes:
        found: By position.
        gone: So many were delivered and deleted from the ledger, and no file has them.
        sources: ``ledger``, ``file``: where was looked; empty: there is neither.
    """

    found: list[Found] = field(default_factory=list[Found])
    gone: int = 0
    sources: list[str] = field(default_factory=list[str])


class RolloutSource:
    """Reads the rollouts of one run folder; a context manager that closes the ledger.

    Raises:
        OtelBridgeError: The ledger is damaged, locked, or of a newer version.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._files = sorted((folder.path / "file").glob("records-*.jsonl"))
        self._view = View(open_for_reading(folder.ledger_path)) if folder.ledger_path.exists() else None

    def __enter__(self) -> RolloutSource:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.close()

    def rollouts(self) -> Rollouts:
        """Find every rollout once; what both hold is read from the ledger."""
        reads: dict[str, tuple[Payload, Read]] = {}
        late: dict[str, dict[str, Payload]] = {}
        result = Rollouts()
        for source, places in (("file", self._of_files()), ("ledger", self._of_ledger())):
            for payload, read in places:
                if payload["kind"] == "late":
                    late.setdefault(str(payload["rollout_id"]), {})[str(payload["name"])] = payload
                else:
                    counted = _counted(payload)
                    light = {key: value for key, value in counted.items() if key not in _HEAVY}
                    reads[str(payload["id"])] = (light, read)
            if self._files if source == "file" else self._view:
                result.sources.append(source)
        for rollout_id, (light, read) in reads.items():
            values = late.get(rollout_id, {})
            result.found.append(Found(_with_late(light, values), read, values))
        result.found.sort(key=lambda one: cast("int", one.facts["position"]))
        total = self._view.meta("rollouts") if self._view is not None else 0
        result.gone = max((total if isinstance(total, int) else 0) - len(result.found), 0)
        return result

    def _of_files(self) -> Iterator[tuple[Payload, Read]]:
        for path in self._files:
            with contextlib.suppress(OSError), path.open("rb") as opened:  # the bridge deletes the oldest
                offset = 0
                for line in opened:
                    if any(line.startswith(mark) for mark in _MARKS) and (payload := _parsed(line)) is not None:
                        yield payload, partial(_line_at, path, offset)
                    offset += len(line)

    def _of_ledger(self) -> Iterator[tuple[Payload, Read]]:
        view, after = self._view, 0
        while view is not None:
            batch = view.records(after, (ROLLOUT, LATE), limit=_BATCH, limit_bytes=_BATCH_BYTES)
            for record in batch.records:
                if isinstance(record, Rollout):
                    yield rollout_payload(record), partial(_record_at, view, record.position)
                elif isinstance(record, LateValue):
                    yield late_payload(record), partial(_record_at, view, record.position)
            if batch.through <= after or not (batch.records or batch.broken):
                return
            after = batch.through


def _line_at(path: Path, offset: int) -> Payload | None:
    try:
        with path.open("rb") as opened:
            opened.seek(offset)
            return _parsed(opened.readline())
    except OSError:
        return None


def _parsed(line: bytes) -> Payload | None:
    """Return one line of the files; ``None``: it is torn, or being written."""
    try:
        payload: object = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return cast("Payload", payload) if isinstance(payload, dict) else None


def _record_at(view: View, position: int) -> Payload | None:
    records = view.records(position - 1, (ROLLOUT,), limit=1, limit_bytes=_BATCH_BYTES).records
    found = records[0] if records else None
    return rollout_payload(found) if isinstance(found, Rollout) and found.position == position else None


def _counted(payload: Payload) -> Payload:
    """Return a rollout with what is counted of its messages and spans, and the user's own id of it."""
    spans, messages = entries(payload.get("spans")), entries(payload.get("messages"))
    metadata = payload.get("metadata")
    return {
        **payload,
        "rollout_id": metadata.get("rollout_id") if isinstance(metadata, dict) else None,
        "turns": sum(message.get("role") == "assistant" for message in messages),
        "tool_calls": sum(span.get("kind") == "tool" for span in spans),
        "failed": bool(payload.get("error") or payload.get("incomplete") or any(span.get("error") for span in spans)),
    }


def _with_late(payload: Payload, late: Mapping[str, Payload]) -> Payload:
    """Return a rollout with the values that came after it was written."""
    rewards = payload.get("rewards")
    parts: dict[str, Json] = dict(rewards) if isinstance(rewards, dict) else {}
    merged: Payload = {**payload, "late": [dict(value) for value in late.values()]}
    for name, value in late.items():
        number = value.get("value")
        if number is not None and name in {"reward", "advantage"}:
            merged[name] = number
        elif number is not None:
            parts[name] = number
    return {**merged, "rewards": parts}


def entries(value: Json) -> list[dict[str, Json]]:
    """Return the objects of a JSON list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
