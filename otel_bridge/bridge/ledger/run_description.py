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
        local: Whether no endpoint collects the job, so that another machine may have its own bridge
            of this run.
    """

    def __init__(self, folder: RunFolder, *, local: bool) -> None:
        self._folder = folder
        self._local = local

    def __call__(self, view: LedgerView, *, reopened: bool) -> tuple[Position, RunInfo]:
        """Return the run, and the position up to which its configs and summaries are complete.

        A writer that is opened with them need not get the records of these again. Raises
        `JournalError` when the ledger cannot be read.
        """
        position, state = view.state(_RUN, _KEY, _CONFIG, SUMMARIES)
        configs: dict[str | None, Mapping[str, Json]] = {}
        keys: dict[str, str] = {}
        summaries: dict[str | None, dict[str, Scalar]] = {}
        for key, stored in state.items():
            if key.startswith(_CONFIG):
                role = key.removeprefix(_CONFIG) or None
                configs[role] = cast("Mapping[str, Json]", stored)
            elif key.startswith(_KEY) and stored:
                keys[key.removeprefix(_KEY)] = str(stored)
            elif key.startswith(SUMMARIES):
                value, role, *_ = cast("list[Any]", stored)
                summaries.setdefault(role, {})[key.removeprefix(SUMMARIES)] = value
        run = self.brief(state.get(_RUN))
        return position, replace(
            run,
            keys=keys,
            configs=configs,
            summaries=summaries,
            reopened=reopened,
            oldest=view.oldest(),
        )

    def brief(self, facts: object) -> RunInfo:
        """Return the run without keys and configs, from the state's ``run``.

        Before any process was read (``None``) the names come from the folder, and the project is
        ``default``.
        """
        metadata = cast("Mapping[str, object]", facts or {})
        identity_values = cast("Mapping[str, object]", metadata.get("identity") or {})
        identity = {key: str(value) for key, value in identity_values.items()}
        run_id = str(metadata.get("id") or self._folder.run_id)
        return RunInfo(
            id=run_id,
            project=str(metadata.get("project") or "default"),
            name=str(metadata.get("name") or run_id),
            folder=self._folder.path,
            group=_text(metadata.get("group")),
            tags=tuple(map(str, cast("list[object]", metadata.get("tags") or []))),
            notes=_text(metadata.get("notes")),
            job_type=_text(metadata.get("job_type")),
            entity=identity.get(semconv.WANDB_ENTITY),
            identity=identity,
            node_rank=cast("int", metadata.get("node_rank") or 0),
            local=self._local,
            name_generated=_is_generated(metadata, "name"),
        )

    def generated(self, facts: object) -> str:
        """Return which of ``project`` and ``name`` were generated, separated by commas, from the state's ``run``."""
        metadata = cast("Mapping[str, object]", facts or {})
        return ",".join(
            key for key in ("project", "name") if _is_generated(metadata, key)
        )


def _is_generated(metadata: Mapping[str, object], key: str) -> bool:
    sources = cast("Mapping[str, object]", metadata.get("sources") or {})
    return sources.get(key) == GENERATED


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value)
