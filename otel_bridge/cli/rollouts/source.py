"""Reads the rollouts of one run from its ledger and from the files of the exporter ``file``.

Each rollout is listed once with its small fields, and evaluations are merged into it. Messages and
spans are read again only for the rollouts that are shown, so that a folder of gigabytes needs
little memory. Read-only: a bridge may serve the run at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import orjson

from otel_bridge.bridge.ledger.codec import EVALUATION, ROLLOUT, TOKEN_VIEW
from otel_bridge.bridge.ledger.database import open_for_reading
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.journal.files import open_regular
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import (
    TOKENS_ID,
    Evaluation,
    Json,
    MediaRecord,
    Record,
    RolloutRecord,
)
from otel_bridge.translation.generated_rollouts import TRAINED_STEP
from otel_bridge_local.payload import record_payload

Payload: TypeAlias = dict[str, Json]
"""Line of the exporter ``file``, with further fields.

They are ``rollout_id``, ``turns``, ``tool_calls``, ``failed``, ``trained_steps`` and
``evaluations``."""
ReadRollout: TypeAlias = Callable[[], "Payload | None"]
"""Reads a rollout again; returns ``None`` when it was deleted."""

_BATCH = 200
_BATCH_BYTES = 8 << 20
_MARKS = (b'{"kind":"rollout"', b'{"kind":"evaluation"')
_MEDIA_MARK = b'{"kind":"media"'
_HEAVY = ("messages", "spans", "metadata", "tools")


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """Holds one rollout's small fields, and reads the rest on demand."""

    facts: Payload
    read: ReadRollout
    evaluations: Mapping[str, Payload]

    def whole(self) -> Payload | None:
        """Return the complete rollout, or ``None`` when it has been deleted since it was listed.

        Raises:
            OtelBridgeError: The ledger is damaged or locked.
        """
        payload = self.read()
        if payload is None:
            return None
        return _with_evaluations(_counted(payload), self.evaluations)


class RolloutListing(NamedTuple):
    """Holds the rollouts of one run, by position.

    Attributes:
        deleted: Number of rollouts that were delivered and deleted from the ledger, and are in no
            file.
    """

    rollouts: list[StoredRollout]
    deleted: int


