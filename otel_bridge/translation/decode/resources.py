"""Resource attributes -> the run and the producer. Pure. The receiver also splits its requests with `run_of`.

From these attributes: run from ``rl.run.id`` | ``rl.project`` and ``rl.run.name`` | ``nemo.run.id``
| ``service.namespace`` and ``service.name``; role from ``rl.role`` | ``service.name``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Json, run_id_of
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in

DEFAULT_PROJECT = "default"
_UNKNOWN_SERVICE = "unknown_service"
"""Service name that SDKs give to a program without a name, followed by ``:<executable>``."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Identifies a run: its id, and the project and name that trackers show."""

    id: str
    project: str
    name: str


def attributes_of(resource_bytes: bytes) -> Mapping[str, object]:
    """Return the attributes of a serialised ``Resource``.

    Raises:
        InvalidRecordError: The bytes are not ``Resource``.
    """
    try:
        return mapping_of(Resource.FromString(resource_bytes).attributes)
    except DecodeError as exc:
        raise InvalidRecordError(
            f"resource of {len(resource_bytes)} bytes: {exc}; expected an OTLP Resource"
        ) from exc


def run_of(attributes: Mapping[str, object]) -> RunIdentity:
    """Return the run that a resource belongs to; every resource belongs to a run.

    Without any name the run is that of project `DEFAULT_PROJECT` and an unknown service, so that
    nothing is dropped for want of one.
    """
    project = (
        text_in(attributes, semconv.PROJECT)
        or text_in(attributes, semconv.SERVICE_NAMESPACE)
        or DEFAULT_PROJECT
    )
    name = text_in(attributes, semconv.RUN_NAME)
    run_id = text_in(attributes, semconv.RUN_ID)
    if run_id:
        return RunIdentity(run_id, project, name or run_id)
    if name:
        return RunIdentity(run_id_of(project, name), project, name)
    name = (
        text_in(attributes, semconv.NEMO_RUN_ID)
        or text_in(attributes, semconv.SERVICE_NAME)
        or _UNKNOWN_SERVICE
    )
    return RunIdentity(run_id_of(project, name), project, name)


@dataclass(frozen=True, slots=True)
class Producer:
    """Describes one resource: its run, process and role.

    Attributes:
        attributes: All resource attributes.
        run: The run that the resource belongs to.
        instance: ``rl.instance.id``; for a third-party producer a made-up id that begins with
            ``third-party:``.
        third_party: Whether the producer is third-party: the resource lacks ``rl.instance.id``.
        role: Role of native rows: ``rl.role`` alone.
        third_party_role: Role of all other data: ``rl.role``, else the ``service.name`` of a
            third-party producer.
        rank: Rank in the job, from 0.
        forked: Whether the producer is a forked child of a process that sends data itself.
        launcher: Whether the producer is ``otel-bridge run`` itself.
        attempt: Attempt of the role, where the environment of the process names the attempt.
        started_unix_ns: Time at which the process joined the run, by its own clock; 0: unknown.
        system: Whether the data are a bridge's measurements of a machine, on behalf of a process.
        merge_world: Number of ranks whose rows become one row a step; 0: the rows of this producer
            are shown as sent.
        anonymous: Whether several processes may share this resource: a third-party producer without
            an id.
    """

    attributes: Mapping[str, object]
    run: RunIdentity
    instance: str
    third_party: bool
    role: str | None
    third_party_role: str | None
    rank: int
    forked: bool
    launcher: bool
    attempt: int | None
    started_unix_ns: int = 0
    system: bool = False
    merge_world: int = 0
    anonymous: bool = False


def producer_of(attributes: Mapping[str, object]) -> Producer:
    """Return the producer that the attributes of a resource describe.

    Never raises: an attribute of another type counts as missing. A negative rank is 0. Measurements
    have neither role nor rank, because they are of the machine and not of the process that asked
    for them.
    """
    role = text_in(attributes, semconv.ROLE) or None
    instance = text_in(attributes, semconv.INSTANCE_ID)
    system = attributes.get(semconv.SYSTEM) is True
    third_party_role = role
    if system:  # a bridge's measurements of a machine have no role
        third_party_role = None
    elif role is None and not instance:
        third_party_role = _service_role(attributes)
    return Producer(
        attributes=attributes,
        run=run_of(attributes),
        instance=instance or _third_party_instance(attributes, third_party_role),
        third_party=not instance,
        role=role,
        third_party_role=third_party_role,
        rank=0 if system else _rank(attributes, third_party=not instance),
        forked=attributes.get(semconv.FORKED) is True,
        launcher=attributes.get(semconv.LAUNCHER) is True,
        attempt=int_in(attributes, semconv.ATTEMPT),
        started_unix_ns=max(int_in(attributes, semconv.INSTANCE_START) or 0, 0),
        system=system,
        merge_world=_merge_world(attributes),
        anonymous=not instance and _is_anonymous(attributes),
    )


