"""Holds what the parts of one exporter's delivery share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo
from otel_bridge.otlp.content import Limit
from otel_bridge.records import Position


class Describe(Protocol):
    """Describes a run from one snapshot of the ledger."""

    def __call__(self, view: LedgerView, *, reopened: bool) -> tuple[Position, RunInfo]:
        """Return the run, and the position up to which its configs are complete."""
        ...


def unlimited() -> Limit:
    """Return the limit of an exporter that gets all text."""
    return None


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Holds the sources and settings of one exporter's delivery, constant while its run is served.

    Attributes:
        name: Name of the exporter.
        ledger: The run's ledger.
        resolve: Returns the exporter and its settings; raises `ConfigError`.
        describe: Describes the run.
        say: Takes one line for the log.
        limit: Returns the most characters that a text may have for this exporter.
        more_comes: Returns whether more records are about to come at once, so that the writer may not pause.
    """

    name: str
    ledger: Ledger
    resolve: Callable[[], tuple[Exporter, ExporterSettings]]
    describe: Describe
    say: Callable[[str], None]
    limit: Callable[[], Limit] = unlimited
    more_comes: Callable[[], bool] = lambda: False
