"""One `Rollout` -> its spans: a root with the whole conversation, a child for each answer and each tool call.

Pure: ids, time and policy are handed in. A rollout that is larger than allowed is clipped fairly: its longest texts are
cut to one length, and the root says how much is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from otel_bridge import semconv
from otel_bridge.emit import facts, span_encoding
from otel_bridge.emit.content import ContentPolicy, Cutter
from otel_bridge.emit.message_parts import ToolAnswer, ToolCall
from otel_bridge.emit.messages import Conversation, EncodedMessage, encode, raw_messages
from otel_bridge.emit.rollout import Rollout, mapping_or
from otel_bridge.emit.wire import Attribute

ASSISTANT: Final = "assistant"
_COPIES: Final = 2
"""Each message stands in the root and in one child."""
_MAX_MESSAGES: Final = 10_000
_MIN_CHARS: Final = 16
_MAX_FACTS: Final = 256
Pairs = list[tuple[str, Attribute]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a rollout may leave: the content policy and the largest size of all its spans."""

    policy: ContentPolicy
    rollout_bytes: int


@dataclass(slots=True)
class Content:
    """The encoded content of one rollout."""

    conversation: Conversation
    cutter: Cutter

    @property
    def messages(self) -> list[EncodedMessage]:
        """Its messages."""
        return self.conversation.messages


def content_of(messages: object, limits: Limits, role: str = "user") -> Content:
    """Encode a conversation within *limits*."""
    entries = raw_messages(messages, role)
    budget = limits.rollout_bytes // _COPIES
    max_chars = _fair_length(entries, budget)
    content = _encoded(entries[:_MAX_MESSAGES], limits, max_chars)
    while content.conversation.size_bytes > budget and max_chars > _MIN_CHARS:
        # Characters beyond ASCII and escapes take several bytes, and not all text is plain content.
        longest = max(len(message.json) for message in content.messages)
        max_chars = max(min(max_chars, longest) * budget // content.conversation.size_bytes * 9 // 10, _MIN_CHARS)
        content = _encoded(entries[:_MAX_MESSAGES], limits, max_chars)
    content.conversation.skipped += max(len(entries) - _MAX_MESSAGES, 0)
    while content.conversation.size_bytes > budget:
        kept = len(content.messages) // 2
        content.cutter.clipped_bytes += sum(len(message.json) for message in content.messages[kept:])
        del content.messages[kept:]
    return content


def _encoded(entries: Sequence[object], limits: Limits, max_chars: int) -> Content:
    cutter = Cutter(limits.policy, max_chars)
    return Content(encode(entries, cutter), cutter)


def _fair_length(entries: Sequence[object], budget: int) -> int:
    """Return the length to which texts are cut so that together they fit."""
    sizes = [
        len(text) if isinstance(text := cast("Mapping[str, object]", entry).get("content"), str) else 0
        for entry in entries
        if isinstance(entry, Mapping)
    ]
    if sum(sizes) <= budget:
        return budget
    left = budget
    for count, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - count)
        if size > share:
            return max(share, _MIN_CHARS)
        left -= size
    return budget


# --- the root ---------------------------------------------------------------------------------------------------------
def root_attributes(rollout: Rollout, content: Content, limits: Limits) -> Pairs:
    """Return the attributes of the root, less its id, step, split and number of spans."""
    pairs: Pairs = [(key, value) for key, convert, given in _scalars(rollout) if (value := convert(given)) is not None]
    parts: object = rollout.reward if isinstance(rollout.reward, Mapping) else rollout.rewards
    pairs += _numbers(semconv.REWARDS_PREFIX, parts)
    if (reason := facts.name(rollout.finish_reason)) is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    budget = limits.rollout_bytes // 4
    pairs += _free(semconv.TOOL_PREFIX, mapping_or(rollout.tools, "calls"), content.cutter, budget)
    pairs += _free(semconv.METADATA_PREFIX, mapping_or(rollout.metadata, "metadata"), content.cutter, budget)
    if not content.cutter.off:
        pairs += conversation_attributes(content.messages)
    if content.cutter.clipped_bytes:
        pairs.append((semconv.CLIPPED, content.cutter.clipped_bytes))
    return pairs


