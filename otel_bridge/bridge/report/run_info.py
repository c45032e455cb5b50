"""Turns the state of translation into the `RunInfo` that a writer is opened for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from otel_bridge import semconv
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.exporter import RunInfo
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Json, Position, Scalar
from otel_bridge.translation.metrics.summaries import PREFIX as SUMMARIES
from otel_bridge.translation.processes.run_metadata import GENERATED

_CONFIG = "config/"
_KEY = "key/"
_RUN = "run"


class RunDescription:
    """Describes one run from its ledger.

    Args:
        folder: The run folder.
        local: Whether no endpoint collects the job, so that another machine may have its own bridge of this run.
    """

    def __init__(self, folder: RunFolder, *, local: bool) -> None:
        self._folder, self._local = folder, local

    def __call__(self, view: LedgerView, *, reopened: bool) -> tuple[Position, RunInfo]:
        """Return the run, and the position up to which its configs and summaries are complete."""
        position, state = view.state(_RUN, _KEY, _CONFIG, SUMMARIES)
        configs = {
            key.removeprefix(_CONFIG) or None: cast("Mapping[str, Json]", value)
            for key, value in state.items()
            if key.startswith(_CONFIG)
        }
        keys = {
            key.removeprefix(_KEY): str(axis)
            for key, axis in state.items()
            if key.startswith(_KEY) and axis
        }
        run = self.brief(state.get(_RUN))
        return position, replace(
            run,
            keys=keys,
            configs=configs,
            summaries=_summaries(state),
            reopened=reopened,
            oldest=view.oldest(),
        )

    def brief(self, facts: object) -> RunInfo:
        """Return the run without keys and configs, from the state's ``run``."""
        known = cast("Mapping[str, object]", facts or {})
        identity = {
            key: str(value)
            for key, value in cast("Mapping[str, object]", known.get("identity") or {}).items()
        }
        run_id = str(known.get("id") or self._folder.run_id)
        return RunInfo(
            id=run_id,
            project=str(known.get("project") or "default"),
            name=str(known.get("name") or run_id),
            folder=self._folder.path,
            group=_text(known.get("group")),
            tags=tuple(str(tag) for tag in cast("list[object]", known.get("tags") or [])),
            notes=_text(known.get("notes")),
            job_type=_text(known.get("job_type")),
            entity=identity.get(semconv.WANDB_ENTITY),
            identity=identity,
            node_rank=cast("int", known.get("node_rank") or 0),
            local=self._local,
            name_generated=_is_generated(known, "name"),
        )

    def generated(self, facts: object) -> str:
        """Return which of ``project`` and ``name`` were generated, separated by commas, from the state's ``run``."""
        known = cast("Mapping[str, object]", facts or {})
        return ",".join(what for what in ("project", "name") if _is_generated(known, what))


def _summaries(state: Mapping[str, object]) -> dict[str | None, dict[str, Scalar]]:
    found: dict[str | None, dict[str, Scalar]] = {}
    for key, stored in state.items():
        if key.startswith(SUMMARIES):
            value, role, *_ = cast("list[Any]", stored)
            found.setdefault(role, {})[key.removeprefix(SUMMARIES)] = value
    return found


def _is_generated(known: Mapping[str, object], what: str) -> bool:
    sources = cast("Mapping[str, object]", known.get("sources") or {})
    return sources.get(what) == GENERATED


def _text(value: object) -> str | None:
    return None if value is None else str(value)
