"""Resource attributes -> what is known of the run itself: project, name, group, tags, the trackers' identity. Pure.

Owns ``run`` of the state: a map with ``id``, ``project``, ``name``, ``group``, ``tags``, ``notes``, ``job_type``,
``node_rank`` and ``identity`` (``rl.wandb.run_id`` and its like, host, script, commit). The first process to name a
fact holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from otel_bridge import semconv
from otel_bridge.translation.attributes import int_in, text_in
from otel_bridge.translation.identity import Speaker
from otel_bridge.translation.state import State

KEY: Final = "run"
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
    semconv.MLFLOW_RUN_ID,
    semconv.MLFLOW_EXPERIMENT,
    semconv.TRACKIO_PROJECT,
    semconv.TRACKIO_SPACE,
    semconv.HOST_NAME,
    semconv.PROCESS_COMMAND,
    semconv.PROCESS_OWNER,
    semconv.VCS_REVISION,
)


class RunFacts:
    """What is known of one run.

    Args:
        state: Where it is kept.
        run_id: The run that is translated; empty: the first resource says.
    """

    def __init__(self, state: State, run_id: str) -> None:
        self._state = state
        stored = cast("Mapping[str, object]", state.get(KEY) or {})
        self.run_id = run_id or text_in(stored, "id")

    def mine(self, speaker: Speaker) -> bool:
        """Tell whether *speaker* belongs to this run, and learn from it what was not known."""
        if not self.run_id:
            self.run_id = speaker.run.id
        if speaker.run.id != self.run_id:
            return False
        self._learn(speaker)
        return True

    def _learn(self, speaker: Speaker) -> None:
        before = cast("Mapping[str, object]", self._state.get(KEY) or {})
        attributes = speaker.attributes
        facts: dict[str, object] = {"id": self.run_id}
        named = semconv.PROJECT in attributes or semconv.RUN_NAME in attributes or not before.get("name")
        if named:
            facts |= {"project": speaker.run.project, "name": speaker.run.name}
        facts |= {fact: text for fact, key in _TEXTS.items() if (text := text_in(attributes, key))}
        tags = attributes.get(semconv.RUN_TAGS)
        if isinstance(tags, list) and tags:
            facts["tags"] = [str(tag) for tag in cast("list[object]", tags)]
        node_rank = int_in(attributes, semconv.NODE_RANK)
        if node_rank is not None:
            facts["node_rank"] = node_rank
        found = {key: text for key in _IDENTITY if (text := text_in(attributes, key))}
        facts["identity"] = found | cast("dict[str, str]", before.get("identity") or {})
        merged = facts | {key: value for key, value in before.items() if key != "identity"}
        if named and semconv.RUN_NAME in attributes:  # a producer that knows our names goes before one that does not
            merged |= {"project": speaker.run.project, "name": speaker.run.name}
        if merged != before:
            self._state.set(KEY, merged)
