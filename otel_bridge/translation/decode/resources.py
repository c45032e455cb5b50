"""Resource attributes -> which run, and the sender. Pure; the receiver splits its requests with `run_of` too.

Source: the design, "Foreign producers": run from ``rl.run.id`` | ``rl.project`` and ``rl.run.name`` | ``nemo.run.id`` |
``service.namespace`` and ``service.name``; role from ``rl.role`` | ``service.name``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Json, run_id_of
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in

DEFAULT_PROJECT = "default"
_UNKNOWN_SERVICE = "unknown_service"
"""What SDKs call a program that was given no name, plus ``:<executable>``."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Which run: its id, and the project and name that it is shown under."""

    id: str
    project: str
    name: str


def attributes_of(resource_bytes: bytes) -> dict[str, object]:
    """Return the attributes of a serialised ``Resource``.

    Raises:
        InvalidRecordError: The bytes are not ``Resource``.
    """
    try:
        return dict(mapping_of(Resource.FromString(resource_bytes).attributes))
    except DecodeError as exc:
        raise InvalidRecordError(f"resource of {len(resource_bytes)} bytes: {exc}; expected an OTLP Resource") from exc


def run_of(attributes: Mapping[str, object]) -> RunIdentity:
    """Return the run that a resource belongs to; every resource belongs to one."""
    project = text_in(attributes, semconv.PROJECT) or text_in(attributes, semconv.SERVICE_NAMESPACE) or DEFAULT_PROJECT
    name = text_in(attributes, semconv.RUN_NAME)
    given = text_in(attributes, semconv.RUN_ID)
    if given:
        return RunIdentity(given, project, name or given)
    if name:
        return RunIdentity(run_id_of(project, name), project, name)
    name = text_in(attributes, semconv.NEMO_RUN_ID) or text_in(attributes, semconv.SERVICE_NAME) or _UNKNOWN_SERVICE
    return RunIdentity(run_id_of(project, name), project, name)


@dataclass(frozen=True, slots=True)
class Producer:
    """One resource, read once: which run, which process, which role.

    Attributes:
        attributes: All resource attributes.
        run: The run it belongs to.
        instance: ``rl.instance.id``; for a foreign producer a made-up one that begins with ``foreign:``.
        foreign: The producer does not know ``rl.instance.id``.
        role: Role of our own rows: ``rl.role`` alone.
        foreign_role: Role of anything else: ``rl.role``, else the ``service.name`` of a producer that is not ours.
        rank: Rank in the job, from 0.
        forked: A forked child of a process that sends itself.
        launcher: ``otel-bridge run`` itself.
        attempt: Which start of the role this is, where its environment names it.
        started_unix_ns: When the process joined the run, by its own clock; 0: the producer does not say.
        system: A bridge's measurements of a machine, in the name of a process that asked for them.
        anonymous: A third-party producer without id: several processes may look like this one.
    """

    attributes: Mapping[str, object]
    run: RunIdentity
    instance: str
    foreign: bool
    role: str | None
    foreign_role: str | None
    rank: int
    forked: bool
    launcher: bool
    attempt: int | None
    started_unix_ns: int = 0
    system: bool = False
    anonymous: bool = False


def producer_of(attributes: Mapping[str, object]) -> Producer:
    """Read a resource."""
    role = text_in(attributes, semconv.ROLE) or None
    instance = text_in(attributes, semconv.INSTANCE_ID)
    system = attributes.get(semconv.SYSTEM) is True
    foreign_role = None if system else role or (None if instance else _service_role(attributes))
    return Producer(
        attributes=attributes,
        run=run_of(attributes),
        instance=instance or _foreign_instance(attributes, foreign_role),
        foreign=not instance,
        role=role,
        foreign_role=foreign_role,
        rank=0 if system else _rank(attributes, foreign=not instance),
        forked=attributes.get(semconv.FORKED) is True,
        launcher=attributes.get(semconv.LAUNCHER) is True,
        attempt=int_in(attributes, semconv.ATTEMPT),
        started_unix_ns=max(int_in(attributes, semconv.INSTANCE_START) or 0, 0),
        system=system,
        anonymous=not instance and _is_anonymous(attributes),
    )


def within(outer: Mapping[str, object], inner: Mapping[str, object]) -> dict[str, object]:
    """Return the resource of what another SDK sent inside an otel-bridge process: it says who, the process which run.

    Args:
        outer: Resource of the process.
        inner: Resource of the SDK in it.
    """
    run = {key: value for key, value in outer.items() if key not in {semconv.INSTANCE_ID, semconv.SERVICE_NAME}}
    return {**run, **inner}


def _rank(attributes: Mapping[str, object], *, foreign: bool) -> int:
    rank = int_in(attributes, semconv.RANK)
    if rank is None and foreign:
        rank = int_in(attributes, semconv.DL_RANK)
    return max(rank or 0, 0)


def _service_role(attributes: Mapping[str, object]) -> str | None:
    name = text_in(attributes, semconv.SERVICE_NAME)
    return None if not name or name.startswith(_UNKNOWN_SERVICE) else name


def _is_anonymous(attributes: Mapping[str, object]) -> bool:
    """Return whether nothing distinguish the processes of one service."""
    machine_and_pid = text_in(attributes, "host.name") and text_in(attributes, "process.pid")
    return not (text_in(attributes, "service.instance.id") or machine_and_pid)


def _foreign_instance(attributes: Mapping[str, object], role: str | None) -> str:
    """Tell foreign processes apart for their life only; no identity of a point depends on it."""
    parts = [role or "", *(text_in(attributes, key) for key in ("service.instance.id", "host.name", "process.pid"))]
    return "foreign:" + hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


# Who sent a span: resource attributes -> what a rollout needs of them. Pure.

_FOREIGN_FACTS: Final = ("agentlightning.rollout_id", "agentlightning.attempt_id")
"""What SDKs call a program that was given no name."""


@dataclass(frozen=True, slots=True)
class SpanOrigin:
    """Who sent a span, as far as a rollout needs it.

    Attributes:
        role: Its role.
        run_id: Its run.
        own: The span is of our emitter, which has applied the content policy.
        facts: Resource attributes that become metadata.
        scope: The instrumentation scope.
    """

    role: str | None
    run_id: str
    own: bool
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    scope: str = ""


def role_of(resource_attributes: Mapping[str, object]) -> str | None:
    """Return the role of a process: our own name theirs, of others the service's name does."""
    role = text_in(resource_attributes, semconv.ROLE)
    if not role and semconv.INSTANCE_ID not in resource_attributes:
        service = text_in(resource_attributes, semconv.SERVICE_NAME)
        role = "" if service.startswith(_UNKNOWN_SERVICE) else service
    return role or None


def origin_of(resource_attributes: Mapping[str, object], scope: str) -> SpanOrigin:
    """Return the producer of spans of the instrumentation scope *scope*."""
    own = scope == semconv.SCOPE_NAME
    facts: dict[str, Json] = {} if own else _foreign_facts(resource_attributes)
    return SpanOrigin(role_of(resource_attributes), run_of(resource_attributes).id, own, facts, scope)


def _foreign_facts(resource_attributes: Mapping[str, object]) -> dict[str, Json]:
    """Return the resource attributes that become metadata of a foreign rollout."""
    return {
        key.rpartition(".")[2]: value
        for key in _FOREIGN_FACTS
        if isinstance(value := resource_attributes.get(key), (str, int, float))
    }
