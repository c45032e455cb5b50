"""Rollouts that a call names, in any of the known shapes -> their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, cast

from otel_bridge.emit.encode import coerce
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.errors import any_error_but_signals

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

_MAX_ROLLOUTS = 100_000


def rollout_ids(run: EmitRun, rollouts: object, reason: str) -> list[str | None]:
    """Return the id of each rollout, ``None`` for one without an id, counted as ``<reason>_rollout_id``.

    Empty for what is none of the known shapes. The place of one without an id stays, so that
    parallel lists still fit. What an array or iterator of the program raises is raised: the call is
    then counted as ``internal_error``.

    Args:
        run: The run, which counts what names no rollout.
        rollouts: A rollout, a mapping with ``id``, an id, many of them, or parallel lists as a
            mapping with ``ids``.
        reason: Beginning of the reasons of drops.
    """
    ids: list[str | None] = []
    for entry in _entries(run, rollouts, reason):
        rollout_id = entry if type(entry) is str else id_of(entry)
        if not rollout_id:
            run.count_drop(f"{reason}_rollout_id")
        ids.append(rollout_id or None)
    return ids


def _is_one(rollouts: object) -> bool:
    """Return whether *rollouts* is a single rollout or id."""
    if isinstance(rollouts, Mapping):
        return "ids" not in rollouts
    return isinstance(rollouts, (str, int, Rollout))


def _entries(run: EmitRun, rollouts: object, reason: str) -> Iterable[object]:
    """Return what stands for one rollout each.

    Empty for ``None``, and, counted as ``<reason>_no_rollouts``, for what is none of the known
    shapes. Entries beyond 100,000 are left out, which counts once as ``<reason>_too_many``: an
    iterator of the program need not end.
    """
    if isinstance(rollouts, Mapping):
        columns = cast("Mapping[str, object]", rollouts)
        rollouts = columns.get("ids", [columns])
    tolist = getattr(rollouts, "tolist", None)
    if callable(tolist):
        rollouts = tolist()
    if _is_one(rollouts):
        return [rollouts]
    if (
        rollouts is None
        or isinstance(rollouts, bytes)
        or not isinstance(rollouts, Iterable)
    ):
        if rollouts is not None:
            run.count_drop(f"{reason}_no_rollouts", 1, type(rollouts).__name__)
        return []
    entries = list(islice(cast("Iterable[object]", rollouts), _MAX_ROLLOUTS + 1))
    if len(entries) > _MAX_ROLLOUTS:
        run.count_drop(f"{reason}_too_many")
    return entries[:_MAX_ROLLOUTS]


def id_of(entry: object) -> str | None:
    """Return the id of a rollout, of a mapping with ``id``, or an id itself, as text.

    ``None`` without one.
    """
    if isinstance(entry, Rollout):
        return coerce.name(entry.id)
    if isinstance(entry, Mapping):
        return coerce.name(cast("Mapping[str, object]", entry).get("id"))
    try:
        return coerce.name(entry)
    except any_error_but_signals():  # code of the user's own object
        return None
