"""Who sent a span: resource attributes -> what a rollout needs of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.translation.attributes import text_in
from otel_bridge.translation.identity import run_of

_FOREIGN_FACTS: Final = ("agentlightning.rollout_id", "agentlightning.attempt_id")
_UNKNOWN_SERVICE: Final = "unknown_service"
"""What SDKs call a program that was given no name."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Who sent a span, as far as a rollout needs it.

    Attributes:
        role: Its role.
        run_id: Its run.
        own: The span is of our emitter, which has applied the content policy.
        facts: Resource attributes that become metadata.
    """

    role: str | None
    run_id: str
    own: bool
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])


def role_of(resource_attributes: Mapping[str, object]) -> str | None:
    """Return the role of a process: our own name theirs, of others the service's name does."""
    role = text_in(resource_attributes, semconv.ROLE)
    if not role and semconv.INSTANCE_ID not in resource_attributes:
        service = text_in(resource_attributes, semconv.SERVICE_NAME)
        role = "" if service.startswith(_UNKNOWN_SERVICE) else service
    return role or None


def producer_of(resource_attributes: Mapping[str, object], scope: str) -> Producer:
    """Return the producer of spans of the instrumentation scope *scope*."""
    own = scope == semconv.SCOPE_NAME
    facts: dict[str, Json] = {} if own else _foreign_facts(resource_attributes)
    return Producer(role_of(resource_attributes), run_of(resource_attributes).id, own, facts)


def _foreign_facts(resource_attributes: Mapping[str, object]) -> dict[str, Json]:
    """Return the resource attributes that become metadata of a foreign rollout."""
    return {
        key.rpartition(".")[2]: value
        for key in _FOREIGN_FACTS
        if isinstance(value := resource_attributes.get(key), (str, int, float))
    }
