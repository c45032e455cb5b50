"""Spans of one trace -> the facts that sampling needs, and the `records.Rollout`.

Pure. Third-party GenAI traces contribute the root span of an agent or a chat, messages of their
chat spans, and rewards in the style of agent-lightning (``agentlightning.reward.<n>.{name,value}``
on a span of the trace).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.content.otlp import apply_to_span
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.content.rollout_size import shrunk
from otel_bridge.conventions import GENERATION, is_content
from otel_bridge.otlp.json_text import as_text
from otel_bridge.records import (
    TRAIN,
    Json,
    Message,
    PlainTrace,
    RolloutRecord,
    axis_of,
    is_evaluation,
    key_of,
)
from otel_bridge.sampling_rule import is_truncated
from otel_bridge.translation.decode import spans as reading
from otel_bridge.translation.decode.attributes import (
    as_float,
    as_int,
    as_ints,
    as_name,
    int_in,
    mapping_of,
    value_of,
)
from otel_bridge.translation.decode.content_events import folded
from otel_bridge.translation.decode.resources import SpanOrigin
from otel_bridge.translation.decode.shared_messages import with_messages
from otel_bridge.translation.rollouts.conversation import (
    Turn,
    in_order,
    is_same,
    merged,
)

_AGENT_LIGHTNING_REWARD = "agentlightning.reward."


@dataclass(frozen=True, slots=True)
class ReceivedTrace:
    """Holds all received spans of one trace.

    Attributes:
        id: 32 hex digits.
        spans: Spans with their producers; when a span id occurs twice, the first span wins.
    """

    id: str
    spans: Sequence[tuple[SpanOrigin, Span]]


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    """Holds a value for a rollout that arrived apart from its trace."""

    name: str
    value: float | None
    label: str | None = None
    explanation: str | None = None

    @property
    def has_value(self) -> bool:
        """Return whether there is a value or a label."""
        return self.value is not None or self.label is not None


@dataclass(frozen=True, slots=True)
class SamplingFacts:
    """Holds what sampling and statistics use of a rollout."""

    role: str | None
    split: str
    step: int | None
    group: str | None
    reward: float | None
    failed: bool
    truncated: bool
    start_unix_ns: int
    end_unix_ns: int
    run_id: str = ""
    attempt: int = 1
    staleness: int | None = None
    policy_version: int | None = None
    dataset: str | None = None
    open_steps: tuple[int, ...] | None = None

    @property
    def track(self) -> tuple[str, str, int]:
        """Role (empty without one), split and attempt: the track of the rollout's step."""
        return self.role or "", self.split, self.attempt


