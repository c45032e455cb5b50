"""Conversations in OpenAI's chat shape -> GenAI messages as JSON text, each encoded once.

Also accepted: messages that already have GenAI ``parts``, ShareGPT's ``from`` and ``value``, Anthropic's parts,
OpenAI's ``Choice`` and Responses items, LangChain's messages, objects with ``model_dump``, JSON text of messages.
Entries that are not messages are skipped and counted. Nothing raises.
Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

import orjson

from otel_bridge.emit.content.policy import ContentFilter, ContentPolicy, dumps, hooked, may_have_shape
from otel_bridge.emit.encode.protobuf import utf8
from otel_bridge.emit.rollouts.message_parts import Parts, ToolAnswer, ToolCall, mapping_of, text_or_none
from otel_bridge.errors import any_error
from otel_bridge.records import Json

_HEADS: Final = {
    role: b'{"role":"%b","parts":[{"type":"text","content":' % role.encode()
    for role in ("system", "user", "assistant", "developer")
}
_SILENT: Final = b'{"role":"assistant","parts":['
_ANSWER_KEYS: Final = (
    frozenset({"role", "content", "tool_call_id"}),
    frozenset({"role", "content", "tool_call_id", "name"}),
)
_CALLER_KEYS: Final = frozenset({"role", "content", "tool_calls"})


class EncodedMessage(NamedTuple):
    """Holds one encoded message.

    Attributes:
        role: Role, as given.
        json: The message as UTF-8 JSON.
        calls: Tool calls in the message.
        answers: Answers of tools in the message.
        unread: Number of tool calls in no known shape, which are kept as text.
    """

    role: str
    json: bytes
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()
    unread: int = 0


def fast_message(entry: object, content_filter: ContentFilter) -> EncodedMessage | None:
    """Encode a text of a role, an assistant's text with tool calls, or a tool's answer; ``None`` for other entries."""
    if type(entry) is not dict or not 2 <= len(cast("dict[object, object]", entry)) <= 4:
        return None
    message = cast("dict[str, object]", entry)
    role, content = message.get("role"), message.get("content")
    if type(role) is not str or (type(content) is not str and content is not None):
        return None
    if len(message) == 2 and content is not None and (head := _HEADS.get(role)) is not None:
        return EncodedMessage(role, b"%b%b}]}" % (head, dumps(content_filter.text(content))))
    if content is not None and role == "tool" and message.keys() in _ANSWER_KEYS:
        return _answer(message["tool_call_id"], content, message.get("name"), content_filter)
    if role == "assistant" and message.keys() == _CALLER_KEYS:
        return _caller(message["tool_calls"], content, content_filter)
    return None


def _answer(call_id: object, content: str, name: object, content_filter: ContentFilter) -> EncodedMessage | None:
    if type(call_id) is not str or not call_id or (name is not None and (type(name) is not str or not name)):
        return None
    text = content_filter.text(content)
    answer_parts = b'{"role":"tool","parts":[{"type":"tool_call_response","id":%b,"response":%b}]' % (
        dumps(call_id),
        dumps(text),
    )
    json = answer_parts + b"}" if name is None else b'%b,"name":%b}' % (answer_parts, dumps(name[:256]))
    return EncodedMessage("tool", json, (), (ToolAnswer(call_id, name, utf8(text)),))


def _caller(tool_calls: object, content: str | None, content_filter: ContentFilter) -> EncodedMessage | None:
    if type(tool_calls) is not list or not tool_calls:
        return None
    calls: list[ToolCall] = []
    parts: list[bytes] = []
    if content is not None:
        parts.append(b'{"type":"text","content":%b}' % dumps(content_filter.text(content)))
    for entry in cast("Sequence[object]", tool_calls):
        call = _call(entry, content_filter)
        if call is None:
            return None
        calls.append(call)
        named = dumps(cast("str", call.id)), dumps(call.name), call.arguments
        parts.append(b'{"type":"tool_call","id":%b,"name":%b,"arguments":%b}' % named)
    return EncodedMessage("assistant", b"%b%b]}" % (_SILENT, b",".join(parts)), tuple(calls))


def _call(entry: object, content_filter: ContentFilter) -> ToolCall | None:
    if type(entry) is not dict:
        return None
    call = cast("dict[str, object]", entry)
    call_id, function = call.get("id"), call.get("function")
    if type(call_id) is not str or not call_id or type(function) is not dict:
        return None
    inner = cast("dict[str, object]", function)
    name, arguments = inner.get("name"), inner.get("arguments")
    if type(name) is not str or len(name) > 256 or type(arguments) is not str or not content_filter.leaves(arguments):
        return None
    # An escape may hide a secret from the search.
    if not arguments.startswith("{") or "\\u" in arguments:
        return None
    try:
        orjson.loads(arguments)
        # Valid JSON that needs no cut is used unchanged.
        return ToolCall(call_id, name, arguments.encode())
    except ValueError:
        return None


_ROLES: Final = {"human": "user", "gpt": "assistant", "ai": "assistant", "function": "tool", "observation": "tool"}
_TYPE_ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
"""LangChain's ``type`` of a message to its role."""
_ITEM_ROLES: Final = {"reasoning": "assistant", "function_call": "assistant", "function_call_output": "tool"}
"""``type`` of an item of OpenAI's Responses API, which is one part of a message, to its role."""
_WRAPPERS: Final = ("message", "data")
"""Key of the message in OpenAI's ``Choice``, and in what LangChain's ``messages_to_dict`` returns."""
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
_JSON_STARTS: Final = ("{", "[{")


