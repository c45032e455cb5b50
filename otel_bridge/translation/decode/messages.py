"""GenAI messages in any known form -> OpenAI chat messages.

Accepted forms, as JSON text or structured values:

* The parts form of the GenAI conventions: ``text``, ``reasoning``, ``tool_call``, ``tool_call_response`` (with
  ``response`` or ``result``), ``blob``, ``file``, ``uri`` and generic parts.
* OpenAI's own form.
* The flattened attributes of older instrumentations.

Pure. Never raises: entries that are not messages are counted.
Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json`` and ``gen-ai-output-messages.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_bridge.otlp.json_text import as_text, parsed_json, parsed_text, too_deep
from otel_bridge.records import Json, Message

_MESSAGE_KEYS: Final = ("name", "tool_calls", "tool_call_id", "reasoning_content", "refusal", "function_call", "audio")
_PARTS_KEYS: Final = frozenset({"role", "parts", "name", "finish_reason"})
"""Keys of a message of the parts form; any other is a fact of the message."""
_MAX_FLATTENED: Final = 10_000


@dataclass(slots=True)
class Chat:
    """Collects messages read from one attribute.

    Attributes:
        messages: In OpenAI's chat shape.
        finish_reason: Finish reason of the last message that names one.
        skipped: Entries that are not messages.
    """

    messages: list[Message] = field(default_factory=list[Message])
    finish_reason: str | None = None
    skipped: int = 0

    def add(self, entry: Json, role: str) -> None:
        """Add the message or messages of one entry; *role* is the role of a bare text."""
        if isinstance(entry, str):
            self.messages.append({"role": role, "content": entry})
            return
        named_role = entry.get("role") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(named_role, str) or not named_role:
            self.skipped += 1
            return
        reason = entry.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        parts = entry.get("parts")
        if isinstance(parts, list):
            messages = _from_parts(named_role, parts, entry.get("name"))
            facts = {key: value for key, value in entry.items() if key not in _PARTS_KEYS and not too_deep(value)}
            if facts and messages:
                messages[0] = {**messages[0], **{k: v for k, v in facts.items() if k not in messages[0]}}
            self.messages.extend(messages)
        else:
            message: Message = {"role": named_role, "content": _content(entry.get("content"))}
            for key in _MESSAGE_KEYS:
                if entry.get(key) is not None and not too_deep(entry[key]):
                    message[key] = entry[key]
            self.messages.append(message)


def read_chat(value: Json, role: str) -> Chat:
    """Read the messages of one attribute value.

    Args:
        value: JSON text or a structured value: a list of messages, one message, ``{"messages": […]}``,
            ``{"choices": [{"message": …}]}`` or a bare text.
        role: Role of a bare text.
    """
    chat = Chat()
    parsed = parsed_text(value)
    if isinstance(parsed, dict) and "role" not in parsed:
        for key in ("messages", "choices", "input", "output"):
            inner = parsed.get(key)
            if isinstance(inner, list):
                parsed = [_choice(entry) for entry in inner]
                break
            if isinstance(inner, str) and key == "input":
                parsed = inner
                break
    if isinstance(parsed, list):
        for entry in parsed:
            chat.add(entry, role)
    elif parsed is not None and parsed != "":
        chat.add(parsed, role)
    return chat


def system_message(value: Json) -> Message | None:
    """Read ``gen_ai.system_instructions``: a list of parts, or a text."""
    parsed = parsed_json(value)
    if isinstance(parsed, str):
        return {"role": "system", "content": parsed} if parsed else None
    if not isinstance(parsed, list) or not parsed:
        return None
    made = _from_parts("system", parsed, None)
    return made[0] if made else None


def flattened_chat(attributes: Mapping[str, Json], prefix: str, role: str) -> Chat:
    """Read messages flattened into attributes, e.g. ``gen_ai.prompt.0.role``.

    Source: OpenLLMetry (``gen_ai.prompt.``, ``gen_ai.completion.``), OpenInference (``llm.input_messages.`` …).
    """
    entries: dict[int, dict[str, Json]] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, name = key[len(prefix) :].partition(".")
        if number.isascii() and number.isdigit() and len(number) < 6 and len(entries) < _MAX_FLATTENED:
            entries.setdefault(int(number), {})[name.removeprefix("message.")] = value
    chat = Chat()
    for _, entry in sorted(entries.items()):
        calls = _flattened_calls(entry)
        message: dict[str, Json] = {"role": role, **{k: v for k, v in entry.items() if "." not in k}}
        if calls:
            message["tool_calls"] = calls
        chat.add(message, role)
    return chat


def _flattened_calls(entry: Mapping[str, Json]) -> list[Json]:
    calls: dict[str, dict[str, Json]] = {}
    for key, value in entry.items():
        if key.startswith("tool_calls."):
            number, _, name = key[len("tool_calls.") :].partition(".")
            calls.setdefault(number, {})[name.rpartition(".")[2]] = value
    return [tool_call(call.get("id"), call.get("name"), call.get("arguments")) for _, call in sorted(calls.items())]


def tool_call(call_id: Json, name: Json, arguments: Json) -> Json:
    """Return one entry of OpenAI's ``tool_calls``, with *arguments* as JSON text."""
    function: dict[str, Json] = {"name": name if isinstance(name, str) else "", "arguments": as_text(arguments)}
    call: dict[str, Json] = {"type": "function", "function": function}
    return {"id": call_id, **call} if isinstance(call_id, str) else call