@dataclass(frozen=True, slots=True)
class RolloutAssembler:
    """Makes rollout records; holds the limits.

    Attributes:
        key: Key of the rollouts in trackers; ``{split}`` is replaced.
        content: Content policy of third-party producers.
        limit_bytes: Size limit of a rollout.
        count: Counter by reason, for what is cut, removed or skipped.
    """

    key: str
    content: ContentPolicy
    limit_bytes: int
    count: Callable[[str, int], None]

    def rollout_key(
        self, role: str | None, split: str, process_key: Json = None
    ) -> str:
        """Return the key of this role's and split's rollouts in trackers.

        *process_key*: the process's own setting.
        """
        return key_of(
            role, (as_name(process_key) or self.key).replace("{split}", split)
        )

    def facts(self, trace: ReceivedTrace) -> SamplingFacts:
        """Return the facts that sampling needs.

        Messages are not read where the root names its finish reason.

        Attributes of the subject decide; what it lacks is read from its other spans, as far as a
        third-party producer puts it there. A missing or odd value gives ``None``, a missing split
        ``train``.

        They are read before the choice, because only kept rollouts are worth reading their
        messages.
        """
        spans, _ = folded(trace.spans)
        origin, subject = _subject(spans)
        attributes: dict[str, Json] = {}
        for pair in subject.attributes:
            if not is_content(pair.key):
                attributes[pair.key] = pair.value.string_value or value_of(pair.value)
        if not _is_rollouts_own(subject):
            attributes = {**attributes, **_start_attributes(spans)}
        reason = reading.finish_reason_of(attributes)
        # Only then are other spans read, of which a rollout may have thousands.
        if reason is None:
            reason = _last_reason(_ordered(spans))
        reward, _ = _rewards(attributes, spans)
        split = as_name(attributes.get(semconv.SPLIT)) or TRAIN
        step = _step(attributes, spans)
        version = int_in(attributes, semconv.POLICY_VERSION)
        return SamplingFacts(
            role=as_name(attributes.get(semconv.ROLE)) or origin.role,
            split=split,
            step=step,
            group=as_name(attributes.get(semconv.GROUP_ID)),
            reward=reward,
            failed=reading.error_of(subject) is not None,
            truncated=is_truncated(reason),
            start_unix_ns=subject.start_time_unix_nano,
            end_unix_ns=reading.end_of(subject),
            run_id=origin.run_id,
            staleness=_staleness(step, split, version),
            policy_version=version,
            dataset=as_name(attributes.get(semconv.DATASET)),
            open_steps=as_ints(attributes.get(semconv.ROLLOUTS_OPEN_STEPS)),
        )

    def rollout(
        self,
        trace: ReceivedTrace,
        facts: SamplingFacts,
        scores: Sequence[EvaluationScore],
        steps: Mapping[str, int],
    ) -> RolloutRecord:
        """Return the record.

        *facts* are those that sampling used, *scores* the evaluations that arrived in time.

        Never raises: an odd attribute is left out of its field. A rollout without its root has the
        facts of its first span, and those that its root had at its start, and is marked as
        incomplete.
        """
        ordered = self._shown_spans(trace)
        origin, subject = _subject(ordered)
        limited_spans, clipped = self._limited(with_messages(ordered, subject))
        spans = [reading.read_span(span) for span in limited_spans]
        if skipped := sum(span.skipped for span in spans):
            self.count("message/invalid", skipped)
        root = _root(spans, subject)
        has_root = _is_rollouts_own(subject)
        # A root that arrived states the end; without it the last span does.
        end_ns = reading.end_of(subject)
        if not has_root:
            end_ns = max(reading.end_of(span) for _, span in ordered)
        attributes = root.attributes
        if not has_root:
            attributes = {**attributes, **_start_attributes(ordered)}
        axis = None
        all_steps = dict(steps)
        if facts.step is not None:
            axis = axis_of(facts.role)
            # Its own step on its axis, whatever the role's other records were at.
            all_steps[axis] = facts.step
        metadata = _metadata(trace.id, attributes, origin)
        score_values: dict[str, float] = {}
        remarks = _remarks(scores, metadata)
        for score in scores:
            if score.value is not None:
                score_values[score.name] = score.value
        # What arrived by itself is newer than what the trace states.
        reward, rewards = _rewards(attributes, ordered)
        reward = score_values.pop("reward", reward)
        advantage = score_values.pop(
            "advantage", as_float(attributes.get(semconv.ADVANTAGE))
        )
        rewards.update(score_values)
        return RolloutRecord(
            id=trace.id,
            role=facts.role,
            key=self.rollout_key(
                facts.role, facts.split, attributes.get(semconv.ROLLOUT_KEY)
            ),
            step=facts.step,
            axis=axis,
            start_unix_ns=subject.start_time_unix_nano,
            end_unix_ns=end_ns,
            messages=_conversation(root, spans),
            spans=[span.record() for span in spans],
            group=facts.group,
            reward=reward,
            rewards=rewards,
            advantage=advantage,
            finish_reason=_finish_reason(root, spans),
            metadata=metadata,
            error=root.error,
            incomplete=not has_root,
            clipped_bytes=clipped + max(int_in(attributes, semconv.CLIPPED) or 0, 0),
            steps=all_steps,
            remarks=remarks,
            split=as_name(attributes.get(semconv.SPLIT)),
            sample=int_in(attributes, semconv.SAMPLE_INDEX),
            trajectory_id=as_name(attributes.get(semconv.TRAJECTORY_ID)),
            prompt_index=int_in(attributes, semconv.PROMPT_INDEX),
            batch_index=int_in(attributes, semconv.BATCH_INDEX),
            policy_version=int_in(attributes, semconv.POLICY_VERSION),
            dataset=as_name(attributes.get(semconv.DATASET)),
            dataset_index=int_in(attributes, semconv.DATASET_INDEX),
            tools=_below(semconv.TOOL_PREFIX, attributes),
        )

    def other(self, trace: ReceivedTrace) -> list[PlainTrace]:
        """Return the record of a trace that is not a rollout, with the limits and redaction of rollouts.

        Nothing for log records alone, as may arrive after their rollout. Messages that spans of a
        rollout share are not given to them, since their root is not among late spans.
        """
        ordered = self._shown_spans(trace)
        if not ordered:
            return []
        limited_spans, _ = self._limited(ordered)
        spans = [reading.read_span(span).record() for span in limited_spans]
        return [
            PlainTrace(
                trace.id,
                ordered[0][0].role,
                spans[0].name,
                min(span.start_unix_ns for span in spans),
                max(span.end_unix_ns for span in spans),
                spans,
            )
        ]

    def _shown_spans(self, trace: ReceivedTrace) -> list[tuple[SpanOrigin, Span]]:
        """Return the spans of *trace* in order, each log record with messages as an event of its span.

        Records whose span is not among them are left out and counted (``event/no_span``): once the
        trace is shown, none of them can be.
        """
        spans, missing = folded(trace.spans)
        if missing:
            self.count("event/no_span", missing)
        return _ordered(spans)

    def _limited(
        self, ordered: Sequence[tuple[SpanOrigin, Span]]
    ) -> tuple[list[Span], int]:
        """Return the spans within the limits, and the number of bytes cut from them.

        Spans of our emitter have been through the policy of their own process; only the size limit
        applies to them. Texts of unknown names that the policy cut or removed are counted
        (``unknown_text``).
        """
        clipped = 0
        spans: list[Span] = []
        for origin, span in ordered:
            # The emitter has applied the policy of its own process.
            if origin.is_native:
                spans.append(_without_start(span))
                continue
            # A copy: its size is compared with that of the span as received.
            allowed = Span.FromString(span.SerializeToString())
            unknown_texts = apply_to_span(allowed, self.content)
            spans.append(allowed)
            if unknown_texts:
                self.count("unknown_text", unknown_texts)
            if self.content.limit is not None:
                clipped += max(span.ByteSize() - allowed.ByteSize(), 0)
        spans, shrunk_bytes = shrunk(spans, self.limit_bytes)
        return spans, clipped + shrunk_bytes


