"""Info families of engines -> the config of the role ``engine``: address, then family, then its labels. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import Config, Json
from otel_bridge.semconv import ENGINE_ROLE
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.translation.engines.points import info_labels
from otel_bridge.translation.metrics.configs import Configs
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.state import TranslationState


class EngineFacts:
    """Holds what the engines of one run are.

    Args:
        state: Stores the config of the role.
    """

    def __init__(self, state: TranslationState) -> None:
        self._configs = Configs(state)
        self._facts: dict[str, dict[str, Json]] = {}

    def take(
        self, address: str, metrics: Iterable[pb.Metric], time_unix_ns: int
    ) -> list[Config]:
        """Return the new config of the role, if the engine at *address* has other facts than before."""
        last_facts = self._facts.get(address, {})
        facts = dict(last_facts)
        for family, labels in info_labels(metrics):
            facts[family] = {name: redact_text(label) for name, label in labels.items()}
        if facts == last_facts:
            return []
        self._facts[address] = facts
        # As a whole: a label that a restarted engine no longer has must not stay.
        event = ValuesEvent(
            Origin(time_unix_ns, address, 0),
            ENGINE_ROLE,
            {address: facts},
            replaces=True,
        )
        return self._configs.merge(event)
