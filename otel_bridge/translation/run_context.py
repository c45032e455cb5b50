"""What the parts of translation that collect data of one run share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_bridge.records import axis_of
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.state import TranslationState


@dataclass(frozen=True, slots=True)
class RunContext:
    """Holds what every pipeline of one run needs.

    Attributes:
        state: Stored state, in which each pipeline owns a key space; counts of drops in ``drop/``.
        options: Waiting times and bounds.
        axes: Axes of the run, and the attempt of each role.
        processes: Live view of all processes of the run.
        receive_clock: Clock of receiving: what waits does not age while no receiver is up.
    """

    state: TranslationState
    options: TranslationOptions
    axes: StepAxes
    processes: Mapping[str, Process]
    receive_clock: ReceiveClock

    def attempt_of(self, instance: str, role: str | None) -> int:
        """Return the attempt of *role* to which spans of the process *instance* belong.

        That of the process itself: after a restart spans of its predecessor may still arrive. The
        current one while nothing of the process has shown which attempt it belongs to, and for a
        process that is not known: 1 for a role that never started anew.
        """
        axis = axis_of(role)
        process = self.processes.get(instance)
        if process is not None and axis in process.attempts:
            return process.attempts[axis]
        return self.axes.current(axis)