def within(
    outer: Mapping[str, object], inner: Mapping[str, object]
) -> dict[str, object]:
    """Return the resource of an SDK's data from inside an otel-bridge process.

    The SDK's resource names the sender; the process's resource names the run. Of a key in both the
    SDK's value counts.

    Args:
        outer: Resource of the process.
        inner: Resource of the SDK in it.
    """
    run = dict(outer)
    # These two name the sender, as the SDK's own resource does.
    for key in (semconv.INSTANCE_ID, semconv.SERVICE_NAME):
        run.pop(key, None)
    return {**run, **inner}


def _merge_world(attributes: Mapping[str, object]) -> int:
    if attributes.get(semconv.RANKS) != "merge":
        return 0
    world_size = int_in(attributes, semconv.WORLD_SIZE) or 1
    # One rank alone has nothing to merge, so its rows do not wait for others.
    if world_size > 1:
        return world_size
    return 0


def _rank(attributes: Mapping[str, object], *, third_party: bool) -> int:
    rank = int_in(attributes, semconv.RANK)
    # A native process states its own rank; others are read as NeMo Lens names it.
    if rank is None and third_party:
        rank = int_in(attributes, semconv.DL_RANK)
    return max(rank or 0, 0)


def _service_role(attributes: Mapping[str, object]) -> str | None:
    name = text_in(attributes, semconv.SERVICE_NAME)
    if not name or name.startswith(_UNKNOWN_SERVICE):
        return None
    return name


def _is_anonymous(attributes: Mapping[str, object]) -> bool:
    """Return whether nothing distinguishes the processes of one service: neither an instance id, nor host and pid."""
    machine_and_pid = text_in(attributes, "host.name") and text_in(
        attributes, "process.pid"
    )
    return not (text_in(attributes, semconv.SERVICE_INSTANCE_ID) or machine_and_pid)


def _third_party_instance(attributes: Mapping[str, object], role: str | None) -> str:
    """Return an id that distinguishes third-party processes while they live.

    No identity of a point depends on it.

    Equal for processes that nothing distinguishes, which then count as one.
    """
    parts = [
        role or "",
        *(
            text_in(attributes, key)
            for key in (semconv.SERVICE_INSTANCE_ID, "host.name", "process.pid")
        ),
    ]
    return (
        "third-party:"
        + hashlib.blake2b(
            "\0".join(parts).encode("utf-8", "replace"), digest_size=8
        ).hexdigest()
    )


# Resource attributes -> the origin of a span, as far as a rollout needs it. Pure.

_AGENT_LIGHTNING_FACTS = ("agentlightning.rollout_id", "agentlightning.attempt_id")
"""Resource attributes that become metadata of a third-party rollout."""


@dataclass(frozen=True, slots=True)
class SpanOrigin:
    """Describes the sender of a span, as far as a rollout needs it.

    Attributes:
        role: Role of the sender.
        run_id: Run of the sender.
        is_native: Whether our emitter made the span, and so has applied the content policy.
        facts: Resource attributes that become metadata.
        scope: The instrumentation scope.
    """

    role: str | None
    run_id: str
    is_native: bool
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    scope: str = ""


def origin_of(producer: Producer, scope: str) -> SpanOrigin:
    """Return the origin of spans of *producer* in the instrumentation scope *scope*."""
    is_native = scope == semconv.SCOPE_NAME
    facts: dict[str, Json] = {}
    if not is_native:
        facts = _agent_lightning_facts(producer.attributes)
    return SpanOrigin(
        producer.third_party_role, producer.run.id, is_native, facts, scope
    )


def _agent_lightning_facts(
    resource_attributes: Mapping[str, object],
) -> dict[str, Json]:
    """Return the resource attributes that become metadata of a third-party rollout."""
    facts: dict[str, Json] = {}
    for key in _AGENT_LIGHTNING_FACTS:
        value = resource_attributes.get(key)
        if isinstance(value, (str, int, float)):
            facts[key.rpartition(".")[2]] = value
    return facts