def _below(prefix: str, attributes: Mapping[str, Json]) -> dict[str, Json]:
    """Return the attributes whose key begins with *prefix*, by the rest of the key."""
    return {
        key[len(prefix) :]: value
        for key, value in attributes.items()
        if key.startswith(prefix)
    }


def _ordered(spans: Sequence[tuple[SpanOrigin, Span]]) -> list[tuple[SpanOrigin, Span]]:
    """Return each span once, the root first, then by start time."""
    return sorted(first_by_id(spans).values(), key=_order)


def first_by_id(
    spans: Sequence[tuple[SpanOrigin, Span]],
) -> dict[bytes, tuple[SpanOrigin, Span]]:
    """Return each span once, the first that was received with its id."""
    by_id: dict[bytes, tuple[SpanOrigin, Span]] = {}
    for pair in spans:
        by_id.setdefault(pair[1].span_id, pair)
    return by_id


def _order(pair: tuple[SpanOrigin, Span]) -> tuple[bool, int, bytes]:
    span = pair[1]
    return (not reading.is_root(span), span.start_time_unix_nano, span.span_id)


def _subject(spans: Sequence[tuple[SpanOrigin, Span]]) -> tuple[SpanOrigin, Span]:
    """Return the span that describes the rollout: the span marked as one, else the root, else the first span.

    Of several marked spans or roots the earliest wins, and the id decides between equal times.
    """
    rollout_roots = [
        pair
        for pair in spans
        if pair[1].name == semconv.ROLLOUT_SPAN and reading.is_root(pair[1])
    ]
    # Of several roots of that name none describes the whole.
    if len(rollout_roots) == 1:
        return rollout_roots[0]
    return min(spans, key=lambda pair: (not reading.is_marked(pair[1]), *_order(pair)))


