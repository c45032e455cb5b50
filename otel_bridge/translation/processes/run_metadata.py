"""Resource attributes -> metadata of the run: project, name, group, tags, the trackers' identity. Pure.

Owns ``run`` of the state: a map with ``id``, ``project``, ``name``, ``group``, ``tags``, ``notes``, ``job_type``,
``node_rank``, ``identity`` (``rl.wandb.run_id`` and its like, host, script, commit) and ``sources``: the origins of
project and name. The first process to name a fact wins, with one exception. A project or name that a user gave replaces
a generated one, and both replace one that was derived from ``service.name`` and its like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from otel_bridge import semconv
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.translation.decode.attributes import int_in, text_in
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.state import TranslationState

KEY: Final = "run"
GIVEN: Final = "given"
GENERATED: Final = "generated"
_DERIVED: Final = "derived"
_RANKS: Final = (_DERIVED, GENERATED, GIVEN)
_NAMES: Final = {
    "project": (semconv.PROJECT, semconv.PROJECT_GENERATED),
    "name": (semconv.RUN_NAME, semconv.RUN_NAME_GENERATED),
}
_TEXTS: Final = {"group": semconv.RUN_GROUP, "notes": semconv.RUN_NOTES, "job_type": semconv.RUN_JOB_TYPE}
_IDENTITY: Final = (
    semconv.WANDB_RUN_ID,
    semconv.WANDB_ENTITY,
    semconv.WANDB_PROJECT,
    semconv.WANDB_GROUP,
    semconv.WANDB_TAGS,
    semconv.WANDB_NOTES,
    semconv.WANDB_JOB_TYPE,
    semconv.WANDB_RESUME,
    semconv.WANDB_SWEEP_ID,
    semconv.MLFLOW_RUN_ID,
    semconv.MLFLOW_EXPERIMENT,
    semconv.TRACKIO_PROJECT,
    semconv.TRACKIO_SPACE,
    semconv.HOST_NAME,
    semconv.PROCESS_COMMAND,
    semconv.PROCESS_OWNER,
    semconv.VCS_REVISION,
)


class RunMetadata:
    """Holds the metadata of one run.

    Args:
        state: State that stores the metadata.
        run_id: The run that is translated; empty: the first resource names the run.
    """

    def __init__(self, state: TranslationState, run_id: str) -> None:
        self._state = state
        stored = cast("Mapping[str, object]", state.get(KEY) or {})
        self.run_id = run_id or text_in(stored, "id")

    def mine(self, producer: Producer) -> bool:
        """Return whether *producer* belongs to this run, and store new facts from its resource."""
        if not self.run_id:
            self.run_id = producer.run.id
        if producer.run.id != self.run_id:
            return False
        self._store_facts(producer)
        return True

    def rename(self, name: str) -> None:
        """Replace a generated name of the run; a name that a user gave, and an empty *name*, change nothing."""
        before = cast("Mapping[str, object]", self._state.get(KEY) or {})
        sources = cast("Mapping[str, str]", before.get("sources") or {})
        if name and sources.get("name") != GIVEN:
            self._state.set(KEY, {**before, "name": name, "sources": {**sources, "name": GIVEN}})

    def _store_facts(self, producer: Producer) -> None:
        before = cast("Mapping[str, object]", self._state.get(KEY) or {})
        attributes = producer.attributes
        facts: dict[str, object] = {"id": self.run_id}
        facts |= _names(producer, before)
        facts |= {fact: redact_text(text) for fact, key in _TEXTS.items() if (text := text_in(attributes, key))}
        tags = attributes.get(semconv.RUN_TAGS)
        if isinstance(tags, list) and tags:
            facts["tags"] = [redact_text(str(tag)) for tag in cast("list[object]", tags)]
        node_rank = int_in(attributes, semconv.NODE_RANK)
        if node_rank is not None:
            facts["node_rank"] = node_rank
        found = {key: text for key in _IDENTITY if (text := text_in(attributes, key))}
        found |= {key: redact_text(found[key]) for key in semconv.FREE_TEXTS if key in found}
        facts["identity"] = found | cast("dict[str, str]", before.get("identity") or {})
        merged = facts | {key: value for key, value in before.items() if key not in {"identity", "sources", *_NAMES}}
        if merged != before:
            self._state.set(KEY, merged)


def _names(producer: Producer, before: Mapping[str, object]) -> dict[str, object]:
    """Return project, name and their sources; *producer* replaces *before* where its source ranks higher."""
    known = cast("Mapping[str, str]", before.get("sources") or {})
    sources: dict[str, str] = {}
    names: dict[str, object] = {}
    for fact, value in (("project", producer.run.project), ("name", producer.run.name)):
        source = _source(producer.attributes, *_NAMES[fact])
        held = known.get(fact, GIVEN if before.get(fact) else _DERIVED)
        newer = not before.get(fact) or _RANKS.index(source) > _RANKS.index(held)
        names[fact], sources[fact] = (value, source) if newer else (before[fact], held)
    return {**names, "sources": sources}


def _source(attributes: Mapping[str, object], name: str, generated: str) -> str:
    if not text_in(attributes, name):
        return _DERIVED
    # OTEL_RESOURCE_ATTRIBUTES, by which a launcher names the run to stock SDKs, holds texts only.
    return GENERATED if attributes.get(generated) in {True, "true"} else GIVEN
