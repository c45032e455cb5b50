"""Finished `Rollout` -> one record: a ``ScopeSpans`` with its root and all its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from otel_bridge import semconv
from otel_bridge.emit.config.snapshot import RolloutOptions
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode import span as span_encoding
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import Utf8, utf8_array
from otel_bridge.emit.messages.attachments import media_facts
from otel_bridge.emit.messages.content_filter import ContentFilter
from otel_bridge.emit.messages.conversation import (
    Content,
    EncodedMessage,
    MessageLimits,
    content_of,
)
from otel_bridge.emit.messages.parts import ToolAnswer, ToolCall
from otel_bridge.emit.rollouts.kept import note_kept
from otel_bridge.emit.rollouts.rollout import Rollout, mapping_or, turns_of
from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import trace_id_of
from otel_bridge.values.mappings import without
from otel_bridge.values.plain import CLIPPED, Losses, dumps
from otel_bridge.values.scalars import key_text, own_text

_MAX_TIME = 1 << 63


class CallContext(NamedTuple):
    """Holds what the rollouts of one call share.

    Attributes:
        role: Role, when it differs from the resource's.
        link: The caller's span, encoded, or empty.
        open_steps: Steps with open live rollouts; ``None``: nothing new.
    """

    run_id: str
    step: int | None
    split: str | None
    role: str | None
    options: RolloutOptions
    link: bytes = b""
    open_steps: Sequence[int] | None = None


def trace_id_bytes(run_id: str, rollout_id: str) -> bytes:
    """Return the trace id, as bytes, of a rollout with the user's own id."""
    return bytes.fromhex(trace_id_of(run_id, rollout_id))


def identity_attributes(call: CallContext, rollout_id: str) -> Pairs:
    """Return the attributes that place a rollout: its id, and ``None`` for step, split and role that it lacks."""
    return [
        (semconv.ROLLOUT_ID, rollout_id),
        (semconv.STEP, call.step),
        (semconv.ROLE, call.role),
        (semconv.SPLIT, call.split),
        (semconv.ROLLOUT_KEY, call.options.key or None),
        (semconv.ROLLOUTS_OPEN_STEPS, call.open_steps),
    ]


def encode_rollout(
    rollout: Rollout, call: CallContext, now_unix_ns: int
) -> tuple[bytes, Losses]:
    """Encode a finished rollout.

    What the program's own objects raise is raised: the caller drops the rollout, counted as
    ``rollout_unreadable``. The root comes first in the record, and announces the number of spans,
    so that a bridge need not wait for more.

    Args:
        rollout: The rollout; its step and split are those of *call*.
        call: Facts that its call shares.
        now_unix_ns: End of a rollout that names no end.

    Returns:
        The record, and what of the rollout is not in it.
    """
    rollout_id = coerce.name(rollout.id)
    content = rollout_content(rollout, call.options.limits)
    random = os.urandom(24)
    if rollout_id is None:
        trace_id = random[:16]
    else:
        trace_id = trace_id_bytes(call.run_id, rollout_id)
    note_kept(trace_id)
    start, end = _times(rollout, content, now_unix_ns)
    parent = SpanParent(trace_id, random[16:], start, end)
    children = child_spans(rollout, content, parent)
    pairs = identity_attributes(call, rollout_id or trace_id.hex())
    pairs += root_attributes(rollout, content, call.options.limits)
    pairs.append((semconv.SPAN_COUNT, len(children) + 1))
    events = b""
    error = None
    if rollout.error is not None:
        kind, error = failure(rollout.error, content.content_filter)
        events = span_encoding.exception_event(end, kind, error)
    root = span_encoding.span(
        (trace_id, parent.root_id, None),
        semconv.ROLLOUT_SPAN,
        (start, end),
        span_encoding.span_attributes(pairs),
        events=events,
        links=call.link,
        error=error,
    )
    losses = content.content_filter.losses
    return span_encoding.scope_spans([root, *children]), losses


def rollout_content(rollout: Rollout, limits: MessageLimits) -> Content:
    """Encode the conversation of a rollout with the media of its metadata.

    Trackers show media where messages are, and not among facts. Code of the user's messages costs
    itself alone.
    """
    media = media_facts(mapping_or(rollout.metadata, "metadata")).values()
    return content_of(rollout.messages, limits, media=list(chain.from_iterable(media)))