def _is_rollouts_own(subject: Span) -> bool:
    """Return whether *subject* describes the rollout, and does not only stand in for a root that never came."""
    return reading.is_root(subject) or reading.is_marked(subject)


def _start_attributes(spans: Sequence[tuple[SpanOrigin, Span]]) -> dict[str, Json]:
    """Return the attributes that the root of a live rollout had at its start.

    Its first child has them. Empty without that child.
    """
    for origin, span in spans:
        for pair in span.attributes:
            if origin.is_native and pair.key == semconv.ROLLOUT_START:
                return mapping_of(pair.value.kvlist_value.values)
    return {}


def _without_start(span: Span) -> Span:
    """Return *span* as trackers show it: without the attributes of its root."""
    if not any(pair.key == semconv.ROLLOUT_START for pair in span.attributes):
        return span
    stripped = Span.FromString(span.SerializeToString())
    del stripped.attributes[:]
    stripped.attributes.extend(
        pair for pair in span.attributes if pair.key != semconv.ROLLOUT_START
    )
    return stripped


def _step(
    attributes: Mapping[str, Json], spans: Sequence[tuple[SpanOrigin, Span]]
) -> int | None:
    """Return the step of the subject, else the first step that any span names.

    ``None`` when no span names a step as a whole number. Of several spans the first by precedence
    of the name, then by start: frameworks put the step on any span.
    """
    keys = (semconv.STEP, *semconv.THIRD_PARTY_STEPS)
    for key in keys:
        step = int_in(attributes, key)
        if step is not None:
            return step
    steps: list[tuple[int, int, int]] = []
    for _, span in spans:
        for pair in span.attributes:
            step = None
            if pair.key in keys:
                step = as_int(value_of(pair.value))
            if step is not None:
                steps.append((keys.index(pair.key), span.start_time_unix_nano, step))
    if steps:
        return min(steps)[2]
    return None


def _staleness(step: int | None, split: str, version: int | None) -> int | None:
    """Return the number of steps the policy is behind.

    ``None`` for an evaluator, which counts its own steps.

    ``None`` also without step or version, or for numbers that JSON does not hold exactly.
    """
    if (
        step is None
        or version is None
        or is_evaluation(split)
        or not -(1 << 53) < step - version < 1 << 53
    ):
        return None
    return step - version


def _last_reason(ordered: Sequence[tuple[SpanOrigin, Span]]) -> str | None:
    """Return the finish reason of the last span that has one, ``None`` without any."""
    for _, span in reversed(ordered):
        for pair in span.attributes:
            reason = None
            if pair.key in reading.FINISH_KEYS:
                reason = reading.finish_reason_of({pair.key: value_of(pair.value)})
            if reason:
                return reason
    return None


def _rewards(
    attributes: Mapping[str, Json], spans: Sequence[tuple[SpanOrigin, Span]]
) -> tuple[float | None, dict[str, float]]:
    """Return the reward and its parts, from the subject, else from a span in the style of agent-lightning.

    ``None`` and no parts when neither has one. agent-lightning emits each reward as a span of its
    own; the last one is the rollout's, and its reward is the one of number 0.
    """
    parts: dict[str, float] = {}
    for name, value in _below(semconv.REWARDS_PREFIX, attributes).items():
        part = as_float(value)
        if part is not None:
            parts[name] = part
    reward = as_float(attributes.get(semconv.REWARD))
    if reward is not None or parts:
        return reward, parts
    with_reward: list[Span] = []
    for origin, span in spans:
        if not origin.is_native and _has_agent_lightning_reward(span):
            with_reward.append(span)
    if not with_reward:
        return None, {}
    # The id decides between equal times, so that every redelivery gives the same reward.
    last = max(with_reward, key=lambda span: (span.start_time_unix_nano, span.span_id))
    fields = _below(_AGENT_LIGHTNING_REWARD, mapping_of(last.attributes))
    return as_float(fields.get("0.value")), _agent_lightning_rewards(fields)


