"""Resource attributes -> metadata of the run: project, name, group, tags, the trackers' identity. Pure.

Owns ``run`` of the state: a map with ``id``, ``project``, ``name``, ``group``, ``tags``, ``notes``,
``job_type``, ``node_rank``, ``identity`` (``rl.wandb.run_id`` and its like, host, script, commit)
and ``sources``: the origins of project and name. The first process to name a fact wins, with two
exceptions. A project or name that a user gave replaces a generated one, and both replace one that
was derived from ``service.name`` and its like. Of ``rl.wandb.resume`` the latest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from otel_bridge import semconv
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.translation.decode.attributes import int_in, text_in
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.state import TranslationState
from otel_bridge.values.mappings import only

KEY = "run"
GIVEN = "given"
GENERATED = "generated"
_DERIVED = "derived"
_ORDER = (_DERIVED, GENERATED, GIVEN)
"""Sources of a name, of which a later one replaces an earlier one."""
_NAMES = {
    "project": (semconv.PROJECT, semconv.PROJECT_GENERATED),
    "name": (semconv.RUN_NAME, semconv.RUN_NAME_GENERATED),
}
_TEXTS = {
    "group": semconv.RUN_GROUP,
    "notes": semconv.RUN_NOTES,
    "job_type": semconv.RUN_JOB_TYPE,
}
_IDENTITY = (
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
_LATEST = frozenset({semconv.WANDB_RESUME})
"""What the latest process decides: a job that W&B refused is started again with another value."""


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
        """Return whether *producer* belongs to this run, and store new facts from its resource.

        ``False``: nothing is stored, and the caller counts its data (``other_run``).
        """
        if not self.run_id:
            self.run_id = producer.run.id
        # Before its facts are stored: another run's names must not reach this one.
        if producer.run.id != self.run_id:
            return False
        self._store_facts(producer)
        return True

    def rename(self, name: str) -> None:
        """Replace a generated name of the run.

        A name that a user gave, and an empty *name*, change nothing.
        """
        stored = self._stored()
        sources = cast("Mapping[str, str]", stored.get("sources") or {})
        if name and sources.get("name") != GIVEN:
            self._state.set(
                KEY, {**stored, "name": name, "sources": {**sources, "name": GIVEN}}
            )

    def _stored(self) -> Mapping[str, object]:
        return cast("Mapping[str, object]", self._state.get(KEY) or {})

    def _store_facts(self, producer: Producer) -> None:
        """Store what the resource of *producer* adds to the run, by the rules of this module.

        Nothing is written when it adds nothing, as that of most processes.
        """
        stored = self._stored()
        stored_facts = {
            key: value
            for key, value in stored.items()
            if key not in {"id", "identity", "sources", *_NAMES}
        }
        stored_identity = cast("dict[str, str]", stored.get("identity") or {})
        merged: dict[str, object] = {"id": self.run_id}
        merged |= _names(producer, stored)
        merged |= _facts(producer.attributes)
        identity = _identity(producer.attributes)
        merged["identity"] = identity | stored_identity | only(identity, _LATEST)
        merged |= stored_facts
        if merged != stored:
            self._state.set(KEY, merged)


def _facts(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return group, notes, job type, tags and node rank, as far as *attributes* name them.

    Without secrets.

    A fact of another type counts as missing. Texts are redacted here too, since a third-party
    producer sends any.
    """
    facts: dict[str, object] = {}
    for fact, key in _TEXTS.items():
        text = text_in(attributes, key)
        if text:
            facts[fact] = redact_text(text)
    tags = attributes.get(semconv.RUN_TAGS)
    if isinstance(tags, list) and tags:
        facts["tags"] = [redact_text(str(tag)) for tag in cast("list[object]", tags)]
    node_rank = int_in(attributes, semconv.NODE_RANK)
    if node_rank is not None:
        facts["node_rank"] = node_rank
    return facts


def _identity(attributes: Mapping[str, object]) -> dict[str, str]:
    """Return how the trackers, the host and the code of the run are named.

    Without secrets in free texts.
    """
    identity: dict[str, str] = {}
    for key in _IDENTITY:
        text = text_in(attributes, key)
        if text:
            identity[key] = redact_text(text) if key in semconv.FREE_TEXTS else text
    return identity


def _names(producer: Producer, stored: Mapping[str, object]) -> dict[str, object]:
    """Return project, name and their sources: those of *producer* if they replace the stored ones.

    A generated name gives way to one that a user gave later, as by another process of the job.
    """
    stored_sources = cast("Mapping[str, str]", stored.get("sources") or {})
    sources: dict[str, str] = {}
    names: dict[str, object] = {}
    for fact, value in (("project", producer.run.project), ("name", producer.run.name)):
        source = _source(producer.attributes, *_NAMES[fact])
        stored_source = stored_sources.get(fact, _DERIVED)
        if not stored.get(fact) or _ORDER.index(source) > _ORDER.index(stored_source):
            names[fact] = value
            sources[fact] = source
        else:
            names[fact] = stored[fact]
            sources[fact] = stored_source
    return {**names, "sources": sources}


def _source(attributes: Mapping[str, object], name: str, generated: str) -> str:
    """Return the source of the attribute *name*; *generated* is the attribute that marks it so."""
    if not text_in(attributes, name):
        return _DERIVED
    # OTEL_RESOURCE_ATTRIBUTES, by which a launcher names the run to stock SDKs, holds texts only.
    mark = attributes.get(generated)
    if mark is True or mark == "true":
        return GENERATED
    return GIVEN
