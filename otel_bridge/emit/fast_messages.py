"""The plain shapes of messages -> JSON, without building anything between: what training code sends by the thousand.

A shape that is not plain gives ``None``; `messages.encode` then takes the long way, whose JSON means the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import orjson

from otel_bridge.emit.content import Cutter, dumps
from otel_bridge.emit.message_parts import ToolAnswer, ToolCall
from otel_bridge.emit.wire import utf8

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
    """One message.

    Attributes:
        role: As given.
        json: The message as UTF-8 JSON.
        calls: Tools it calls.
        answers: Answers of tools that it holds.
    """

    role: str
    json: bytes
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()


def fast_message(entry: object, cutter: Cutter) -> EncodedMessage | None:
    """Encode a text of a role, an assistant's text with tool calls, or a tool's answer; ``None``: none of these."""
    if type(entry) is not dict or not 2 <= len(cast("dict[object, object]", entry)) <= 4:
        return None
    message = cast("dict[str, object]", entry)
    role, content = message.get("role"), message.get("content")
    if type(role) is not str or (type(content) is not str and content is not None):
        return None
    if len(message) == 2 and content is not None and (head := _HEADS.get(role)) is not None:
        return EncodedMessage(role, b"%b%b}]}" % (head, dumps(cutter.text(content))))
    if content is not None and role == "tool" and message.keys() in _ANSWER_KEYS:
        return _answer(message["tool_call_id"], content, message.get("name"), cutter)
    if role == "assistant" and message.keys() == _CALLER_KEYS:
        return _caller(message["tool_calls"], content, cutter)
    return None


def _answer(call_id: object, content: str, name: object, cutter: Cutter) -> EncodedMessage | None:
    if type(call_id) is not str or not call_id or (name is not None and (type(name) is not str or not name)):
        return None
    text = cutter.text(content)
    said = b'{"role":"tool","parts":[{"type":"tool_call_response","id":%b,"response":%b}]' % (
        dumps(call_id),
        dumps(text),
    )
    json = said + b"}" if name is None else b'%b,"name":%b}' % (said, dumps(name[:256]))
    return EncodedMessage("tool", json, (), (ToolAnswer(call_id, name, utf8(text)),))


def _caller(tool_calls: object, content: str | None, cutter: Cutter) -> EncodedMessage | None:
    if type(tool_calls) is not list or not tool_calls:
        return None
    calls: list[ToolCall] = []
    parts: list[bytes] = []
    if content is not None:
        parts.append(b'{"type":"text","content":%b}' % dumps(cutter.text(content)))
    for entry in cast("Sequence[object]", tool_calls):
        call = _call(entry, cutter)
        if call is None:
            return None
        calls.append(call)
        named = dumps(cast("str", call.id)), dumps(call.name), call.arguments
        parts.append(b'{"type":"tool_call","id":%b,"name":%b,"arguments":%b}' % named)
    return EncodedMessage("assistant", b"%b%b]}" % (_SILENT, b",".join(parts)), tuple(calls))


def _call(entry: object, cutter: Cutter) -> ToolCall | None:
    if type(entry) is not dict:
        return None
    call = cast("dict[str, object]", entry)
    call_id, function = call.get("id"), call.get("function")
    if type(call_id) is not str or not call_id or type(function) is not dict:
        return None
    inner = cast("dict[str, object]", function)
    name, arguments = inner.get("name"), inner.get("arguments")
    if type(name) is not str or len(name) > 256 or type(arguments) is not str or not cutter.leaves(arguments):
        return None
    # An escape may hide what the look for secrets would see.
    if not arguments.startswith("{") or "\\u" in arguments:
        return None
    try:
        orjson.loads(arguments)
        # What is valid JSON already, and needs no cut, goes in as it is.
        return ToolCall(call_id, name, arguments.encode())
    except ValueError:
        return None