def _times(rollout: Rollout, content: Content, now_unix_ns: int) -> tuple[int, int]:
    """Return start and end; a rollout without either ends now and lasts a nanosecond per child.

    Times that are not numbers, lie beyond 64 bits, or end before they start count as missing:
    viewers order the children by their times.
    """
    end = coerce.integer(rollout.end_unix_ns)
    if end is None or not 0 < end < _MAX_TIME:
        end = now_unix_ns
    start = coerce.integer(rollout.start_unix_ns)
    if start is None or not 0 < start <= end:
        # At most one child for a message, and one for each further answer of a tool.
        start = end - sum(max(len(message.answers), 1) for message in content.messages)
        # An end in another unit may be a small number, and no span starts before 1970.
        start = max(start, 1)
    return start, end


def caller_link() -> bytes:
    """Return an encoded link to the caller's current span; empty when there is none.

    A link, not a parent: a rollout is always a trace of its own, which a bridge collects by its id.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if (
        trace is None
    ):  # no code in this process makes spans: importing the API would find none
        return b""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return b""
    return span_encoding.link(
        context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
    )


# Facts of one `Rollout` -> attributes of its root span. Pure.

ASSISTANT = "assistant"
BAD_FIELD = "rollout_field"
_MAX_FACTS = 256
_TOKEN_FIELDS = {
    "input_tokens": semconv.GEN_AI_INPUT_TOKENS,
    "output_tokens": semconv.GEN_AI_OUTPUT_TOKENS,
}
_TURN_FIELDS = frozenset(
    {"reward", "finish_reason", *_TOKEN_FIELDS, "token_ids", "logprobs", "loss_mask"}
)
Pairs: TypeAlias = "list[tuple[str, Attribute | Utf8]]"
"""Attributes in order."""


def _integer_or_name(value: object) -> int | str | None:
    plain = coerce.integer(value)
    if plain is None:
        return coerce.name(value)
    return plain


_SCALARS: Mapping[str, tuple[str, Callable[[object], int | float | str | None]]] = {
    "group": (semconv.GROUP_ID, coerce.name),
    "trajectory_id": (semconv.TRAJECTORY_ID, coerce.name),
    "prompt_index": (semconv.PROMPT_INDEX, coerce.integer),
    "sample": (semconv.SAMPLE_INDEX, coerce.integer),
    "batch_index": (semconv.BATCH_INDEX, coerce.integer),
    "reward": (semconv.REWARD, coerce.number),
    "advantage": (semconv.ADVANTAGE, partial(coerce.number, mean=True)),
    "policy_version": (semconv.POLICY_VERSION, _integer_or_name),
    "dataset": (semconv.DATASET, coerce.name),
    "dataset_index": (semconv.DATASET_INDEX, _integer_or_name),
    "model": (semconv.GEN_AI_REQUEST_MODEL, coerce.name),
    "input_tokens": (semconv.GEN_AI_INPUT_TOKENS, coerce.integer),
    "output_tokens": (semconv.GEN_AI_OUTPUT_TOKENS, coerce.integer),
}
"""Field of a rollout -> attribute and reader."""


def root_attributes(rollout: Rollout, content: Content, limits: MessageLimits) -> Pairs:
    """Return the attributes of the root without its id, step, split and number of spans.

    What cannot be read is counted as ``rollout_field``. Facts have a quarter of the rollout's limit
    each, so that they leave half of it to the messages.
    """
    pairs: Pairs = []
    content_filter = content.content_filter
    pairs += _scalar_pairs(rollout, content_filter.losses)
    is_in_parts = isinstance(rollout.reward, Mapping)
    parts = mapping_or(rollout.reward if is_in_parts else rollout.rewards, "rewards")
    pairs += _numbers(semconv.REWARDS_PREFIX, parts, content_filter)
    reason = coerce.name(rollout.finish_reason)
    if reason is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    budget = limits.rollout_bytes // 4
    tools = mapping_or(rollout.tools, "calls")
    pairs += free_facts(semconv.TOOL_PREFIX, tools, content_filter, budget)
    metadata = mapping_or(rollout.metadata, "metadata")
    for name in media_facts(metadata):
        del metadata[name]
    pairs += free_facts(semconv.METADATA_PREFIX, metadata, content_filter, budget)
    if not content_filter.off:
        pairs += conversation_attributes(content.messages)
    if content_filter.clipped_bytes:
        pairs.append((semconv.CLIPPED, content_filter.clipped_bytes))
    return pairs


def _scalar_pairs(rollout: Rollout, losses: Losses) -> Pairs:
    """Return the attributes of the fields of one value.

    Those that cannot be read are counted as ``rollout_field``.
    """
    pairs: Pairs = []
    for field, (key, read) in _SCALARS.items():
        raw: object = getattr(rollout, field)
        if raw is None:
            continue
        value = read(raw)
        if value is not None:
            pairs.append((key, value))
        elif field != "reward":  # that is counted for all rollouts of a call
            losses.add(BAD_FIELD, 1, field)
    return pairs


def _numbers(
    prefix: str, values: Mapping[Any, Any], content_filter: ContentFilter
) -> Pairs:
    """Return the parts of a reward.

    A part that is not a number, or beyond 256, is counted as ``rollout_reward``.
    """
    pairs: Pairs = []
    for key, value in content_filter.entries(values, "rewards").items():
        number = coerce.number(value)
        if number is None or len(pairs) >= _MAX_FACTS:
            content_filter.losses.add("rollout_reward", 1, key)
        else:
            pairs.append((f"{prefix}{key}", number))
    return pairs


def free_facts(
    prefix: str, values: Mapping[Any, Any], content_filter: ContentFilter, budget: int
) -> Pairs:
    """Encode free facts within *budget* characters; the others are counted as ``clipped``.

    A fact that does not fit ends nothing: later ones count against what is left, and are left out
    as well.

    Args:
        prefix: Beginning of the keys.
        values: The facts.
        content_filter: Filter of the texts.
        budget: Most characters of all facts.
    """
    pairs: Pairs = []
    for key, fact in content_filter.facts(values, "").items():
        size = len(fact) if isinstance(fact, str) else len(dumps(fact))
        budget -= len(key) + size
        if budget < 0 or len(pairs) >= _MAX_FACTS:
            content_filter.clipped_bytes += size
            content_filter.losses.add(CLIPPED, 1, key)
        else:
            pairs.append((f"{prefix}{key}", fact))
    return pairs


def conversation_attributes(messages: Sequence[EncodedMessage]) -> Pairs:
    """Return input (all messages but the last answer) and output (the last answer).

    Both are there even if empty. The place of the answer among the input follows from the index in
    its child.
    """
    rest = list(messages)
    output: list[EncodedMessage] = []
    # Messages after the last answer (a tool's answer in a truncated rollout) belong to the input as
    # well.
    for index in reversed(range(len(messages))):
        if messages[index].role == ASSISTANT:
            output.append(rest.pop(index))
            break
    return [
        (semconv.GEN_AI_INPUT_MESSAGES, json_array(rest)),
        (semconv.GEN_AI_OUTPUT_MESSAGES, json_array(output)),
    ]


def json_array(messages: Iterable[EncodedMessage]) -> Utf8:
    """Join messages to a JSON array."""
    return utf8_array([message.json for message in messages])


def failure(
    error: str | BaseException, content_filter: ContentFilter
) -> tuple[str, str]:
    """Return type and text of an error.

    With policy ``off`` its type in place of the text, which may quote a prompt.
    """
    if isinstance(error, BaseException):
        kind = type(error).__qualname__
    else:
        kind = "Error"
    if content_filter.off:
        return kind, kind
    return kind, content_filter.error(_error_text(error))


def closing_fields(
    pairs: Pairs,
    error: str | BaseException | None,
    end_unix_ns: int,
    content_filter: ContentFilter,
) -> bytes:
    """Encode attributes, and the event and status of an *error*, which a live span gets at its end.

    They are merged into the SDK's encoded span: set as its attributes they would pass the content
    policy twice.
    """
    fields = span_encoding.span_attributes(pairs)
    if error is None:
        return fields
    kind, text = failure(error, content_filter)
    return fields + span_encoding.failure_fields(end_unix_ns, kind, text)


def _error_text(error: str | BaseException) -> str:
    """Return the text of an error; empty when it has none that may be shown, or raises.

    ``str()`` of an exception whose arguments are objects would show their ``repr()``, with
    addresses and secrets.
    """
    try:
        if isinstance(error, BaseException):
            text = own_text(error)
        else:
            text = key_text(error)
    except any_error_but_signals():  # code of the user's own exception
        return ""
    return text or ""


def without_traceback(error: str | BaseException | None) -> str | None:
    """Return the error of a closed span as text, ``None`` without an error.

    Its traceback holds the frame of the block, whose locals hold the span: a cycle that keeps all
    of them alive.
    """
    if error is None or isinstance(error, str):
        return error
    kind = type(error).__qualname__
    text = _error_text(error)
    if text:
        return f"{kind}: {text}"
    return kind


# Conversation of one `Rollout` -> a span for each answer and each tool's answer. Pure.
#
# Every long text leaves once, in the root: a child names its message by `semconv.MESSAGE_INDEX`.
# Spans of tool calls also hold short texts, so that other viewers show them.

_SHORT_BYTES = 1024
"""Largest arguments and results that are also in the tool's span."""


