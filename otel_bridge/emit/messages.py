"""Conversations in OpenAI's chat shape -> GenAI messages as JSON text, each encoded once.

Taken as well: messages that already have GenAI ``parts``, ShareGPT's ``from`` and ``value``, Anthropic's parts, objects
with ``model_dump``, JSON text of messages. What is no message is skipped and counted. Nothing raises.
Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from otel_bridge.emit.content import Cutter, dumps
from otel_bridge.emit.fast_messages import EncodedMessage, fast_message
from otel_bridge.emit.message_parts import Parts, mapping_of, text_or_none
from otel_bridge.records import Json

_ROLES: Final = {"human": "user", "gpt": "assistant", "ai": "assistant", "function": "tool", "observation": "tool"}
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
_JSON_STARTS: Final = ("{", "[{")


@dataclass(slots=True)
class Conversation:
    """Encoded messages, and how many entries were none."""

    messages: list[EncodedMessage] = field(default_factory=list[EncodedMessage])
    skipped: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(len(message.json) for message in self.messages)


def raw_messages(value: object, role: str = "user") -> list[object]:
    """Return the messages that *value* is: a text of *role*, one message, JSON text of messages, or many."""
    if value is None:
        return []
    if isinstance(value, str):
        return _of_text(value, role)
    if hasattr(value, "model_dump") or not isinstance(value, Iterable) or isinstance(value, Mapping):
        return [value]
    try:
        return list(cast("Iterable[object]", value))
    except Exception:  # noqa: BLE001  # code of the user's own iterable
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


def encode(entries: Sequence[object], cutter: Cutter) -> Conversation:
    """Encode *entries*; those that are no message are counted."""
    conversation = Conversation()
    for entry in entries:
        try:
            encoded = fast_message(entry, cutter) or _message(entry, cutter)
        except Exception:  # noqa: BLE001  # code of the user's own objects
            encoded = None
        if encoded is None:
            conversation.skipped += 1
        else:
            conversation.messages.append(encoded)
    return conversation


def _message(entry: object, cutter: Cutter) -> EncodedMessage | None:
    message = mapping_of(entry) or _attributes(entry)
    if message is None:
        return None
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    given = message.get("parts")
    if role is None and content is None and given is None and not message.get("tool_calls"):
        return None
    named = str(getattr(role, "value", role) or "user")
    named = _ROLES.get(named, named)
    parts = Parts(cutter)
    if isinstance(given, list):
        parts.add_content(cast("object", given))
    elif named == "tool":
        parts.add_answer(text_or_none(message.get("tool_call_id")), content, text_or_none(message.get("name")))
    else:
        _add_said(parts, message, content)
    return _encoded(named, parts, message)


def _add_said(parts: Parts, message: Mapping[str, Any], content: object) -> None:
    """Add what a message other than a tool's says, in the order reasoning, content, refusal, calls."""
    thought = next((message[key] for key in _REASONING_KEYS if isinstance(message.get(key), str)), "")
    if thought:
        parts.add_text("reasoning", thought)
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
    return EncodedMessage(role, dumps(value), tuple(parts.calls), tuple(parts.answers))