class RolloutSource:
    """Reads the rollouts of one run folder; a context manager that closes the ledger.

    Raises:
        OtelBridgeError: The ledger is damaged, locked, or of a newer version.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.path / "file"
        self._files = sorted(self._folder.glob("records-*.jsonl"))
        self._view = (
            LedgerView(open_for_reading(folder.ledger_path))
            if folder.ledger_path.exists()
            else None
        )

    def __enter__(self) -> RolloutSource:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.close()

    @property
    def has_data(self) -> bool:
        """Return whether there is a ledger or a file.

        Without either no bridge has worked on the run.
        """
        return bool(self._files) or self._view is not None

    def rollouts(self) -> RolloutListing:
        """Return every rollout once; a rollout that is in both sources is read from the ledger.

        Evaluations are collected first and merged last, since one may stand before its rollout.

        Raises:
            OtelBridgeError: The ledger is damaged or locked.
        """
        reads: dict[str, tuple[Payload, ReadRollout]] = {}
        evaluations: dict[str, dict[str, Payload]] = {}
        # Files first, so that the ledger, which has the newer state, replaces what they have.
        for payload, read in chain(self._of_files(), self._of_ledger()):
            if payload["kind"] == "evaluation":
                values = evaluations.setdefault(str(payload["rollout_id"]), {})
                values[str(payload["name"])] = payload
                continue
            light = _counted(payload)
            # Messages are most of a rollout: they are read again for those that are shown.
            for key in _HEAVY:
                light.pop(key, None)
            reads[str(payload["id"])] = (light, read)
        rollouts: list[StoredRollout] = []
        for rollout_id, (light, read) in reads.items():
            values = evaluations.get(rollout_id, {})
            facts = _with_evaluations(light, values)
            rollouts.append(StoredRollout(facts, read, values))
        rollouts.sort(key=lambda rollout: cast("int", rollout.facts["position"]))
        total = None if self._view is None else self._view.meta("rollouts")
        # Files may hold rollouts that a rebuilt ledger never counted.
        deleted = max(cast("int", total or 0) - len(rollouts), 0)
        return RolloutListing(rollouts, deleted)

    def token_pages(self, rollouts: Iterable[StoredRollout]) -> dict[str, str]:
        """Return the newest page of tokens of each of *rollouts* that has one, by its id.

        One pass for all, from the oldest to the newest: a page is written again when later values
        arrive. Raises as `rollouts`.
        """
        trace_ids = {str(rollout.facts["id"]) for rollout in rollouts}
        pages: dict[str, str] = {}
        for _, _, line in self._lines():
            payload = _parsed(line) if line.startswith(_MEDIA_MARK) else None
            if payload is None:
                continue
            trace_id = _trace_id_of_page(str(payload["id"]))
            if trace_id in trace_ids and (page := self._file_of(payload)) is not None:
                pages[trace_id] = page
        for record in self._records(TOKEN_VIEW):
            if (
                isinstance(record, MediaRecord)
                and (trace_id := _trace_id_of_page(record.id)) in trace_ids
            ):
                pages[trace_id] = record.items[0].data.decode("utf-8", "replace")
        return pages

    def _file_of(self, payload: Payload) -> str | None:
        """Return the text of the first item of a line of media; ``None`` without an item or its file.

        The exporter ``file`` deletes the oldest files, and a line may be left of them.
        """
        items = entries(payload.get("items"))
        try:
            with open(
                open_regular(self._folder / str(items[0]["file"])), "rb"
            ) as opened:
                return opened.read().decode("utf-8", "replace")
        except (OSError, IndexError):
            return None

    def _of_files(self) -> Iterator[tuple[Payload, ReadRollout]]:
        """Yield rollouts and evaluations of the files.

        Other lines are not parsed, which takes most of the time.
        """
        for path, offset, line in self._lines():
            payload = _parsed(line) if line.startswith(_MARKS) else None
            if payload is not None:
                yield payload, partial(_line_at, path, offset)

    def _lines(self) -> Iterator[tuple[Path, int, bytes]]:
        """Yield each line of the exporter ``file``, with its file and its offset there.

        A file that was deleted meanwhile, or is a link or a pipe, is left out.
        """
        for path in self._files:
            # The bridge deletes the oldest.
            with (
                contextlib.suppress(OSError),
                open(open_regular(path), "rb") as opened,
            ):
                offset = 0
                for line in opened:
                    yield path, offset, line
                    offset += len(line)

    def _of_ledger(self) -> Iterator[tuple[Payload, ReadRollout]]:
        """Yield rollouts and evaluations of the ledger.

        Nothing without one. Raises as `_records`.
        """
        for record in self._records(ROLLOUT, EVALUATION):
            if isinstance(record, (RolloutRecord, Evaluation)):
                yield (
                    record_payload(record),
                    partial(self._rollout_at, record.position),
                )

    def _rollout_at(self, position: int) -> Payload | None:
        """Return a rollout of the ledger again; ``None`` when it was deleted since it was listed.

        Raises as `_records`.
        """
        if self._view is None:
            return None
        batch = self._view.records(
            position - 1, (ROLLOUT,), limit=1, limit_bytes=_BATCH_BYTES
        )
        for record in batch.records:
            # If it was deleted meanwhile, the next record is another rollout.
            if isinstance(record, RolloutRecord) and record.position == position:
                return record_payload(record)
        return None

    def _records(self, *kinds: int) -> Iterator[Record]:
        """Yield the records of *kinds* that the ledger has, in their order, without broken ones.

        Nothing without a ledger.

        Raises:
            OtelBridgeError: The ledger is damaged or locked.
        """
        position = 0
        while self._view is not None:
            # In batches: a ledger may hold more than the memory of this machine.
            batch = self._view.records(
                position, kinds, limit=_BATCH, limit_bytes=_BATCH_BYTES
            )
            yield from batch.records
            # A page that does not move would be read for ever.
            if batch.through <= position or not (batch.records or batch.broken):
                return
            position = batch.through


def _trace_id_of_page(media_id: str) -> str:
    """Return the id of the rollout whose page of tokens has *media_id*.

    It is empty for other media.
    """
    if media_id.startswith(TOKENS_ID):
        return media_id.removeprefix(TOKENS_ID).partition(":")[0]
    return ""


def _line_at(path: Path, offset: int) -> Payload | None:
    """Return the line at *offset* of a file again; ``None`` without the file."""
    try:
        with open(open_regular(path), "rb") as opened:
            opened.seek(offset)
            return _parsed(opened.readline())
    except OSError:
        # Deleted since it was listed.
        return None


def _parsed(line: bytes) -> Payload | None:
    """Return the content of one line, or ``None`` when the line is torn or still being written."""
    try:
        payload: object = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if isinstance(payload, dict):
        return cast("Payload", payload)
    return None


def _counted(payload: Payload) -> Payload:
    """Return a rollout with its numbers of turns and calls, whether it failed, and its own id.

    They are made before the messages and spans are left out of a listing, because options of the
    command select and sort by them. A rollout without an end counts as failed.
    """
    spans = entries(payload.get("spans"))
    messages = entries(payload.get("messages"))
    metadata = payload.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    return {
        **payload,
        "rollout_id": metadata.get("rollout_id"),
        "trained_steps": _steps(metadata.get(f"{TRAINED_STEP}.label")),
        "turns": sum(message.get("role") == "assistant" for message in messages),
        "tool_calls": sum(span.get("kind") == "tool" for span in spans),
        "failed": bool(
            payload.get("error")
            or payload.get("incomplete")
            or any(span.get("error") for span in spans)
        ),
    }


def _with_evaluations(payload: Payload, evaluations: Mapping[str, Payload]) -> Payload:
    """Return a rollout with the evaluations that arrived after it; they replace what it had itself.

    A label without a number changes no reward, and only stands in the list.
    """
    rewards = payload.get("rewards")
    parts: dict[str, Json] = dict(rewards) if isinstance(rewards, dict) else {}
    merged: Payload = {
        **payload,
        "evaluations": [dict(value) for value in evaluations.values()],
    }
    for name, value in evaluations.items():
        number = value.get("value")
        if name == TRAINED_STEP:
            merged["trained_steps"] = _steps(value.get("label"))
        if number is not None and name in {"reward", "advantage"}:
            merged[name] = number
        elif number is not None:
            parts[name] = number
    return {**merged, "rewards": parts}


def _steps(label: Json) -> list[Json]:
    """Return the training steps that the label of the value `TRAINED_STEP` lists."""
    steps = label.split(",") if isinstance(label, str) else []
    return [int(step) for step in steps if step.lstrip("-").isdecimal()]


def entries(value: Json) -> list[dict[str, Json]]:
    """Return the objects of a JSON list."""
    if isinstance(value, list):
        return [entry for entry in value if isinstance(entry, dict)]
    return []
