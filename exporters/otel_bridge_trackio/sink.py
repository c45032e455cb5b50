"""What stores the entries of a run: the local database, its inbox, or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from otel_bridge.records import Alert, Evaluation, Position
from otel_bridge_trackio.media import Put
from otel_bridge_trackio.payload import Payload
from otel_bridge_trackio.versions import TrackioAbilities


class StoreEntry(NamedTuple):
    """Holds one row of the store: its metrics or traces, with their step, ISO time and id."""

    position: Position
    log_id: str
    step: int
    timestamp: str
    metrics: Payload


class EntrySink(ABC):
    """Stores the entries of one run; what only some stores can do is refused here.

    Each method raises only `RetryableError`, `BlockedError` or `PermanentError`. After the first the
    bridge makes the call again later, after the second every minute, with its help shown. After the
    third the record is a dead letter, and those behind it follow.

    Attributes:
        abilities: Abilities of the Trackio that shows the entries.
    """

    abilities: TrackioAbilities

    @abstractmethod
    def write(
        self, entries: Sequence[StoreEntry], config: Payload | None = None
    ) -> None:
        """Store *entries*, and *config* with them; an error names the first entry that is not stored.

        Raises:
            RetryableError: The store is locked, full, slow or cannot be reached.
            BlockedError: A person must act.
            PermanentError: One entry can never be stored.
        """

    def rows(self) -> int:
        """Return how many records the store holds of the run, 0 where they cannot be read."""
        return 0

    def config(self) -> Payload:
        """Return the run's config as it is stored, empty when there is none or it cannot be read."""
        return {}

    def name_held(self) -> str:
        """Return the name of the run's rows, empty when it has none or that cannot be read."""
        return ""

    def rename(self, name: str) -> bool:  # noqa: ARG002  # for a store that can
        """Give the run's rows another name; return whether that is possible."""
        return False

    def add_late_values(self, values: Sequence[Evaluation]) -> Sequence[Evaluation]:
        """Add *values* to the traces of their rollouts.

        Return those that need a trace of their own.
        """
        return values

    def alert(self, alerts: Sequence[Alert]) -> bool:  # noqa: ARG002  # for a store that can
        """Store *alerts*, each once by its id; return whether the store has alerts."""
        return False

    def media(self) -> Put | None:
        """Return what stores the files of media, ``None`` when the store takes none."""
        return None

    def close(self) -> None:  # noqa: B027  # most keep nothing open
        """Release what the store keeps open between calls; may be called twice."""