@dataclass(slots=True)
class Conversation:
    """Holds encoded messages, and the number of entries that are not messages."""

    messages: list[EncodedMessage] = field(default_factory=list[EncodedMessage])
    skipped: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of all messages in bytes."""
        return sum(len(message.json) for message in self.messages)


def raw_messages(value: object, role: str = "user") -> list[object]:
    """Return the messages in *value*: a text of *role*, one message, JSON text of messages, or many messages."""
    if value is None:
        return []
    if isinstance(value, str):
        return _of_text(value, role)
    if hasattr(value, "model_dump") or not isinstance(value, Iterable) or isinstance(value, Mapping):
        return [value]
    try:
        return list(cast("Iterable[object]", value))
    except any_error():  # code of the user's own iterable
        return [value]


def _of_text(text: str, role: str) -> list[object]:
    if text.startswith(_JSON_STARTS):
        try:
            parsed = orjson.loads(text)
        except ValueError:
            parsed = None
        entries = cast("list[object]", parsed if isinstance(parsed, list) else [parsed])
        if all(isinstance(entry, dict) and "role" in entry for entry in entries):
            return entries
    return [{"role": role, "content": text}]


def encode(entries: Sequence[object], content_filter: ContentFilter) -> Conversation:
    """Encode *entries*; entries that are not messages are counted."""
    conversation = Conversation()
    for entry in entries:
        try:
            encoded = fast_message(entry, content_filter) or _message(entry, content_filter)
        except any_error():  # code of the user's own objects
            encoded = None
        if encoded is None:
            conversation.skipped += 1
        else:
            conversation.skipped += encoded.unread
            conversation.messages.append(encoded)
    return conversation


def _message(entry: object, content_filter: ContentFilter) -> EncodedMessage | None:
    message = mapping_of(entry) or _attributes(entry)
    if message is None:
        return None
    kind = message.get("type")
    if "content" not in message:
        wrapped = next((message[key] for key in _WRAPPERS if isinstance(message.get(key), Mapping)), None)
        message = message if wrapped is None else {"type": kind, **wrapped}
    role = message.get("role", message.get("from"))
    if role is None and isinstance(kind, str):
        role = _TYPE_ROLES.get(kind, _ITEM_ROLES.get(kind))
    content = message.get("content", message.get("value"))
    given = message.get("parts")
    # An array of several calls has no truth value.
    if role is None and content is None and given is None and message.get("tool_calls") is None:
        return None
    named = str(getattr(role, "value", role) or "user")
    named = _ROLES.get(named, named)
    parts = Parts(content_filter)
    if isinstance(given, list):
        parts.add_content(cast("object", given))
    elif kind in _ITEM_ROLES:
        parts.add_content(message)
    elif named == "tool":
        parts.add_answer(text_or_none(message.get("tool_call_id")), content, text_or_none(message.get("name")))
    else:
        _add_message(parts, message, content)
    return _encoded(named, parts, message)


def _add_message(parts: Parts, message: Mapping[str, Any], content: object) -> None:
    """Add the content of a message that is not a tool's, in the order reasoning, content, refusal, calls."""
    thought = next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), "")
    if thought:
        parts.add_reasoning(thought)
    parts.add_content(content)
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        parts.add_text("refusal", refusal)
    parts.add_calls(message.get("tool_calls"))
    if message.get("function_call") is not None:
        parts.add_calls([message["function_call"]])


