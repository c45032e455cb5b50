"""Timeline -> Chrome's trace-event JSON, which Perfetto and ``chrome://tracing`` open. Pure.

A role is a process there, and each rank a thread with its phases. The rollouts of a role are
another process. Spans that do not nest get a further thread, since the format draws only nested
ones.
Source: "Trace Event Format", the document of Chromium's trace viewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.translation.phases.timeline import TimelineEvent

_SYNC = re.compile(r"(?<![a-z])(?:sync|weights?)(?![a-z])")
"""Words in the names of phases that update the weights of the engines.

``async`` and ``weighted`` are other words.
"""
_StepEvent: TypeAlias = tuple[int, TimelineEvent]


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
                    process = event.facts.get("rank", 0), event.track
                    by_rank.setdefault(process, []).append((step.step, event))
                elif event.kind == "mark":
                    self._mark(pid, step.step, event)
                else:
                    rollouts.append((step.step, event))
        for (rank, _), phases in sorted(by_rank.items()):
            host = phases[0][1].facts.get("host")
            name = f"rank {rank} on {host}" if host else f"rank {rank}"
            self._rank(pid, name, phases)
        if rollouts:
            self._rollouts(self._process(f"{role or 'run'} rollouts"), rollouts)

    def _rank(self, pid: int, name: str, phases: Iterable[_StepEvent]) -> None:
        lanes: list[list[int]] = []
        tids: list[int] = []
        for step, event in sorted(phases, key=_by_start):
            lane = _lane_of(lanes, event)
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
        lanes: list[list[int]] = []
        lane_of: dict[str, int] = {}
        tids: list[int] = []
        for step, event in sorted(events, key=_by_start):
            # Its spans come after their rollout, and begin to look at the rollout's own lane.
            lane = _lane_of(lanes, event, first=lane_of.get(event.track, 0))
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
            arguments = {"value": value}
            self._event("C", (pid, 0), event.start_ns, name=key, args=arguments)

    def _span(
        self,
        track: tuple[int, int],
        event: TimelineEvent,
        name: str,
        arguments: dict[str, Any],
    ) -> None:
        self._event(
            "X",
            track,
            event.start_ns,
            name=name,
            cat=event.kind,
            dur=(event.end_ns - event.start_ns) / 1000,
            args=arguments,
        )

    def _instant(
        self, track: tuple[int, int], name: str, time_ns: int, scope: str
    ) -> None:
        self._event("i", track, time_ns, name=name, s=scope)

    def _event(
        self, kind: str, track: tuple[int, int], time_ns: int, **facts: object
    ) -> None:
        """Add an event on a track: process and thread."""
        pid, tid = track
        time_us = (time_ns - self._zero_ns) / 1000
        self.events.append({"ph": kind, "pid": pid, "tid": tid, "ts": time_us, **facts})

    def _process(self, name: str) -> int:
        self._processes += 1
        self._describe("process", self._processes, 0, name)
        return self._processes

    def _thread(self, pid: int, name: str) -> int:
        self._threads += 1
        self._describe("thread", pid, self._threads, name)
        return self._threads

    def _describe(self, kind: str, pid: int, tid: int, name: str) -> None:
        """Name a process or thread, and sort it by its number."""
        for fact, argument in (("name", name), ("sort_index", tid or pid)):
            event = {"ph": "M", "name": f"{kind}_{fact}", "pid": pid, "tid": tid}
            self.events.append({**event, "args": {fact: argument}})


def _by_start(entry: _StepEvent) -> tuple[int, int]:
    # Of spans that begin together the longest first, since it holds the others.
    return entry[1].start_ns, -entry[1].end_ns


def _lane_of(lanes: list[list[int]], event: TimelineEvent, *, first: int = 0) -> int:
    """Return the first of *lanes*, from *first* on, on which a span nests, a new one if need be.

    A lane holds the ends of its open spans, the innermost last. Spans come in the order of their
    starts, so those that have ended cannot hold a later one.
    """
    for number in range(first, len(lanes)):
        ends = lanes[number]
        while ends and ends[-1] <= event.start_ns:
            ends.pop()
        if not ends or event.end_ns <= ends[-1]:
            ends.append(event.end_ns)
            return number
    lanes.append([event.end_ns])
    return len(lanes) - 1
