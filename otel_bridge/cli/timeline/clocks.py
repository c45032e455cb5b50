"""Clocks of machines -> shifts onto the receiver's clock, by the arrivals of phases. Pure.

A phase arrives after its end. So the smallest time from an end to an arrival is the difference of
the two clocks and the shortest way through the network. The way alone cannot be measured from one
side. It is called the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.translation.phases.step_times import TimelineEvent

_PLAUSIBLE_NS = 2_000_000_000
"""Delay of a clock that needs no other reason than batches and the network."""
_TYPICAL = 0.1
"""Quantile of the delays: up to here they exceed the smallest by the usual change of the way."""


@dataclass(frozen=True, slots=True)
class MachineClock:
    """Describes the clock of one machine against that of the receiver.

    Attributes:
        host: Name of the machine; instance of the process if the machine is unknown.
        shift_ns: Added to its times.
        error_ns: How far its shifted times may be off.
    """

    host: str
    shift_ns: int = 0
    error_ns: int = 0

    def note(self) -> str:
        """Return one line on the shift and the error; empty for the machine of the bridge."""
        if not self.shift_ns and not self.error_ns:
            return ""
        error = f"within {self.error_ns / 1e6:.0f} ms"
        if not self.shift_ns:
            return f"clock of {self.host}: as the receiver's, {error}"
        direction = "ahead" if self.shift_ns < 0 else "behind"
        return f"clock of {self.host}: {abs(self.shift_ns) / 1e9:.3f} s {direction} of the receiver's, aligned {error}"


def align(steps: Sequence[TimelineStep]) -> dict[str, MachineClock]:
    """Move all times of *steps* to the clock of the receiver.

    Return the clock of each machine that sent phases, by its name; empty without phases.

    Only phases are compared, because a rollout may be logged long after its end. A machine whose
    phases came through no receiver is that of the bridge, or shares its disk: its clock stays.
    Rollouts and rows do not name their machine. They are shifted where all phases of their role are
    of one machine, and stay as they are elsewhere.
    """
    delays: dict[str, list[int]] = {}
    hosts: dict[str, set[str]] = {}
    for step in steps:
        for event in step.events:
            if event.kind != "phase":
                continue
            host = _host_of(event)
            hosts.setdefault(step.role, set()).add(host)
            of_host = delays.setdefault(host, [])
            # Only what came through a receiver has two times to compare.
            if received_ns := event.facts.get("received_ns"):
                of_host.append(received_ns - event.end_ns)
    clocks = {host: _clock(host, sorted(of_host)) for host, of_host in delays.items()}
    for step in steps:
        of_role = hosts.get(step.role, ())
        # Of several machines it is unknown which one sent a rollout.
        role_host = next(iter(of_role)) if len(of_role) == 1 else ""
        for index, event in enumerate(step.events):
            host = _host_of(event) if event.kind == "phase" else role_host
            shift_ns = clocks[host].shift_ns if host else 0
            step.events[index] = event._replace(
                start_ns=event.start_ns + shift_ns, end_ns=event.end_ns + shift_ns
            )
    return clocks


def _host_of(event: TimelineEvent) -> str:
    """Return the machine of a phase; its process, where the resource does not name the machine."""
    return event.facts.get("host") or event.track


def _clock(host: str, delays: list[int]) -> MachineClock:
    """Return the clock of a machine.

    *delays* are sorted, and empty for the machine of the bridge. The error is the shortest delay
    itself where nothing is shifted: a clock that is behind by so much gives the same delay. After a
    shift it is how much longer the way typically was than its shortest.
    """
    if not delays:
        return MachineClock(host)
    shortest = delays[0]
    # A shift that batches and the network explain is not corrected.
    if 0 <= shortest <= _PLAUSIBLE_NS:
        return MachineClock(host, error_ns=shortest)
    typical = delays[int(len(delays) * _TYPICAL)]
    return MachineClock(host, shift_ns=shortest, error_ns=typical - shortest)
