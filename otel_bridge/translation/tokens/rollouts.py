"""Streams of the last rollouts, and a page of each that trackers show, as media beside it. Pure.

Streams wait for the other half of the mismatch, and for what trackers show of their rollout. A page
is sent when nothing came for it for `TranslationOptions.row_wait_ns`, or when the run ends; streams
that come later give a further one. Owns ``tokens/streams/`` of the state, an entry a rollout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from otel_bridge.records import TOKENS_ID, MediaItem, MediaRecord, RolloutRecord
from otel_bridge.tokens.statistics import (
    ABSOLUTE,
    figures_of_rollouts,
    floats_of,
    streams_of_figures,
)
from otel_bridge.tokens.view import page_of, view_of
from otel_bridge.translation.packing import packed, unpacked, unpacked_below
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count
from otel_bridge.translation.step_rows import StepKey
from otel_bridge.values.mappings import present

PREFIX = "tokens/"
MAXIMUM = f"{PREFIX}mismatch/max"
PAGES = "tokens"
"""Last part of the key of the pages, below the key of the rollouts."""
EVICTED = "tokens/evicted"
_SPACE = "tokens/streams/"
_ENTRY_BYTES = 512
_RECENT = 256


@dataclass(slots=True)
class RolloutTokens:
    """Holds the streams of one rollout.

    Attributes:
        streams: 32-bit floats by name.
        times: Unix ns of the span that each stream is of: a later one replaces it.
        waiting: Steps whose mismatch waits for the log-probabilities of the engine, with those of
            the trainer.
        texts: Texts of the tokens.
        record: The rollout without its spans, once trackers have it.
        paged_ns: Unix ns of the last stream in the page that trackers have; 0: none.
    """

    trace_id: str
    streams: dict[str, bytes] = field(default_factory=dict[str, bytes])
    times: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[StepKey, bytes] = field(default_factory=dict[StepKey, bytes])
    texts: list[str] = field(default_factory=list[str])
    record: RolloutRecord | None = None
    paged_ns: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the streams, and of what is stored beside them."""
        streams = (*self.streams.values(), *self.waiting.values())
        return _ENTRY_BYTES + sum(map(len, streams))

    @property
    def last_ns(self) -> int:
        """Unix ns of the last stream; 0 without any."""
        return max(self.times.values(), default=0)

    def add(
        self, streams: Mapping[str, bytes], texts: list[str] | None, time_unix_ns: int
    ) -> None:
        """Take over *streams*, unless a later span has sent them, and the texts of the tokens, if there are any.

        By the time of the span, since spans may arrive in another order than they were sent in.
        """
        self.texts = texts or self.texts
        for name, data in streams.items():
            if time_unix_ns >= self.times.get(name, 0):
                self.streams[name] = data
                self.times[name] = time_unix_ns