def _attributes(entry: object) -> Mapping[str, Any] | None:
    """Read a message that is an object with attributes of the usual names."""
    if isinstance(entry, str) or not (hasattr(entry, "role") and hasattr(entry, "content")):
        return None
    names = ("role", "content", "tool_calls", "tool_call_id", "name", *_REASONING_KEYS)
    return {name: value for name in names if (value := getattr(entry, name, None)) is not None}


def _encoded(role: str, parts: Parts, message: Mapping[str, Any]) -> EncodedMessage:
    value: dict[str, Json] = {"role": role, "parts": cast("list[Json]", parts.parts)}
    if (name := text_or_none(message.get("name"))) is not None:
        value["name"] = name[:256]
    return EncodedMessage(role, dumps(value), tuple(parts.calls), tuple(parts.answers), parts.unread)


# A conversation -> encoded messages within the limits of one rollout.
#
# A conversation above the limit is truncated fairly: its longest texts are cut to one length, and the cut bytes are
# counted. Pure.

_COPIES: Final = 2
"""Copies of each message in a tracker: in the root's span and in a child's."""
_MAX_MESSAGES: Final = 10_000
_MIN_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Holds the limits of a rollout's content: the content policy and the largest size of all its spans."""

    policy: ContentPolicy
    rollout_bytes: int


@dataclass(slots=True)
class Content:
    """Encodes the content of one rollout."""

    conversation: Conversation
    content_filter: ContentFilter

    @property
    def messages(self) -> list[EncodedMessage]:
        """Messages of the conversation."""
        return self.conversation.messages


def content_of(messages: object, limits: MessageLimits, role: str = "user") -> Content:
    """Encode a conversation within *limits*."""
    entries = [_replayable(entry) for entry in raw_messages(messages, role)]
    budget = limits.rollout_bytes // _COPIES
    max_chars = _fair_length(entries, budget)
    content = _conversation_encoded(entries[:_MAX_MESSAGES], limits, max_chars)
    while content.conversation.size_bytes > budget and max_chars > _MIN_CHARS:
        # Escapes and characters beyond ASCII take several bytes, and not all text is plain content.
        longest = max(len(message.json) for message in content.messages)
        max_chars = max(min(max_chars, longest) * budget // content.conversation.size_bytes * 9 // 10, _MIN_CHARS)
        content = _conversation_encoded(entries[:_MAX_MESSAGES], limits, max_chars)
    content.conversation.skipped += max(len(entries) - _MAX_MESSAGES, 0)
    while content.conversation.size_bytes > budget:
        kept = len(content.messages) // 2
        content.content_filter.clipped_bytes += sum(len(message.json) for message in content.messages[kept:])
        del content.messages[kept:]
    return content


def _replayable(entry: object) -> object:
    """Return *entry* with a generator of tool calls as a list: a message with a secret or a cut is encoded again."""
    if type(entry) is not dict:
        return entry
    message = cast("dict[str, object]", entry)
    calls = message.get("tool_calls")
    if not isinstance(calls, Iterator):
        return message
    return {**message, "tool_calls": list(cast("Iterator[object]", calls))}


def _conversation_encoded(entries: Sequence[object], limits: MessageLimits, max_chars: int) -> Content:
    policy = limits.policy
    content_filter = ContentFilter(policy, max_chars)
    if policy.secrets and not policy.off and not hooked():
        # Nearly always there is no secret: one search of all texts costs less than one of each.
        content_filter.secrets = False
        conversation = encode(entries, content_filter)
        content_filter.secrets = True
        if not content_filter.named and not may_have_shape(
            b"".join([message.json for message in conversation.messages])
        ):
            return Content(conversation, content_filter)
        content_filter = ContentFilter(policy, max_chars)
    return Content(encode(entries, content_filter), content_filter)


def _fair_length(entries: Sequence[object], budget: int) -> int:
    """Return the length of texts at which all texts together fit."""
    # Plain messages only: other long texts are found when they are encoded.
    dicts = [cast("dict[str, object]", entry) for entry in entries if type(entry) is dict]
    sizes = [len(text) for message in dicts if type(text := message.get("content")) is str]
    if sum(sizes) <= budget:
        return budget
    left = budget
    for count, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - count)
        if size > share:
            return max(share, _MIN_CHARS)
        left -= size
    return budget
