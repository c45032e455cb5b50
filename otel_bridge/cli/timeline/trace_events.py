"""Timeline -> Chrome's trace-event JSON, which Perfetto and ``chrome://tracing`` open. Pure.

A role is a process there, and each rank a thread with its phases. The rollouts of a role are
another process. Spans that do not nest get a further thread, since the format draws only nested
ones.
Source: "Trace Event Format", the document of Chromium's trace viewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import count, groupby
from operator import attrgetter
from typing import Any, TypeAlias

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.translation.phases.step_times import TimelineEvent

_SYNC = re.compile(r"(?<![a-z])(?:sync|weights?)(?![a-z])")
"""Words in the names of phases that update the weights of the engines.

``async`` and ``weighted`` are other words.
"""
_StepEvent: TypeAlias = tuple[int, TimelineEvent]


def trace_of(steps: Iterable[TimelineStep]) -> dict[str, Any]:
    """Return the trace of *steps*, in the order of their roles, whose times are on one clock."""
    writer = _TraceWriter()
    for role, of_role in groupby(steps, attrgetter("role")):
        writer.role(role, of_role)
    return {"traceEvents": writer.events, "displayTimeUnit": "ms"}


class _TraceWriter:
    """Collects trace events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._numbers = count(1)

    def role(self, role: str, steps: Iterable[TimelineStep]) -> None:
        """Add the tracks of one role: a thread a rank, the rollouts as a process of their own.

        Marks of steps and rates belong to the process as a whole, which is its thread 0.
        """
        pid = self._track(role or "run")
        # By process as well: a forked child and a restart have the rank of another one.
        ranks: dict[tuple[int, str], list[_StepEvent]] = {}
        rollouts: list[_StepEvent] = []
        for step in steps:
            for event in step.events:
                if event.kind == "phase":
                    process = event.facts.get("rank", 0), event.track
                    ranks.setdefault(process, []).append((step.step, event))
                elif event.kind == "mark":
                    track = pid, 0
                    title = f"step {step.step}"
                    self._event("i", track, event.start_ns, name=title, s="p")
                    for key, value in event.facts.items():
                        arguments = {"value": value}
                        self._event(
                            "C", track, event.start_ns, name=key, args=arguments
                        )
                else:
                    rollouts.append((step.step, event))
        for (rank, _), phases in sorted(ranks.items()):
            host = phases[0][1].facts.get("host")
            name = f"rank {rank} on {host}" if host else f"rank {rank}"
            self._spans(pid, name, phases)
        if rollouts:
            pid = self._track(f"{role or 'run'} rollouts")
            self._spans(pid, "lane", rollouts)

    def _spans(self, pid: int, name: str, events: Iterable[_StepEvent]) -> None:
        """Add spans to a process, each to the first of its threads on which it nests.

        Spans that overlap without nesting are drawn wrongly on one thread. The spans of a rollout
        begin to look at the rollout's own thread, or they might nest in another rollout of that
        time.
        """
        lanes: dict[int, list[int]] = {}
        lane_of: dict[str, int] = {}
        # Of those that begin together the longest first, which holds the others.
        for step, event in sorted(
            events, key=lambda entry: (entry[1].start_ns, -entry[1].end_ns)
        ):
            lane = _free_lane(lanes, event, first=lane_of.get(event.track, 0))
            if lane is None:
                track_name = f"{name}, {len(lanes) + 1}" if lanes else name
                lane = self._track(track_name, pid)
                lanes[lane] = []
            lanes[lane].append(event.end_ns)
            track = pid, lane
            title = event.name
            arguments: dict[str, Any] = {"step": step}
            if event.kind == "rollout":
                lane_of[event.name] = lane
                title = f"rollout {event.name[:8]}"
                arguments |= {"id": event.name, **event.facts}
            self._event(
                "X",
                track,
                event.start_ns,
                name=title,
                cat=event.kind,
                dur=event.end_ns // 1000 - event.start_ns // 1000,
                args=arguments,
            )
            # Across all tracks: rollouts after it were sampled by the new weights.
            if event.kind == "phase" and _SYNC.search(event.name.lower()):
                self._event("i", track, event.end_ns, name=f"{event.name} done", s="g")
            if (reward := arguments.get("reward")) is not None:
                self._event(
                    "i", track, event.end_ns, name=f"reward {reward:.4g}", s="t"
                )

    def _event(
        self, kind: str, track: tuple[int, int], time_ns: int, **facts: object
    ) -> None:
        """Add an event on a track: process and thread, 0 for the process itself.

        Times are whole microseconds, so that no rounding of a viewer moves an inner span out of the
        outer one. Viewers begin with the earliest.
        """
        pid, tid = track
        place = {"ph": kind, "pid": pid, "tid": tid, "ts": time_ns // 1000}
        self.events.append({**place, **facts})

    def _track(self, name: str, process: int = 0) -> int:
        """Add a process, or a thread of *process*, and return its number, by which viewers sort it.

        Both are numbered together, in the order in which they are added.
        """
        number = next(self._numbers)
        kind = "process"
        track = {"pid": number, "tid": 0}
        if process:
            kind = "thread"
            track = {"pid": process, "tid": number}
        for fact, argument in (("name", name), ("sort_index", number)):
            facts = {"name": f"{kind}_{fact}", "args": {fact: argument}}
            self.events.append({"ph": "M", **track, **facts})
        return number


def _free_lane(
    lanes: Mapping[int, list[int]], event: TimelineEvent, *, first: int
) -> int | None:
    """Return the first of *lanes*, from *first* on, on which a span nests; ``None`` without one.

    A lane is a thread, with the ends of its open spans, the innermost last. Spans come in the order
    of their starts, so those that have ended cannot hold a later one.
    """
    for lane, ends in lanes.items():
        while ends and ends[-1] <= event.start_ns:
            ends.pop()
        if lane >= first and (not ends or event.end_ns <= ends[-1]):
            return lane
    return None