def _scalars(rollout: Rollout) -> Iterator[tuple[str, Any, object]]:
    name, integer, number = facts.name, facts.integer, facts.number
    yield semconv.GROUP_ID, name, rollout.group
    yield semconv.TRAJECTORY_ID, name, rollout.trajectory_id
    yield semconv.PROMPT_INDEX, integer, rollout.prompt_index
    yield semconv.SAMPLE_INDEX, integer, rollout.sample
    yield semconv.BATCH_INDEX, integer, rollout.batch_index
    yield semconv.REWARD, number, rollout.reward
    yield semconv.ADVANTAGE, lambda value: number(value, mean=True), rollout.advantage  # type: ignore[misc]
    yield semconv.POLICY_VERSION, _integer_or_name, rollout.policy_version
    yield semconv.DATASET, name, rollout.dataset
    yield semconv.DATASET_INDEX, _integer_or_name, rollout.dataset_index
    yield semconv.GEN_AI_REQUEST_MODEL, name, rollout.model
    yield semconv.GEN_AI_INPUT_TOKENS, integer, rollout.input_tokens
    yield semconv.GEN_AI_OUTPUT_TOKENS, integer, rollout.output_tokens


def _integer_or_name(value: object) -> int | str | None:
    plain = facts.integer(value)
    return facts.name(value) if plain is None else plain


def _numbers(prefix: str, values: object) -> Pairs:
    if not isinstance(values, Mapping):
        return []
    items = list(cast("Mapping[object, object]", values).items())[:_MAX_FACTS]
    return [(f"{prefix}{key}", number) for key, value in items if (number := facts.number(value)) is not None]


def _free(prefix: str, values: Mapping[str, Any], cutter: Cutter, budget: int) -> Pairs:
    """Encode free facts; without content only their numbers stay."""
    pairs: Pairs = []
    for key, given in values.items():
        value = cutter.json(given)
        if value is None or (cutter.off and not isinstance(value, (bool, int, float))):
            continue
        budget -= len(key) + _size(value)
        if budget < 0 or len(pairs) >= _MAX_FACTS:
            cutter.clipped_bytes += _size(value)
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _size(item) for key, item in cast("Mapping[str, object]", value).items())
    return sum(map(_size, cast("list[object]", value))) if isinstance(value, list) else 8


def conversation_attributes(messages: Sequence[EncodedMessage], reason: str | None = None) -> Pairs:
    """Return input, all before the last answer, and output, that answer."""
    last = max((index for index, message in enumerate(messages) if message.role == ASSISTANT), default=None)
    if last is None:
        return [(semconv.GEN_AI_INPUT_MESSAGES, _array(messages)), (semconv.GEN_AI_OUTPUT_MESSAGES, b"[]")]
    # What stands behind the last answer (a tool's answer to a rollout that was cut) belongs to the input as well.
    rest = [*messages[:last], *messages[last + 1 :]]
    return [
        (semconv.GEN_AI_INPUT_MESSAGES, _array(rest)),
        (semconv.GEN_AI_OUTPUT_MESSAGES, _array(messages[last : last + 1])),
    ]


def _array(messages: Iterable[EncodedMessage]) -> bytes:
    return b"[%b]" % b",".join([message.json for message in messages])


def failure(error: str | BaseException, cutter: Cutter) -> tuple[str, str]:
    """Return type and text of an error; without content only its type."""
    if isinstance(error, BaseException):
        kind = type(error).__qualname__
        try:
            text = str(error)
        except Exception:  # noqa: BLE001  # code of the user's own exception
            text = ""
    else:
        kind, text = "Error", str(error)
    return kind, (kind if cutter.off else cutter.text(text))


# --- the children -----------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Child:
    name: str
    kind: int
    pairs: Pairs