class SpanParent(NamedTuple):
    """Locates a rollout's children: its trace, its root, and the root's start and end."""

    trace_id: bytes
    root_id: bytes
    start_unix_ns: int
    end_unix_ns: int


@dataclass(slots=True)
class _Child:
    name: str
    kind: int
    pairs: Pairs


def child_spans(rollout: Rollout, content: Content, parent: SpanParent) -> list[bytes]:
    """Make a ``chat`` span of each answer and an ``execute_tool`` span of each tool's answer.

    Their times divide the time of the root evenly, at least a nanosecond each, so that their order
    shows: the messages have none. What cannot be used of turns is counted as ``rollout_field``.
    """
    children = _children(rollout, content)
    start = parent.start_unix_ns
    slot = max((parent.end_unix_ns - start) // max(len(children), 1), 1)
    # One call for all ids of the rollout.
    random = os.urandom(8 * len(children))
    spans: list[bytes] = []
    for index, child in enumerate(children):
        ids = (parent.trace_id, random[8 * index : 8 * index + 8], parent.root_id)
        times = (start, start + slot)
        attributes = span_encoding.span_attributes(child.pairs)
        spans.append(
            span_encoding.span(ids, child.name, times, attributes, kind=child.kind)
        )
        start += slot
    return spans


def _children(rollout: Rollout, content: Content) -> list[_Child]:
    """Return a child for each answer of the policy and of a tool, in the order of the conversation.

    A child names its message by index instead of repeating the text, except where a bridge could
    not find the arguments by it. Facts of turns beyond the answers are counted as
    ``rollout_field``.
    """
    children: list[_Child] = []
    earlier_calls: tuple[ToolCall, ...] = ()
    calls: list[ToolCall] = []
    answers = sum(message.role == ASSISTANT for message in content.messages)
    model = coerce.name(rollout.model)
    if model:
        name = f"{semconv.OPERATION_CHAT} {model}"
    else:
        name = semconv.OPERATION_CHAT
    with_content = not content.content_filter.off
    turns = turns_of(rollout.turns)
    turn = 0
    for index, message in enumerate(content.messages):
        for answer in message.answers:
            call = _call_of(answer, calls)
            pairs = _tool_pairs(answer, call)
            if with_content:
                is_findable = len(message.answers) == 1 and _is_found(
                    call, answer, earlier_calls
                )
                pairs += _tool_texts(answer, call, index if is_findable else None)
            children.append(
                _Child(
                    f"{semconv.OPERATION_TOOL} {pairs[1][1]}",
                    span_encoding.KIND_INTERNAL,
                    pairs,
                )
            )
        if message.role == ASSISTANT:
            pairs = _chat_pairs(
                rollout, turns, turn, answers, content.content_filter.losses
            )
            if with_content:
                pairs.append((semconv.MESSAGE_INDEX, index))
            children.append(_Child(name, span_encoding.KIND_CLIENT, pairs))
            earlier_calls = message.calls
            calls = list(message.calls)
            turn += 1
    if len(turns) > answers:
        content.content_filter.losses.add(BAD_FIELD, len(turns) - answers, "turns")
    return children


def token_counts(values: Mapping[str, object], losses: Losses, key: str = "") -> Pairs:
    """Return the numbers of tokens among *values*.

    Those that are not numbers are left out, and counted as ``rollout_field`` below *key*.
    """
    pairs: Pairs = []
    for field, attribute in _TOKEN_FIELDS.items():
        number = coerce.integer(values.get(field))
        if number is not None:
            pairs.append((attribute, number))
        elif values.get(field) is not None:
            losses.add(BAD_FIELD, 1, f"{key}{field}")
    return pairs


def _facts_of_turn(turn: object, losses: Losses) -> Mapping[str, object]:
    """Return the facts of a turn, empty for what is not a mapping.

    That, and keys that a turn does not have, are counted as ``rollout_field``: a misspelt one would
    vanish otherwise.
    """
    facts = coerce.mapping(turn)
    if turn is not None and not isinstance(turn, Mapping):
        losses.add(BAD_FIELD, 1, "turns")
    for key in facts.keys() - _TURN_FIELDS:
        losses.add(BAD_FIELD, 1, f"turns.{key}")
    return facts


def _chat_pairs(
    rollout: Rollout, turns: Sequence[object], turn: int, answers: int, losses: Losses
) -> Pairs:
    """Return the attributes of the span of an answer.

    Facts of its turn that cannot be used are counted as ``rollout_field``. The last answer ends the
    rollout, so that it has the rollout's reason; an only answer also has the rollout's numbers of
    tokens.

    Args:
        rollout: The rollout.
        turns: Facts of its turns.
        turn: Index of the answer among the *answers* of the rollout.
        answers: Number of the answers.
        losses: Counts facts.
    """
    pairs: Pairs = [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_CHAT),
        (semconv.GEN_AI_REQUEST_MODEL, coerce.name(rollout.model)),
    ]
    is_last = turn == answers - 1
    if not turns and not is_last:
        return pairs
    facts = _facts_of_turn(turns[turn] if turn < len(turns) else None, losses)
    # The reason of the rollout is that of its last answer.
    reason = coerce.name(
        facts.get("finish_reason") or (rollout.finish_reason if is_last else None)
    )
    if reason is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    pairs += token_counts(facts, losses, "turns.")
    if answers == 1:
        # Of the only turn the numbers of the rollout hold, whose bad ones its root counts.
        pairs += token_counts(without(vars(rollout), facts), Losses())
    if turns:
        pairs += [(semconv.TURN_INDEX, turn), (semconv.TURN_LAST, is_last)]
        pairs += _turn_reward(facts.get("reward"), losses)
    return pairs


