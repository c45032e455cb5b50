"""Timeline -> Chrome's trace-event JSON, which Perfetto and ``chrome://tracing`` open. Pure.

A role is a process there, and each rank a thread with its phases. The rollouts of a role are
another process. Spans that do not nest get a further thread, since the format draws only nested
ones.
Source: "Trace Event Format", the document of Chromium's trace viewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.translation.phases.timeline import TimelineEvent

_SYNC = re.compile(r"(?<![a-z])(?:sync|weights?)(?![a-z])")
"""Words in the names of phases that update the weights of the engines.

``async`` and ``weighted`` are other words.
"""
_StepEvent: TypeAlias = tuple[int, TimelineEvent]


@dataclass(slots=True)
class _Lanes:
    """Holds the threads of one track, each with the ends of its open spans, the innermost last."""

    lanes: list[list[int]] = field(default_factory=list[list[int]])

    def place(self, start_ns: int, end_ns: int, *, first: int = 0) -> int:
        """Return the first thread, from *first* on, on which a span nests.

        Spans come in the order of their starts.
        """
        for number in range(first, len(self.lanes)):
            ends = self.lanes[number]
            # Spans come by their starts, so those that have ended cannot hold a later one.
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return number
        self.lanes.append([end_ns])
        return len(self.lanes) - 1


def trace_of(steps: Sequence[TimelineStep]) -> dict[str, Any]:
    """Return the trace of *steps*, whose times are on one clock."""
    writer = _TraceWriter(
        min((event.start_ns for step in steps for event in step.events), default=0)
    )
    for role in dict.fromkeys(step.role for step in steps):
        writer.role(role, [step for step in steps if step.role == role])
    return {"traceEvents": writer.events, "displayTimeUnit": "ms"}


class _TraceWriter:
    """Collects trace events; *zero_ns* is the time that the trace begins with."""

    def __init__(self, zero_ns: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._zero_ns = zero_ns
        self._processes = 0
        self._threads = 0

    def role(self, role: str, steps: Sequence[TimelineStep]) -> None:
        """Add the tracks of one role."""
        pid = self._process(role or "run")
        # By process as well: a forked child and a restart have the rank of another one.
        by_rank: dict[tuple[int, str], list[_StepEvent]] = {}
        rollouts: list[_StepEvent] = []
        for step in steps:
            for event in step.events:
                if event.kind == "phase":
                    by_rank.setdefault(
                        (event.facts.get("rank", 0), event.track), []
                    ).append((step.step, event))
                elif event.kind == "mark":
                    self._mark(pid, step.step, event)
                else:
                    rollouts.append((step.step, event))
        for (rank, _), phases in sorted(by_rank.items()):
            host = phases[0][1].facts.get("host")
            self._rank(
                pid, f"rank {rank} on {host}" if host else f"rank {rank}", phases
            )
        if rollouts:
            self._rollouts(self._process(f"{role or 'run'} rollouts"), rollouts)

    def _rank(self, pid: int, name: str, phases: Iterable[_StepEvent]) -> None:
        lanes = _Lanes()
        tids: list[int] = []
        for step, event in sorted(phases, key=_by_start):
            lane = lanes.place(event.start_ns, event.end_ns)
            if lane == len(tids):
                tids.append(
                    self._thread(pid, name if not lane else f"{name}, {lane + 1}")
                )
            track = pid, tids[lane]
            self._span(track, event, event.name, {"step": step})
            # Across all tracks: rollouts after it were sampled by the new weights.
            if _SYNC.search(event.name.lower()):
                self._instant(track, f"{event.name} done", event.end_ns, "g")

    def _rollouts(self, pid: int, events: Iterable[_StepEvent]) -> None:
        """Add the rollouts of a role, each on the first free thread, with its spans below."""
        lanes = _Lanes()
        lane_of: dict[str, int] = {}
        tids: list[int] = []
        for step, event in sorted(events, key=_by_start):
            # Its spans come after their rollout, and begin to look at the rollout's own lane.
            lane = lanes.place(
                event.start_ns, event.end_ns, first=lane_of.get(event.track, 0)
            )
            if lane == len(tids):
                tids.append(self._thread(pid, f"lane {lane + 1}"))
            track = pid, tids[lane]
            if event.kind != "rollout":
                self._span(track, event, event.name, {"step": step})
                continue
            lane_of[event.name] = lane
            self._span(
                track,
                event,
                f"rollout {event.name[:8]}",
                {"step": step, "id": event.name, **event.facts},
            )
            if (reward := event.facts.get("reward")) is not None:
                self._instant(track, f"reward {reward:.4g}", event.end_ns, "t")

    def _mark(self, pid: int, step: int, event: TimelineEvent) -> None:
        self._instant((pid, 0), f"step {step}", event.start_ns, "p")
        for key, value in event.facts.items():
            time_us = self._time_us(event.start_ns)
            self.events.append(
                {
                    "ph": "C",
                    "name": key,
                    "pid": pid,
                    "ts": time_us,
                    "args": {"value": value},
                }
            )

    def _span(
        self,
        track: tuple[int, int],
        event: TimelineEvent,
        name: str,
        arguments: dict[str, Any],
    ) -> None:
        pid, tid = track
        self.events.append({
            "ph": "X", "name": name, "cat": event.kind, "pid": pid, "tid": tid, "ts": self._time_us(event.start_ns),
            "dur": (event.end_ns - event.start_ns) / 1000, "args": arguments,
        })  # fmt: skip

    def _instant(
        self, track: tuple[int, int], name: str, time_ns: int, scope: str
    ) -> None:
        pid, tid = track
        time_us = self._time_us(time_ns)
        self.events.append(
            {"ph": "i", "name": name, "s": scope, "pid": pid, "tid": tid, "ts": time_us}
        )

    def _process(self, name: str) -> int:
        self._processes += 1
        pid = self._processes
        self.events.append(
            {
                "ph": "M",
                "name": "process_name",
                "pid": pid,
                "tid": 0,
                "args": {"name": name},
            }
        )
        self.events.append(
            {
                "ph": "M",
                "name": "process_sort_index",
                "pid": pid,
                "tid": 0,
                "args": {"sort_index": pid},
            }
        )
        return pid

    def _thread(self, pid: int, name: str) -> int:
        self._threads += 1
        tid = self._threads
        self.events.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": pid,
                "tid": tid,
                "args": {"name": name},
            }
        )
        self.events.append(
            {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": pid,
                "tid": tid,
                "args": {"sort_index": tid},
            }
        )
        return tid

    def _time_us(self, time_ns: int) -> float:
        return (time_ns - self._zero_ns) / 1000


def _by_start(entry: _StepEvent) -> tuple[int, int]:
    # Of spans that begin together the longest first, since it holds the others.
    return entry[1].start_ns, -entry[1].end_ns