class TokenRollouts:
    """Keeps the streams of the last rollouts, and makes their pages.

    Args:
        run: The run. Without content in its policy it has no pages, which show texts of messages.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._sizes: dict[str, int] = {}
        self._unpaged: dict[str, int] = {}
        """Trace id to the time of the last change that its page lacks."""
        # A run without tokens stores nothing of its rollouts; the first annotation finds them here.
        self._recent: dict[str, RolloutRecord] = {}
        rollouts = unpacked_below(RolloutTokens, run.state, _SPACE).values()
        # The state is ordered by trace id. By their streams, which is nearly the order of their
        # arrival, in which they are forgotten.
        for rollout in sorted(rollouts, key=attrgetter("last_ns")):
            self._note(rollout, 0)

    def get(self, trace_id: str) -> RolloutTokens:
        """Return the streams of a rollout, none for a new one; call `put` after a change."""
        stored = self._run.state.get(f"{_SPACE}{trace_id}")
        if stored is None:
            return RolloutTokens(trace_id)
        return unpacked(RolloutTokens, stored)

    def put(self, rollout: RolloutTokens, now_unix_ns: int) -> None:
        """Store the streams of a rollout.

        Its page is due again if it has newer ones than the last page.
        """
        rollout.record = self._recent.pop(rollout.trace_id, rollout.record)
        self._run.state.set(f"{_SPACE}{rollout.trace_id}", packed(rollout))
        self._note(rollout, now_unix_ns)

    def _note(self, rollout: RolloutTokens, now_unix_ns: int) -> None:
        self._sizes[rollout.trace_id] = rollout.size_bytes
        if rollout.record is not None and rollout.last_ns > rollout.paged_ns:
            self._unpaged[rollout.trace_id] = now_unix_ns

    def evict(self) -> None:
        """Forget the rollouts that came first until the limit of bytes is met.

        Those whose half waited are counted: of the others trackers have all but a page.
        """
        limit = self._run.options.token_bytes
        # The last one stays even if it is over the limit alone, or it could never be joined.
        while len(self._sizes) > 1 and sum(self._sizes.values()) > limit:
            rollout = self.get(next(iter(self._sizes)))
            del self._sizes[rollout.trace_id]
            self._unpaged.pop(rollout.trace_id, None)
            self._run.state.delete(f"{_SPACE}{rollout.trace_id}")
            if rollout.waiting:
                count(self._run.state, EVICTED, name=rollout.trace_id)

    def show(self, record: RolloutRecord, now_unix_ns: int, *, keep: bool) -> None:
        """Note that trackers get a rollout; nothing if the policy has no content.

        With *keep*, also if none of its tokens have come yet. Else the last `_RECENT` are in
        memory.
        """
        if self._run.options.content.off:
            return
        self._recent[record.id] = replace(record, spans=())
        if keep or record.id in self._sizes:
            self.put(self.get(record.id), now_unix_ns)
        elif len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def pages(self, now_unix_ns: int | None) -> Iterator[MediaRecord]:
        """Yield the pages that are due; ``None``: all of them.

        Spans of several ranks and steps follow each other, so that a page waits until none came for
        a while.
        """
        wait_ns = self._run.options.row_wait_ns
        for trace_id, changed_ns in list(self._unpaged.items()):
            if now_unix_ns is not None and now_unix_ns < changed_ns + wait_ns:
                continue
            del self._unpaged[trace_id]
            rollout = self.get(trace_id)
            if rollout.record is not None:
                yield self._page(rollout, rollout.record)
                rollout.paged_ns = rollout.last_ns
                self.put(rollout, changed_ns)

    def _page(self, rollout: RolloutTokens, record: RolloutRecord) -> MediaRecord:
        """Return the page of a rollout.

        A page is placed at the step of its rollout, however late it is; without one by time.
        """
        rollout_id = record.metadata.get("rollout_id")
        title = rollout_id if isinstance(rollout_id, str) else record.id
        facts = {
            "step": record.step,
            "group": record.group,
            "reward": record.reward,
            "finish": record.finish_reason,
        }
        texts = {name: str(fact) for name, fact in present(facts).items()}
        texts |= _figures(rollout.streams)
        numbers: dict[str, list[float]] = {}
        for name, data in rollout.streams.items():
            numbers[name] = floats_of(data).tolist()
        view = view_of(title, texts, record.messages, rollout.texts, numbers)
        page = page_of(view).encode()
        digest = hashlib.sha256(page).hexdigest()
        steps = self._run.axes.steps()
        if record.axis is not None and record.step is not None:
            steps[record.axis] = record.step
        return MediaRecord(
            id=f"{TOKENS_ID}{record.id}:{rollout.last_ns}",
            role=record.role,
            key=f"{record.key}/{PAGES}",
            step=record.step,
            axis=record.axis,
            time_unix_ns=rollout.last_ns,
            items=[MediaItem("html", "text/html", page, digest, title)],
            steps=steps,
        )


def _figures(streams: Mapping[str, bytes]) -> dict[str, str]:
    """Return the figures of a rollout as text.

    Nothing when its streams are of different lengths: spans of several steps may have been cut at
    different tokens, and a mismatch would compare tokens with others.
    """
    texts: dict[str, str] = {}
    if len(set(map(len, streams_of_figures(streams).values()))) == 1:
        for name, figure in figures_of_rollouts([streams]).items():
            for key, number in rollout_values(name, *figure.rollouts[:, 0]).items():
                texts[key] = f"{number:.4g}"
    return texts


def rollout_values(
    name: str, count: float, total: float, maximum: float | None = None
) -> dict[str, float]:
    """Return the values of the tokens of a figure: their mean, and the mismatch's maximum.

    Nothing without any.
    """
    values: dict[str, float] = {}
    if count:
        values[f"{PREFIX}{name}"] = total / count
        if name == ABSOLUTE and maximum is not None:
            values[MAXIMUM] = maximum
    return values
