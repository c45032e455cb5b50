"""Identity and environment -> the bytes of the process's ``Resource``. Never credentials.

Source: opentelemetry-proto, resource.proto, ``Resource.attributes`` (field 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_bridge import semconv
from otel_bridge.emit.identity import Identity
from otel_bridge.emit.wire import Attribute, attributes
from otel_bridge.settings import ATTEMPT, Setting, non_negative_int

# A service takes the trackers' identity only from here: its own environment is another job's.
_TRACKER_VARIABLES: Final = {
    semconv.WANDB_RUN_ID: "WANDB_RUN_ID",
    semconv.WANDB_ENTITY: "WANDB_ENTITY",
    semconv.WANDB_PROJECT: "WANDB_PROJECT",
    semconv.WANDB_GROUP: "WANDB_RUN_GROUP",
    semconv.WANDB_TAGS: "WANDB_TAGS",
    semconv.WANDB_NOTES: "WANDB_NOTES",
    semconv.WANDB_JOB_TYPE: "WANDB_JOB_TYPE",
    semconv.WANDB_RESUME: "WANDB_RESUME",
    semconv.MLFLOW_RUN_ID: "MLFLOW_RUN_ID",
    semconv.MLFLOW_EXPERIMENT: "MLFLOW_EXPERIMENT_NAME",
    semconv.TRACKIO_PROJECT: "TRACKIO_PROJECT",
    semconv.TRACKIO_SPACE: "TRACKIO_SPACE_ID",
}

_NO_COUNT: int | None = None
# Counted from 0 by both: the first start has had no restart.
_RESTARTS: Final = (
    Setting("TORCHELASTIC_RESTART_COUNT", _NO_COUNT, non_negative_int, "Restarts, as torchrun counts them."),
    Setting("SLURM_RESTART_COUNT", _NO_COUNT, non_negative_int, "Restarts, as Slurm counts them."),
)


def tracker_identity(identity: Identity, env: Mapping[str, str]) -> dict[str, str]:
    """Return the trackers' identity, attribute to value, as found in *env* or given to ``init()``."""
    found = {attribute: env[name] for attribute, name in _TRACKER_VARIABLES.items() if env.get(name)}
    if identity.asked.entity:
        found[semconv.WANDB_ENTITY] = identity.asked.entity
    return found


def encode_resource(
    identity: Identity,
    env: Mapping[str, str],
    instance_id: str,
    *,
    source: Mapping[str, str] | None = None,
    forked: bool = False,
) -> bytes:
    """Encode the resource of one process.

    Args:
        identity: Which run, and who speaks.
        env: Where the trackers' identity is looked for.
        instance_id: This process, new in a fork.
        source: What the process runs, attribute to value; ``OTEL_RESOURCE_ATTRIBUTES`` goes before it.
        forked: It is a forked child.
    """
    asked = identity.asked
    values: dict[str, Attribute] = {
        **(source or {}),
        **identity.resource,
        semconv.SERVICE_NAME: env.get("OTEL_SERVICE_NAME")
        or identity.resource.get(semconv.SERVICE_NAME)
        or identity.role
        or identity.project,
        semconv.PROJECT: identity.project,
        semconv.RUN_NAME: identity.name,
        semconv.RUN_ID: identity.id,
        semconv.ROLE: identity.role,
        semconv.RANK: identity.rank,
        semconv.WORLD_SIZE: identity.world_size,
        semconv.NODE_RANK: identity.node_rank,
        semconv.INSTANCE_ID: instance_id,
        semconv.RUN_GROUP: asked.group,
        semconv.RUN_TAGS: asked.tags or None,
        semconv.RUN_NOTES: asked.notes,
        semconv.RUN_JOB_TYPE: asked.job_type,
        semconv.FORKED: forked or None,
        semconv.ATTEMPT: _attempt(env),
        **tracker_identity(identity, env),
    }
    return attributes(1, [(key, value) for key, value in values.items() if value is not None])


def _attempt(env: Mapping[str, str]) -> int | None:
    """Return which start of the job this is, from 1, where the environment knows; else the bridge counts."""
    told = ATTEMPT.read(env)
    restarts = next((count for count in (setting.read(env) for setting in _RESTARTS) if count is not None), None)
    return told if told is not None or restarts is None else restarts + 1
