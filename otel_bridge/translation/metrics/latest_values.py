"""Events whose values replace older ones: which of two is later, and the id of the record that one gives. Pure.

Within a process, later means the higher event number; between processes, the later time, in
whatever order events arrive. Among events of one process that have no numbers and the same time,
the last to arrive is the later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_bridge.records import Json
from otel_bridge.translation.state import identity


@dataclass(frozen=True, slots=True)
class Origin:
    """Holds which event a stored value is from.

    Attributes:
        time_unix_ns: Time of the event.
        instance: Process that sent it.
        seq: Event number, 0 when a third-party producer gave none.
    """

    time_unix_ns: int
    instance: str
    seq: int

    def replaces(self, stored: Origin) -> bool:
        """Return whether a value of this event replaces one of *stored*."""
        # A process's own numbers are its order; its clock may have been set back meanwhile.
        if self.instance == stored.instance and self.seq and stored.seq:
            return self.seq > stored.seq
        # The instance decides between equal times, so that the order of arrival does not.
        return (self.time_unix_ns, self.instance) >= (
            stored.time_unix_ns,
            stored.instance,
        )


@dataclass(frozen=True, slots=True)
class ValuesEvent:
    """Holds one call of ``log_config()`` or ``summary()``.

    Attributes:
        replaces: Whether a nested value replaces the one of its name, with which it is merged
            otherwise.
    """

    origin: Origin
    role: str | None
    values: Mapping[str, Json]
    replaces: bool = False

    def record_id(self, kind: str) -> str:
        """Return the id of the record of *kind* that this event gives.

        Equal for a redelivered event.
        """
        origin = self.origin
        if origin.seq:
            return f"{kind}:{origin.instance}:{origin.seq}"
        parts = (origin.instance, self.role, origin.time_unix_ns, self.values)
        return f"{kind}:{identity(*parts).hex()}"