def _turn_reward(value: object, losses: Losses) -> Pairs:
    """Return the reward of a turn as an attribute; nothing without one.

    What is not a number is counted as ``rollout_field``.
    """
    reward = coerce.number(value)
    if reward is not None:
        return [(semconv.REWARD, reward)]
    if value is not None:
        losses.add(BAD_FIELD, 1, "turns.reward")
    return []


def _call_of(answer: ToolAnswer, calls: list[ToolCall]) -> ToolCall | None:
    """Remove and return the call that *answer* belongs to, by id, else the next call in order.

    ``None`` if none is left. Libraries without ids answer in the order of the calls.
    """
    for index, call in enumerate(calls):
        if answer.call_id is None or call.id is None or call.id == answer.call_id:
            return calls.pop(index)
    return None


def _tool_pairs(answer: ToolAnswer, call: ToolCall | None) -> Pairs:
    """Return name and id of the tool, from the answer, else from its call.

    A tool without a name is ``tool``.
    """
    name = answer.name or (call.name if call else "") or "tool"
    return [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
        (semconv.GEN_AI_TOOL_NAME, name),
        (semconv.GEN_AI_TOOL_CALL_ID, answer.call_id or (call.id if call else None)),
    ]


def _is_found(
    call: ToolCall | None, answer: ToolAnswer, earlier_calls: Sequence[ToolCall]
) -> bool:
    """Return whether a lookup of the arguments by the call's id finds those of *call*, or rightly none.

    A bridge looks for the first call of that id in the answer before; models repeat ids, or leave
    them out.
    """
    call_id = answer.call_id or (call.id if call else None)
    for earlier_call in earlier_calls:
        if (
            call_id is not None
            and earlier_call.id == call_id
            and earlier_call.arguments
        ):
            return earlier_call is call
    return call is None or not call.arguments


def _tool_texts(answer: ToolAnswer, call: ToolCall | None, index: int | None) -> Pairs:
    """Return arguments and result.

    Texts above 1 KB are replaced by the *index* of their message, from which a bridge restores
    them: they leave once. Without an index (``None``) they stay.
    """
    pairs: Pairs = []
    is_left_out = False
    arguments = b"" if call is None else call.arguments
    if len(arguments) > _SHORT_BYTES and index is not None:
        is_left_out = True
    elif arguments:
        pairs.append((semconv.GEN_AI_TOOL_ARGUMENTS, Utf8(arguments)))
    if len(answer.text) > _SHORT_BYTES and index is not None:
        is_left_out = True
    else:
        pairs.append((semconv.GEN_AI_TOOL_RESULT, Utf8(answer.text)))
    if is_left_out and index is not None:
        pairs.append((semconv.MESSAGE_INDEX, index))
    return pairs