def _choice(entry: Json) -> Json:
    """Return the message of an entry of ``choices``, with its finish reason; return any other entry unchanged."""
    inner = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(inner, dict):
        return entry
    return {"role": "assistant", "finish_reason": entry.get("finish_reason"), **inner}


def _content(value: Json) -> Json:
    if value is None or isinstance(value, str):
        return value
    return value if isinstance(value, list) and not too_deep(value) else as_text(value)


def _from_parts(role: str, parts: list[Json], name: Json) -> list[Message]:
    """Convert one message of the parts form; each tool result becomes a message of its own."""
    if len(parts) == 1 and not name:  # nearly every message
        only = parts[0]
        if isinstance(only, dict) and only.get("type") == "text" and isinstance(only.get("content"), str):
            return [{"role": role, "content": only["content"]}]
    content: list[Json] = []
    reasoning: list[str] = []
    calls: list[Json] = []
    results: list[Message] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        elif isinstance(part, dict):
            _sort_part(part, content, reasoning, calls, results)
    if results and not (content or reasoning or calls):
        return results
    message: Message = {"role": role, "content": _joined(content)}
    if isinstance(name, str) and name:
        message["name"] = name
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return [message, *results]


def _sort_part(
    part: dict[str, Json], content: list[Json], reasoning: list[str], calls: list[Json], results: list[Message]
) -> None:
    kind = part.get("type")
    if kind == "text":
        content.append({"type": "text", "text": as_text(part.get("content", part.get("text")))})
    elif kind == "reasoning":
        reasoning.append(as_text(part.get("content")))
    elif kind == "tool_call":
        calls.append(tool_call(part.get("id"), part.get("name"), part.get("arguments")))
    elif kind == "server_tool_call":
        calls.append(tool_call(part.get("id"), part.get("name"), part.get("server_tool_call")))
    elif kind in {"tool_call_response", "server_tool_call_response"}:
        answer = next((part[key] for key in ("response", "result", str(kind)) if part.get(key) is not None), None)
        result: Message = {"role": "tool", "content": as_text(answer)}
        if isinstance(part.get("id"), str):
            result["tool_call_id"] = part["id"]
        results.append(result)
    else:
        content.append(_media(part))


def _media(part: dict[str, Json]) -> Json:
    """Convert an image, sound or file to OpenAI's content part; return any other part unchanged."""
    kind, modality = part.get("type"), part.get("modality")
    if kind == "file":
        return {"type": "file", "file": {"file_id": as_text(part.get("file_id"))}}
    if kind == "uri":
        uri = as_text(part.get("uri"))
        return {"type": "image_url", "image_url": {"url": uri}} if modality in {"image", None} else part
    if kind == "blob":
        mime, data = as_text(part.get("mime_type")), as_text(part.get("content", part.get("data")))
        if modality == "image" or mime.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": f"data:{mime or 'image/png'};base64,{data}"}}
        if modality == "audio" or mime.startswith("audio/"):
            return {"type": "input_audio", "input_audio": {"data": data, "format": mime.partition("/")[2] or "wav"}}
    return {"type": "text", "text": as_text(part)} if too_deep(part) else part


def _joined(content: list[Json]) -> Json:
    """Return plain text when every part is text, nothing when *content* is empty, else the parts."""
    texts = [part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content):
        return content
    return "\n".join(_strings(texts)) if texts else None


def _strings(values: Iterable[Json]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
