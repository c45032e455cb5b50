"""Defines what one exporter's delivery is given, and what other threads request of it.

How records are delivered is in four modules, from top to bottom: `delivery`, `writer_session`,
`retry`, `batch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from otel_bridge.bridge.ledger.run_description import RunDescription
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.content.policy import Limit
from otel_bridge.exporter import Exporter, ExporterSettings
from otel_bridge.records import Position, Status

Names: TypeAlias = dict[str, tuple[str, ...]]
"""Signals by the name of the exporter that gets them."""


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Holds the sources and settings of one exporter's delivery, constant while its run is served.

    Attributes:
        name: Name of the exporter.
        ledger: The run's ledger.
        resolve: Returns the exporter and its settings; raises `ConfigError`.
        describe: Describes the run.
        log_line: Takes one line for the log.
        limit: Returns the most characters that a text may have for this exporter; ``None`` for no
            limit.
        more_comes: Returns whether the writer must go on without a pause, because more records are
            about to come or the bridge drains.
    """

    name: str
    ledger: Ledger
    resolve: Callable[[], tuple[Exporter, ExporterSettings]]
    describe: RunDescription
    log_line: Callable[[str], None]
    limit: Callable[[], Limit] = lambda: None
    more_comes: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class FinalPosition:
    """Describes the last record of an exporter that no process requests any more.

    Attributes:
        position: Position of the last record for the exporter.
        status: Status of the last process that requested the exporter.
    """

    position: Position
    status: Status = Status.FINISHED


class DeliveryRequests:
    """Holds what other threads request of one exporter's delivery. Thread-safe.

    Each request wakes the exporter's thread, once `wake_by` was called. The position of
    `skip_through` is taken once, before the next step. A dead letter stays until `dead_letter_done`,
    `signals` and `final_position` until they are replaced.

    Args:
        signals: Signals that the exporter is named for.
        final_position: Its last record, if no process requests it any more; ``None`` while a
            process requests it.

    Attributes:
        signals: The signals to deliver, read anew for each batch. Whatever is read from the ledger
            after a change follows the change.
        final_position: The last record to deliver, where the tracker's run ends; ``None`` to
            deliver all.
    """

    def __init__(
        self, signals: Sequence[str], final_position: FinalPosition | None = None
    ) -> None:
        self.signals = signals
        self.final_position = final_position
        # The bridge's thread adds, the exporter's thread removes: each by one operation, which needs
        # no lock.
        self._dead_letters: dict[int, None] = {}
        self._skip_through: deque[Position] = deque(maxlen=1)
        self._wake: Callable[[], None] = lambda: None

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Call *wake* after each further request."""
        self._wake = wake

    @property
    def dead_letters(self) -> Sequence[int]:
        """Return the ids of the dead letters to retry that are not done yet, in the order of the requests."""
        return tuple(self._dead_letters)

    def set_signals(self, signals: Sequence[str]) -> None:
        """Deliver these signals of every record that is committed from now on."""
        self.signals = signals
        self._wake()

    def stop_at(self, last: FinalPosition | None) -> None:
        """Deliver records up to *last* only, and end the tracker's run there; ``None`` for all."""
        if self.final_position != last:
            self.final_position = last
            self._wake()

    def skip_through(self, through: Position) -> None:
        """Count records written up to *through* as durable, so that they can be evicted.

        A later request replaces one that is not carried out yet; eviction repeats those that
        failed.
        """
        self._skip_through.append(through)
        self._wake()

    def retry_dead_letters(self, ids: Iterable[int]) -> None:
        """Retry these dead letters, in their order."""
        self._dead_letters.update(dict.fromkeys(ids))
        self._wake()

    def dead_letter_done(self, number: int) -> None:
        """Mark the retry of a dead letter as done; it need not be requested any more."""
        self._dead_letters.pop(number, None)

    def take_skip(self) -> Position | None:
        """Return the position of the last `skip_through`, once; ``None`` without a new one."""
        if self._skip_through:
            return self._skip_through.pop()
        return None
