"""Values of the tokens of rollouts -> one row a step, and the figures of each rollout that trackers show. Pure.

Spans may come from several ranks and processes, in any order, before or after their rollouts. A step's row is sent
when nothing came for it for `TranslationOptions.row_wait_ns` after a later step of its role, or for
`step_watermark_ns`, or when the run ends. What arrives later gives a further row, which replaces the values of the
first. Log-probabilities of engine and trainer that come in different spans are joined here, by rollout.
Bad input is counted (``drop/tokens/<reason>``) and never raises.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.records import TOKENS_ID, Record, RolloutRecord, Row, axis_of
from otel_bridge.tokens.statistics import ENGINE, LOSS_MASK, TOKEN_IDS, TRAINER, Figure, Numbers, figures_of, floats_of
from otel_bridge.translation.generated_rollouts import GeneratedRollouts
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.rollouts.evaluations import ReceivedEvaluation
from otel_bridge.translation.state import TranslationState, count, name_first
from otel_bridge.translation.step_rows import ForgottenSteps, Track, step_row
from otel_bridge.translation.tokens.step import STEPS, TokenStep
from otel_bridge.translation.tokens.step_values import rollout_values, step_values
from otel_bridge.translation.tokens.streams import RolloutStreams, StreamStore
from otel_bridge.translation.tokens.token_span import TokenSpan, read_token_span
from otel_bridge.translation.tokens.views import TokenViews

INVALID: Final = "tokens/invalid"
LATE: Final = "tokens/late"
TOO_MANY: Final = "tokens/too_many"
TWICE: Final = "tokens/twice"
OTHER_LENGTH: Final = "tokens/length"
EVICTED: Final = "tokens/evicted"
_FORGOTTEN: Final = "tokens/forgotten"
_SENDER: Final = "tokens"
_MAX_STEPS: Final = 64
"""Most steps that are open or remembered, so that what is late gives a whole row."""
_NAN: Final = struct.pack("<f", float("nan"))
_CHECK_NS: Final = 1_000_000_000


class TokenPipeline:
    """Collects the tokens of one run.

    Args:
        state: Key space ``tokens/``; counts in ``drop/``.
        options: Waiting times and bounds.
        axes: Axes of the run, and the attempt of each role.
        generated: The rollouts of the run.
        publish: Callable that takes a value for a rollout, and the time, and returns the records it makes.
        receive_clock: Clock of receiving: a step does not age while no receiver is up.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        axes: StepAxes,
        *,
        generated: GeneratedRollouts,
        publish: Callable[[ReceivedEvaluation, int], list[Record]],
        receive_clock: ReceiveClock,
    ) -> None:
        self._state = state
        self._options = options
        self._axes = axes
        self._generated = generated
        self._publish = publish
        self._receive_clock = receive_clock
        steps = sorted((TokenStep.from_json(value) for _, value in state.items(STEPS)), key=lambda step: step.last_ns)
        self._steps: dict[tuple[Track, int], TokenStep] = {(step.track, step.number): step for step in steps}
        self._changed: dict[tuple[Track, int], TokenStep] = {}
        self._forgotten = ForgottenSteps(state, _FORGOTTEN)
        self._streams = StreamStore(state, options.token_bytes)
        self._views = TokenViews(self._streams, options, axes)
        self._checked_ns = 0
        with contextlib.suppress(ImportError):  # it makes sums of millions of tokens fast; trackers bring it
            importlib.import_module("numpy")

    def take(self, process: Process, role: str | None, spans: Iterable[Span], now_unix_ns: int) -> list[Record]:
        """Take spans of *process*, of its own *role*."""
        for span in spans:
            token_span = read_token_span(span)
            if token_span is None:
                self._drop(INVALID, span.name)
            else:
                self._add(process, token_span.role or role, token_span, now_unix_ns)
        self._evict()
        return self._bounded(now_unix_ns)

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the rows that are due, and the figures of rollouts that have arrived since."""
        if 0 <= now_unix_ns - self._checked_ns < _CHECK_NS:
            return []
        self._checked_ns = now_unix_ns
        records: list[Record] = [*self._views.due(now_unix_ns)]
        for step in self._ordered():
            if step.changed_ns is None:
                records += self._facts(step, now_unix_ns)
            elif self._is_due(step, step.changed_ns, now_unix_ns):
                records += self._sent(step, now_unix_ns)
        return records

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits but pages, since no more data are expected."""
        records: list[Record] = []
        for step in self._ordered():
            records += self._facts(step, now_unix_ns) if step.changed_ns is None else self._sent(step, now_unix_ns)
        return records

    def close_views(self) -> list[Record]:
        """Return the pages that wait; call after the last rollouts."""
        return [*self._views.due(None)]

    def shown(self, rollout: RolloutRecord, now_unix_ns: int) -> None:
        """Note that trackers get *rollout*: its tokens are shown with its messages."""
        self._views.shown(rollout, now_unix_ns, keep=bool(self._steps))

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        for step in self._changed.values():
            step.store(self._state)
        self._changed.clear()
        self._streams.flush()

    def _add(self, process: Process, role: str | None, span: TokenSpan, now_unix_ns: int) -> None:
        axis = axis_of(role)
        key = (role or "", process.attempts.get(axis) or self._axes.current(axis)), span.step
        step = self._step(key)
        if step is None:
            self._drop(LATE, str(span.step))
            return
        new = step.begin(span.id, len(span.rollouts), now_unix_ns, span.end_unix_ns)
        if new is None:
            self._drop(TOO_MANY, str(span.step))
        if not new:
            return
        self._changed[key] = step
        self._axes.reached(axis, span.step)
        figures = span.figures or figures_of_streams(span)
        if twice := step.add(span.rollouts, figures, self._may_show):
            count(self._state, TWICE, twice)
            name_first(self._state, TWICE, f"step {span.step}")
        self._keep(key, span, now_unix_ns)

    def _step(self, key: tuple[Track, int]) -> TokenStep | None:
        """Return a step; ``None``: it is forgotten, so that its row can no longer be made."""
        step = self._steps.get(key)
        track, number = key
        if step is None and not self._forgotten.has(track, number):
            step = self._steps[key] = TokenStep(track, number)
        return step

    def _may_show(self, trace_id: str) -> bool:
        """Return whether trackers show a rollout, or may do so once it arrives."""
        rollout = self._generated.get(trace_id)
        return rollout is None or not rollout.is_sampled_out

    # --- streams ------------------------------------------------------------------------------------------------------
    def _keep(self, key: tuple[Track, int], span: TokenSpan, now_unix_ns: int) -> None:
        """Keep the streams of rollouts that trackers may show, and those that wait for their other half."""
        by_rollout: dict[str, dict[str, bytes]] = {}
        for name, rows in span.streams.items():
            for trace_id, data in rows.items():
                by_rollout.setdefault(trace_id, {})[name] = data
        for trace_id, streams in by_rollout.items():
            rollout = self._streams.open(trace_id)
            if not span.has_mismatch and TRAINER in streams:
                rollout.waiting[key] = streams[TRAINER]
            is_shown = self._may_show(trace_id)
            waits = not span.has_mismatch and ENGINE in streams
            if is_shown or waits:
                shown = streams if is_shown else {ENGINE: streams[ENGINE]}
                rollout.put(shown, span.texts.get(trace_id), span.end_unix_ns)
            self._join(rollout, now_unix_ns)
            if rollout.streams or rollout.waiting:
                self._views.changed(rollout, now_unix_ns)
                self._streams.put(rollout)

    def _join(self, rollout: RolloutStreams, now_unix_ns: int) -> None:
        """Add the mismatch of the steps that wait for the log-probabilities of the engine, if they are there."""
        engine = rollout.streams.get(ENGINE)
        if engine is None:
            return
        for key, trainer in rollout.waiting.items():
            step = self._steps.get(key)
            if len(trainer) != len(engine):
                self._drop(OTHER_LENGTH, rollout.trace_id)
            elif step is None:
                self._drop(LATE, str(key[1]))
            else:
                numbers = {ENGINE: floats_of(engine), TRAINER: floats_of(trainer)}
                figures = figures_of(numbers, [len(engine) // 4], only_mismatch=True)
                step.add((rollout.trace_id,), figures, self._may_show)
                step.change(now_unix_ns)
                self._changed[key] = step
        rollout.waiting.clear()

    def _evict(self) -> None:
        """Forget the streams beyond the limit; a mismatch that waits for its other half is lost then."""
        while (rollout := self._streams.overdue()) is not None:
            if rollout.waiting:
                self._drop(EVICTED, rollout.trace_id)
            self._streams.forget(rollout.trace_id)

    # --- rows and figures ---------------------------------------------------------------------------------------------
    def _is_due(self, step: TokenStep, changed_ns: int, now_unix_ns: int) -> bool:
        """Return whether nothing more is expected soon for a row that has changed."""
        is_behind = any(other.track == step.track and other.number > step.number for other in self._steps.values())
        wait_ns = self._options.row_wait_ns if is_behind else self._options.step_watermark_ns
        return now_unix_ns >= self._receive_clock.due(changed_ns, wait_ns)

    def _sent(self, step: TokenStep, now_unix_ns: int) -> list[Record]:
        """Return the row of *step*, and the figures of its rollouts."""
        return [self._row(step), *self._facts(step, now_unix_ns)]

    def _row(self, step: TokenStep) -> Row:
        row = step_row(
            self._axes,
            TOKENS_ID,
            step.track,
            step.number,
            step_values(step.totals, len(step.counted)),
            revision=step.revision,
            time_unix_ns=step.end_unix_ns,
        )
        step.sent()
        self._changed[step.track, step.number] = step
        return row

    def _facts(self, step: TokenStep, now_unix_ns: int) -> list[Record]:
        """Return the figures of the rollouts of *step* that have arrived; those of others wait for them."""
        records: list[Record] = []
        for trace_id in list(step.facts):
            rollout = self._generated.get(trace_id)
            if rollout is None:
                continue
            facts = step.facts.pop(trace_id)
            self._changed[step.track, step.number] = step
            if not rollout.is_sampled_out:
                for name, number in rollout_values(facts).items():
                    records += self._publish(_value(step, trace_id, name, number), now_unix_ns)
        return records

    def _ordered(self) -> list[TokenStep]:
        return sorted(self._steps.values(), key=lambda step: (step.track, step.number))

    def _bounded(self, now_unix_ns: int) -> list[Record]:
        """Forget the oldest steps beyond the bound, after their rows."""
        records: list[Record] = []
        while len(self._steps) > _MAX_STEPS:
            key = next(iter(self._steps))
            step = self._steps[key]
            if step.changed_ns is not None:
                records += self._sent(step, now_unix_ns)
            del self._steps[key]
            self._changed.pop(key, None)
            self._state.delete(step.state_key)
            self._forgotten.add(step.track, step.number)
        return records

    def _drop(self, reason: str, name: str) -> None:
        count(self._state, reason)
        name_first(self._state, reason, name)


def _value(step: TokenStep, trace_id: str, name: str, number: float) -> ReceivedEvaluation:
    """Return a figure of a rollout as a value; that of a later step replaces it."""
    return ReceivedEvaluation(
        id=f"{TOKENS_ID}{trace_id}:{step.number}:{step.revision}:{name}",
        trace_id=trace_id,
        score=EvaluationScore(name, number),
        instance_id=_SENDER,
        seq=step.end_unix_ns,
        time_unix_ns=step.end_unix_ns,
        role=None,
        step=step.number,
    )


def figures_of_streams(span: TokenSpan) -> Mapping[str, Figure]:
    """Return the figures of the streams of a span whose sender has made none, of its rollouts in order."""
    values = {name: rows for name, rows in span.streams.items() if name not in {TOKEN_IDS, LOSS_MASK}}
    lengths = [
        max((len(rows.get(trace_id, b"")) // 4 for rows in values.values()), default=0) for trace_id in span.rollouts
    ]
    streams: dict[str, Numbers] = {}
    for name, rows in values.items():
        missing = [_NAN * length for length in lengths]
        streams[name] = floats_of(b"".join(map(rows.get, span.rollouts, missing)))
    return figures_of(streams, lengths)