def _has_agent_lightning_reward(span: Span) -> bool:
    return any(pair.key.startswith(_AGENT_LIGHTNING_REWARD) for pair in span.attributes)


def _agent_lightning_rewards(fields: Mapping[str, Json]) -> dict[str, float]:
    """Return the rewards by name; one without a name has its number as the name."""
    rewards: dict[str, float] = {}
    for key, value in fields.items():
        index, _, field = key.partition(".")
        reward = as_float(value)
        if field == "value" and reward is not None:
            rewards[as_name(fields.get(f"{index}.name")) or index] = reward
    return rewards


def _metadata(
    trace_id: str, attributes: Mapping[str, Json], origin: SpanOrigin
) -> dict[str, Json]:
    """Return the user's metadata, and the facts without a field of their own.

    A user's own key wins over such a fact.
    """
    metadata = _below(semconv.METADATA_PREFIX, attributes)
    rollout_id = as_name(attributes.get(semconv.ROLLOUT_ID))
    # An id that is the trace's own would only repeat it.
    if rollout_id is not None and rollout_id != trace_id:
        metadata.setdefault("rollout_id", rollout_id)
    version = attributes.get(semconv.POLICY_VERSION)
    # A version that is not a number, such as a commit, has no field of its own.
    if version is not None and as_int(version) is None:
        metadata.setdefault("policy_version", version)
    # What the user wrote under that name stays.
    for key, value in origin.facts.items():
        metadata.setdefault(key, value)
    return metadata


def _remarks(
    scores: Sequence[EvaluationScore], metadata: dict[str, Json]
) -> dict[str, Sequence[str | None]]:
    """Return label and explanation of the evaluations that have one, by name.

    They are added to *metadata* too, where some trackers show values of a rollout.
    """
    remarks: dict[str, Sequence[str | None]] = {}
    for score in scores:
        if score.label:
            metadata[f"{score.name}.label"] = score.label
        if score.explanation:
            metadata[f"{score.name}.explanation"] = score.explanation
        if score.label is not None or score.explanation:
            remarks[score.name] = [score.label, score.explanation]
    return remarks


def _root(spans: Sequence[reading.SpanFacts], subject: Span) -> reading.SpanFacts:
    """Return the facts of *subject*, or those of the first span if the size limit removed it."""
    for span in spans:
        if span.otlp.span_id == subject.span_id:
            return span
    return spans[0]


def _finish_reason(
    root: reading.SpanFacts, spans: Sequence[reading.SpanFacts]
) -> str | None:
    """Return the finish reason of the root, else that of the last span that has one."""
    for span in (root, *reversed(spans)):
        if span.finish_reason:
            return span.finish_reason
    return None


def _conversation(
    root: reading.SpanFacts, spans: Sequence[reading.SpanFacts]
) -> list[Message]:
    """Return the root's messages, else the messages of the chat spans (the root may be a chat span itself).

    Without a chat span those of the first span that has any. Empty when no span has messages.
    """
    turns = _turns(spans)
    if root.kind != GENERATION and (root.prompt or root.answer):
        return in_order(root.prompt, root.answer, turns)
    results: dict[str, str] = {}
    for span in spans:
        if not turns and (span.prompt or span.answer):
            turns.append((span.prompt, span.answer))
        answer = reading.tool_answer(span)
        if answer is not None:
            call_id, result = answer
            results[call_id] = as_text(result)
    return merged(turns, results)


def _turns(spans: Sequence[reading.SpanFacts]) -> list[Turn]:
    """Return input and output of each call of a model.

    A framework's call of a model has the call of the client below it: what both were asked is one turn.
    """
    generations = {span.otlp.span_id: span for span in spans if span.kind == GENERATION}
    turns: list[Turn] = []
    for span in generations.values():
        outer = generations.get(span.otlp.parent_span_id)
        if outer is None or not outer.answer or not is_same(outer.prompt, span.prompt):
            turns.append((span.prompt, span.answer))
    return turns