def child_spans(
    rollout: Rollout, content: Content, trace_id: bytes, root_id: bytes, times: tuple[int, int], ids: Iterable[bytes]
) -> list[bytes]:
    """Make a ``chat`` span of each answer and an ``execute_tool`` span of each tool's answer.

    Their times part that of the root evenly, at least a nanosecond each, so that their order shows.
    """
    children = _children(rollout, content)
    start, end = times
    slot = max((end - start) // max(len(children), 1), 1)
    return [
        span_encoding.span(
            (trace_id, span_id, root_id),
            child.name,
            (start + slot * index, start + slot * (index + 1)),
            span_encoding.span_attributes(child.pairs),
            kind=child.kind,
        )
        for index, (child, span_id) in enumerate(zip(children, ids, strict=False))
    ]


def child_count(messages: Iterable[EncodedMessage]) -> int:
    """Return how many spans `child_spans` makes."""
    return sum((message.role == ASSISTANT) + len(message.answers) for message in messages)


def _children(rollout: Rollout, content: Content) -> list[_Child]:
    children: list[_Child] = []
    calls: list[ToolCall] = []
    heard: list[EncodedMessage] = []
    answers = sum(message.role == ASSISTANT for message in content.messages)
    turn = 0
    for message in content.messages:
        for answer in message.answers:
            children.append(_tool_child(answer, _call_of(answer, calls), content.cutter))
        if message.role != ASSISTANT:
            heard.append(message)
            continue
        pairs = _chat_pairs(rollout, turn, answers)
        if not content.cutter.off:
            pairs.append((semconv.GEN_AI_INPUT_MESSAGES, _array(heard)))
            pairs.append((semconv.GEN_AI_OUTPUT_MESSAGES, _array((message,))))
        model = facts.name(rollout.model)
        name = f"{semconv.OPERATION_CHAT} {model}" if model else semconv.OPERATION_CHAT
        children.append(_Child(name, span_encoding.KIND_CLIENT, pairs))
        calls = list(message.calls)
        heard = []
        turn += 1
    return children


def _chat_pairs(rollout: Rollout, turn: int, answers: int) -> Pairs:
    pairs: Pairs = [(semconv.GEN_AI_OPERATION, semconv.OPERATION_CHAT)]
    if (model := facts.name(rollout.model)) is not None:
        pairs.append((semconv.GEN_AI_REQUEST_MODEL, model))
    given: object = rollout.turns[turn] if turn < len(rollout.turns) else {}
    told = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    only = {"input_tokens": rollout.input_tokens, "output_tokens": rollout.output_tokens} if answers == 1 else {}
    reason = told.get("finish_reason") or (rollout.finish_reason if turn == answers - 1 else None)
    if (reason := facts.name(reason)) is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    for key, field in ((semconv.GEN_AI_INPUT_TOKENS, "input_tokens"), (semconv.GEN_AI_OUTPUT_TOKENS, "output_tokens")):
        if (tokens := facts.integer(told.get(field, only.get(field)))) is not None:
            pairs.append((key, tokens))
    if rollout.turns:
        pairs += [(semconv.TURN_INDEX, turn), (semconv.TURN_LAST, turn == answers - 1)]
        if (reward := facts.number(told.get("reward"))) is not None:
            pairs.append((semconv.REWARD, reward))
    return pairs


def _call_of(answer: ToolAnswer, calls: list[ToolCall]) -> ToolCall | None:
    """Return the call that *answer* belongs to, by id, else the next one in order, and take it off the list."""
    for index, call in enumerate(calls):
        if answer.call_id is None or call.id is None or call.id == answer.call_id:
            return calls.pop(index)
    return None


def _tool_child(answer: ToolAnswer, call: ToolCall | None, cutter: Cutter) -> _Child:
    name = answer.name or (call.name if call else "") or "tool"
    pairs: Pairs = [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
        (semconv.GEN_AI_TOOL_NAME, name),
    ]
    call_id = answer.call_id or (call.id if call else None)
    if call_id is not None:
        pairs.append((semconv.GEN_AI_TOOL_CALL_ID, call_id))
    if not cutter.off:
        if call is not None and call.arguments:
            pairs.append((semconv.GEN_AI_TOOL_ARGUMENTS, call.arguments))
        pairs.append((semconv.GEN_AI_TOOL_RESULT, answer.text))
    return _Child(f"{semconv.OPERATION_TOOL} {name}", span_encoding.KIND_INTERNAL, pairs)
