"""Streams of rollouts that trackers show -> a page of each, as media beside the rollout. Pure.

A page is sent when nothing came for it for `TranslationOptions.row_wait_ns`, or when the run ends;
streams that come later give a further one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from otel_bridge.records import TOKENS_ID, Json, MediaItem, MediaRecord, RolloutRecord
from otel_bridge.tokens.names import REFERENCES
from otel_bridge.tokens.statistics import Numbers, figures_of, floats_of
from otel_bridge.tokens.view import page_of, view_of
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.tokens.step import rollout_values
from otel_bridge.translation.tokens.streams import RolloutStreams, StreamStore

VIEWS = "tokens"
"""Last part of the key of the pages, below the key of the rollouts."""
_RECENT = 256


class TokenViews:
    """Makes the pages of one run.

    Args:
        streams: Streams of the rollouts.
        options: Waiting time, and content policy: without content there are no pages.
        axes: Step axes of the run.
    """

    def __init__(
        self, streams: StreamStore, options: TranslationOptions, axes: StepAxes
    ) -> None:
        self._streams = streams
        self._options = options
        self._axes = axes
        self._changed = dict.fromkeys(streams.with_news, 0)
        # A run without tokens stores nothing of its rollouts; the first annotation finds them here.
        self._recent: dict[str, dict[str, Json]] = {}

    def shown(self, rollout: RolloutRecord, now_unix_ns: int, *, keep: bool) -> None:
        """Note that trackers get *rollout*.

        With *keep*, also if none of its tokens have come yet.
        """
        # A page shows the texts of messages.
        if self._options.content.off:
            return
        facts = _facts_of(rollout)
        streams = self._streams.get(rollout.id)
        if streams is None and not keep:
            self._recent[rollout.id] = facts
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]
            return
        streams = streams or RolloutStreams(rollout.id)
        streams.show(facts)
        self.changed(streams, now_unix_ns)
        self._streams.put(streams)

    def changed(self, rollout: RolloutStreams, now_unix_ns: int) -> None:
        """Note that streams of a rollout have come."""
        facts = self._recent.pop(rollout.trace_id, None)
        if facts is not None:
            rollout.show(facts)
        if rollout.has_news:
            self._changed[rollout.trace_id] = now_unix_ns

    def due(self, now_unix_ns: int | None) -> Iterator[MediaRecord]:
        """Yield the pages that are due; ``None``: all of them."""
        for trace_id, changed_ns in list(self._changed.items()):
            if (
                now_unix_ns is None
                or now_unix_ns >= changed_ns + self._options.row_wait_ns
            ):
                del self._changed[trace_id]
                rollout = self._streams.get(trace_id)
                # The streams may have been evicted since.
                if rollout is not None and rollout.has_news:
                    yield self._record(rollout)
                    self._streams.put(rollout)

    def _record(self, rollout: RolloutStreams) -> MediaRecord:
        facts: dict[str, Any] = rollout.rollout_facts
        numbers = {name: floats_of(data) for name, data in rollout.streams.items()}
        streams = {name: stream.tolist() for name, stream in numbers.items()}
        time_unix_ns = max(rollout.times.values())
        page = page_of(
            view_of(
                str(facts["title"]),
                {**facts["facts"], **_figures(numbers)},
                facts["messages"],
                rollout.texts,
                streams,
            )
        ).encode()
        step = facts["step"]
        axis = facts["axis"]
        if axis is None or step is None:
            steps = self._axes.steps()
        else:
            steps = self._axes.beside(axis, step)
        return MediaRecord(
            id=f"{TOKENS_ID}{rollout.trace_id}:{rollout.viewed()}",
            role=facts["role"],
            key=f"{facts['key']}/{VIEWS}",
            step=step,
            axis=axis,
            time_unix_ns=time_unix_ns,
            items=[
                MediaItem(
                    "html",
                    "text/html",
                    page,
                    hashlib.sha256(page).hexdigest(),
                    str(facts["title"]),
                )
            ],
            steps=steps,
        )


def _facts_of(rollout: RolloutRecord) -> dict[str, Json]:
    rollout_id = rollout.metadata.get("rollout_id")
    optional_facts = {
        "step": rollout.step,
        "group": rollout.group,
        "reward": rollout.reward,
        "finish": rollout.finish_reason,
    }
    return {
        "key": rollout.key,
        "role": rollout.role,
        "step": rollout.step,
        "axis": rollout.axis,
        "title": rollout_id if isinstance(rollout_id, str) else rollout.id,
        "facts": {
            name: str(fact) for name, fact in optional_facts.items() if fact is not None
        },
        "messages": [*rollout.messages],
    }


def _figures(streams: Mapping[str, Numbers]) -> dict[str, str]:
    """Return the figures of the rollout as text.

    Nothing when its streams are of different lengths.
    """
    values = {
        name: stream for name, stream in streams.items() if name not in REFERENCES
    }
    lengths = set(map(len, values.values()))
    if len(lengths) != 1:
        return {}
    figures = figures_of(values, [lengths.pop()])
    facts = {
        name: [
            figure.counts[0],
            figure.sums[0],
            figure.maxima[0] if figure.maxima else 0.0,
        ]
        for name, figure in figures.items()
    }
    return {name: f"{number:.4g}" for name, number in rollout_values(facts).items()}
