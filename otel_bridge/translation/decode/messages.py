"""GenAI messages in any known form -> OpenAI chat messages.

Accepted, as JSON text or structured values, are the parts form of the GenAI conventions, OpenAI's
own form, and the shapes of all libraries that `otel_bridge.messages` reads for programs too, which
become the parts form; and the flattened attributes of older instrumentations.

Pure. Never raises: entries that are not messages are counted. Source: OpenTelemetry GenAI
conventions 1.41, ``gen-ai-input-messages.json`` and ``gen-ai-output-messages.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import orjson

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.messages.fields import first
from otel_bridge.messages.parts import Parts
from otel_bridge.messages.parts_form import parts_form
from otel_bridge.messages.reader import Message as LibraryMessage
from otel_bridge.messages.reader import holds_none, read
from otel_bridge.messages.shapes import (
    CALL_ROLES,
    CHANNEL_KEY,
    DOCUMENTS,
    EXTRAS,
    FINISH_HOLDERS,
    FINISH_KEYS,
    KEYED_PARTS,
    KIND_KEYS,
    KINDS,
    MEDIA_KEYS,
    MODALITIES,
    ROLE_KEYS,
    ROLES,
)
from otel_bridge.otlp.json_text import as_text, parsed_json, parsed_text, too_deep
from otel_bridge.records import Json, Message
from otel_bridge.values.mappings import without
from otel_bridge.values.plain import dumps

_PARTS_KEYS = frozenset({"role", "parts", "name"})
"""Keys of a message of the parts form; any other is a fact of the message."""
_PART_FACTS = "part_facts"
"""Key of a message for what its parts hold beside `_READ_KEYS`, by the number of the part."""
_RESULT_KEYS = ("response", "result")
_RESULT_TYPES = frozenset({"tool_call_response", "server_tool_call_response"})
_READ_KEYS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "content", "text"}),
    "reasoning": frozenset({"type", "content"}),
    "tool_call": frozenset({"type", "id", "name", "arguments"}),
    "server_tool_call": frozenset({"type", "id", "name", "server_tool_call"}),
    "tool_call_response": frozenset({"type", "id", "name", *_RESULT_KEYS}),
    "server_tool_call_response": frozenset(
        {"type", "id", *_RESULT_KEYS, "server_tool_call_response"}
    ),
    "file": frozenset({"type", "modality", "file_id"}),
    "uri": frozenset({"type", "modality", "uri"}),
    "blob": frozenset({"type", "modality", "mime_type", "content", "data"}),
}
"""Type of a part to its keys that have a place in OpenAI's form. Parts of other types stay as they
are."""
_FILE = "file"
_OPENAI_TYPES = frozenset({"text", _FILE})
"""Types of parts of OpenAI's chat messages that other libraries have too."""
_LIBRARY_TYPES = frozenset({*KINDS, *MODALITIES, *DOCUMENTS})
_PART_TYPES = frozenset(
    {
        *_LIBRARY_TYPES,
        *_READ_KEYS,
        *_OPENAI_TYPES,
        "image_url",
        "input_audio",
        "refusal",
    }
)
_LIBRARY_KEYS = frozenset(
    {"reasoning", "thinking", "function_call", CHANNEL_KEY, EXTRAS, *MEDIA_KEYS}
)
"""Keys of a message that have another place in OpenAI's form."""
_REASON_KEYS = FINISH_KEYS | FINISH_HOLDERS
_SENT = frozenset({"message", "config"})
"""Keys of what Gemini's ``Chat.send_message`` is given."""
_AS_RECEIVED = ContentPolicy(secrets=False)
"""Changes no text: the policy was applied to the spans."""
_MAX_FLATTENED = 10_000
_THINKING = "thinking"
"""Role of a message that is reasoning, of OpenLLMetry."""
_CALLS = "tool_calls."
_CONTENTS = "contents."
_OF_IMAGES = ("image", None)
"""Modalities of a ``uri`` part that is an image: a tuple, because a producer may send a list."""


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
        """Add the message or messages of one entry; *role* is the role of what names none.

        The shapes are those of `otel_bridge.messages`. An entry in no shape is counted in
        `skipped`, and so is an object without a role that nothing wraps: it may be data of any
        kind.

        Tool results inside a message of the parts form become messages of their own, as OpenAI's
        form has them.
        """
        if isinstance(entry, str):
            self.messages.append({"role": role, "content": entry})
        elif isinstance(entry, dict) and _is_plain(entry):
            self._add_plain(entry)
        elif not too_deep(entry):
            self._read(entry, role)
        elif isinstance(entry, dict) and _has_role(entry):
            # A message for certain; what is too deep in it becomes text.
            self._add_plain(entry)
        else:
            self.skipped += 1

    def _read(self, entry: Json, role: str) -> None:
        """Add the messages of an entry in the shape of any library."""
        content_filter = ContentFilter(_AS_RECEIVED, sys.maxsize)
        for message in read(entry, content_filter.items):
            fields = message.fields
            if fields is None or (fields is entry and not _names_role(message, role)):
                self.skipped += 1
                continue
            for facts in message.wrappers:
                self._note_reason(facts)
            if _is_plain(fields):
                self._add_plain(fields)
                continue
            whole = message._replace(role=message.role or role)
            # Arguments of calls are encoded in it.
            form = dumps(parts_form(whole, Parts(content_filter)))
            self._add_plain(orjson.loads(form))
        self.skipped += sum(content_filter.losses.counts.values())

    def _add_plain(self, entry: Mapping[str, Json]) -> None:
        """Add a message of the parts form or of OpenAI's."""
        self._note_reason(entry)
        role = cast("str", entry["role"])
        role = ROLES.get(role, role)
        parts = entry.get("parts")
        if isinstance(parts, list):
            self.messages.extend(_from_parts(role, parts, entry))
        else:
            self.messages.append(_from_chat(role, entry))

    def _note_reason(self, fields: Mapping[str, Json]) -> None:
        if _REASON_KEYS.isdisjoint(fields):  # nearly every message
            return
        holders: list[Json | Mapping[str, Json]] = []
        for key in FINISH_HOLDERS & fields.keys():
            holders.append(fields[key])
        for holder in (*holders, fields):
            if isinstance(holder, Mapping):
                for key in FINISH_KEYS & holder.keys():
                    reason = holder[key]
                    if isinstance(reason, str) and reason:
                        self.finish_reason = reason


def read_chat(value: Json, role: str) -> Chat:
    """Read the messages of one attribute value.

    Never raises: a text without a message in it is one message of *role*; any other value without
    messages gives an empty chat.

    Args:
        value: JSON text or a structured value: messages in the shape of any library, or what holds
            them, such as a request or a response; or a bare text.
        role: Role of a bare text.
    """
    chat = Chat()
    parsed = parsed_text(value)
    if isinstance(parsed, list):
        for entry in parsed:
            chat.add(entry, role)
    elif parsed is not None and parsed != "":
        chat.add(parsed, role)
    # An answer may be JSON without any message in it, such as an object that a program asked for.
    is_unread_text = isinstance(value, str) and bool(parsed) and not chat.messages
    if is_unread_text and not holds_none(parsed):
        return Chat([{"role": role, "content": value}])
    return chat


def _is_plain(entry: Mapping[str, Json]) -> bool:
    """Return whether *entry* is a message of the parts form or of OpenAI's.

    It names its role, and its parts and calls are of known types of that form, or of types that no
    library is known to have. Such messages are nearly all, and stay as they are.
    """
    if not _has_role(entry) or entry["role"] in CALL_ROLES:
        return False
    parts = entry.get("parts")
    if isinstance(parts, list):
        return not _holds_other_types(parts, _READ_KEYS)
    content = entry.get("content")
    if isinstance(content, list) and _holds_other_types(content, _OPENAI_TYPES):
        return False
    if not _LIBRARY_KEYS.isdisjoint(entry) and any(map(entry.get, _LIBRARY_KEYS)):
        return False
    calls = entry.get("tool_calls")
    if isinstance(calls, list):
        return all(map(_is_plain_call, calls))
    return "content" in entry


def _is_plain_call(call: Json) -> bool:
    """Return whether *call* is one of OpenAI's form, whose arguments are a text.

    Those of Ollama are an object.
    """
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and not isinstance(
        function.get("arguments"), dict
    )


def _names_role(message: LibraryMessage, role: str) -> bool:
    """Return whether a message says its role, by a text or by its type, or is what a chat of Gemini was sent."""
    fields = message.fields or {}
    if role == "user" and "message" in fields and fields.keys() <= _SENT:
        return True
    role_given = first(fields, ROLE_KEYS)
    return bool(message.role) and (role_given is None or isinstance(role_given, str))


def _has_role(entry: Mapping[str, Json]) -> bool:
    role = entry.get("role")
    return isinstance(role, str) and bool(role)


def _holds_other_types(parts: list[Json], types: Container[str]) -> bool:
    """Return whether one of *parts* has a type of another library than the one that has *types*, or none."""
    for part in parts:
        if isinstance(part, dict):
            kind = part.get("type")
            if kind is None or (
                isinstance(kind, str) and kind in _LIBRARY_TYPES and kind not in types
            ):
                return True
            # A file of Vercel's AI SDK has its data beside its type, one of OpenAI below it.
            if kind == _FILE and types is _OPENAI_TYPES and _FILE not in part:
                return True
    return False


def system_message(value: Json) -> Message | None:
    """Read ``gen_ai.system_instructions``, a list of parts or a text.

    ``None`` when it is empty or neither of these.
    """
    parsed = parsed_json(value)
    if isinstance(parsed, str):
        if parsed:
            return {"role": "system", "content": parsed}
        return None
    if not isinstance(parsed, list) or not parsed:
        return None
    return _from_parts("system", parsed, {})[0]


def flattened_chat(attributes: Mapping[str, Json], prefix: str, role: str) -> Chat:
    """Read messages flattened into attributes, e.g. ``gen_ai.prompt.0.role``.

    Source: OpenLLMetry (``gen_ai.prompt.``, ``gen_ai.completion.``), OpenInference
    (``llm.input_messages.`` …).

    Attributes whose number is not one of at most five digits are ignored, and so are entries beyond
    `_MAX_FLATTENED`: a producer chooses both.
    """
    messages: list[Message] = []
    # By their numbers, since attributes are in any order.
    for _, entry in sorted(_flattened_entries(attributes, prefix).items()):
        calls = _flattened_calls(entry)
        message: dict[str, Json] = {"role": role}
        for key, value in entry.items():
            if not key.startswith((_CALLS, _CONTENTS)):
                message[key] = value
        content = _flattened_content(entry)
        if content:
            message["content"] = content
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    chat = Chat()
    for message in _with_thoughts(messages):
        chat.add(message, role)
    return chat


def _flattened_entries(
    attributes: Mapping[str, Json], prefix: str
) -> dict[int, dict[str, Json]]:
    """Return the attributes of each message below *prefix*, by the number of the message."""
    entries: dict[int, dict[str, Json]] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, name = key[len(prefix) :].partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 6):
            continue
        # At the limit further attributes of the messages that are read are read too.
        if int(number) in entries or len(entries) < _MAX_FLATTENED:
            entries.setdefault(int(number), {})[name.removeprefix("message.")] = value
    return entries


def _with_thoughts(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield *messages*, those of the role ``thinking`` as the reasoning of the answer that follows.

    OpenLLMetry's instrumentation of Anthropic writes each block of thinking as a message. Without an
    answer behind them they are an answer of reasoning alone.
    """
    thought: Message = {}
    for message in messages:
        if message["role"] == _THINKING:
            texts = (thought.get("reasoning"), as_text(message.get("content")))
            thought.update(without(message, ("role", "content")))
            thought["reasoning"] = "\n".join(str(text) for text in texts if text)
        elif message["role"] == "assistant":
            yield {**thought, **message}
            thought = {}
        else:
            if thought:
                yield {"role": "assistant", **thought}
                thought = {}
            yield message
    if thought:
        yield {"role": "assistant", **thought}


def _flattened_calls(entry: Mapping[str, Json]) -> list[Json]:
    """Return the tool calls among the flattened attributes of one message, by number; empty without any.

    OpenInference and OpenLLMetry write each field of a call as an attribute. The last part of a
    name counts: ``tool_call.function.name`` of the one is ``name`` of the other.
    """
    calls: list[Json] = []
    for fields in _numbered(entry, _CALLS):
        call = {name.rpartition(".")[2]: value for name, value in fields.items()}
        calls.append(tool_call(call.get("id"), call.get("name"), call.get("arguments")))
    return calls


def _flattened_content(entry: Mapping[str, Json]) -> Json:
    """Return the content of one message, else the parts among its flattened attributes, by number.

    Empty without any.

    OpenLLMetry writes parts as JSON text. OpenInference writes a message of several parts, or with
    an image, in this way: ``contents.0.message_content.text``. Parts of other types stay as they are.
    """
    if "content" in entry:
        return content_of(entry["content"])
    contents: list[Json] = []
    for fields in _numbered(entry, _CONTENTS):
        part: dict[str, Json] = {
            name.removeprefix("message_content."): value
            for name, value in fields.items()
        }
        for modality in MODALITIES:
            address = part.pop(f"{modality}.{modality}.url", None)
            if address is not None:
                part["url"] = address
        contents.append(part)
    return contents


def _numbered(entry: Mapping[str, Json], prefix: str) -> list[dict[str, Json]]:
    """Return the attributes below *prefix* and a number, by the rest of their names, in the order of the numbers."""
    numbered: dict[str, dict[str, Json]] = {}
    for key, value in entry.items():
        if key.startswith(prefix):
            number, _, name = key[len(prefix) :].partition(".")
            numbered.setdefault(number, {})[name] = value
    # The length first: 10 follows 9, and a producer may send what is not a number.
    return [
        numbered[number]
        for number in sorted(numbered, key=lambda number: (len(number), number))
    ]


def tool_call(call_id: Json, name: Json, arguments: Json) -> Json:
    """Return one entry of OpenAI's ``tool_calls``, with *arguments* as JSON text.

    Empty texts stand for missing arguments and a name that is not a text; such an id is left out.
    """
    function: dict[str, Json] = {
        "name": name if isinstance(name, str) else "",
        "arguments": as_text(arguments),
    }
    call: dict[str, Json] = {"type": "function", "function": function}
    if isinstance(call_id, str):
        return {"id": call_id, **call}
    return call


def _content(value: Json) -> Json:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and not too_deep(value):
        return value
    return as_text(value)


def content_of(value: Json) -> Json:
    """Return the content of a message: a list of parts, also as JSON text, else a text.

    A text that merely looks like JSON, such as an answer in JSON, stays as it was written.
    """
    if value is None:
        return None
    parts = parsed_json(value)
    if not isinstance(parts, list):
        return as_text(value)
    # Texts may stand among the parts of pydantic-ai; texts alone may be an answer in JSON.
    if all(map(_is_part, parts)) and set(map(type, parts)) != {str}:
        return parts
    return as_text(value)


def _is_part(value: Json) -> bool:
    """Return whether *value* is a text, or has the type or a key of a part; other objects are data."""
    if not isinstance(value, dict):
        return isinstance(value, str)
    kind = first(value, KIND_KEYS)
    if kind is not None:
        return isinstance(kind, str) and kind in _PART_TYPES
    return value.keys() <= {"text"} or not KEYED_PARTS.keys().isdisjoint(value)


def _from_chat(role: str, entry: Mapping[str, Json]) -> Message:
    """Convert one message of OpenAI's form; keys beside that form are facts of the message."""
    message: Message = {"role": role, "content": _content(entry.get("content"))}
    for key, value in entry.items():
        if key not in message and value is not None and not too_deep(value):
            message[key] = value
    return message


def _from_parts(
    role: str, parts: list[Json], entry: Mapping[str, Json]
) -> list[Message]:
    """Convert one message of the parts form to one or more: each tool result becomes one.

    Facts beside the known form are kept, because nothing that a producer sent may be lost without a
    count.

    Args:
        role: Role of the message.
        parts: Its parts.
        entry: The message as received. Its name and facts beside the parts form become keys of the
            first message.
    """
    messages: list[Message] = []
    run = _Parts()
    for number, part in enumerate(parts, 1):
        # What follows the results of tools was said after them.
        if run.results and not _is_result(part):
            messages += run.messages(role, entry.get("name"))
            run = _Parts()
        run.add(part, number)
    messages += run.messages(role, entry.get("name"))
    first = messages[0]
    for key, value in entry.items():
        if key in _PARTS_KEYS or too_deep(value):
            continue
        # What was read from the parts has the name: Vercel's messages have `parts` and `content`.
        if key not in first:
            first[key] = value
        elif first[key] != value:
            first[f"message.{key}"] = value
    return messages


class _Parts:
    """Sorts the parts of one message by what they become in OpenAI's form.

    Attributes:
        facts: What has no place in that form, by the number of the part.
        results: Messages of the tools whose results are among them.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Json] = {}
        self._content: list[Json] = []
        self._reasoning: list[str] = []
        self._calls: list[Json] = []
        self.results: list[Message] = []

    def add(self, part: Json, number: int) -> None:
        """Add a part with its number; what is not a part is ignored.

        A part of an unknown type stays as it is, so that nothing of it is lost.
        """
        if isinstance(part, str):
            self._content.append({"type": "text", "text": part})
        if not isinstance(part, dict):
            return
        # As text: a producer may send a list, of which no set can be asked.
        kind = str(part.get("type"))
        if kind == "text":
            self._content.append(
                {"type": "text", "text": as_text(part.get("content", part.get("text")))}
            )
        elif kind == "reasoning":
            self._reasoning.append(as_text(part.get("content")))
        elif kind in {"tool_call", "server_tool_call"}:
            arguments = part.get("arguments" if kind == "tool_call" else kind)
            self._calls.append(tool_call(part.get("id"), part.get("name"), arguments))
        elif kind in _RESULT_TYPES:
            self.results.append(_tool_message(part, (*_RESULT_KEYS, kind)))
        else:
            medium = _media(part)
            self._content.append(medium)
            # It stays as it is with all its keys, so that nothing of it is left over.
            if medium is part:
                return
        facts = _facts_of(part)
        if facts:
            self.facts[str(number)] = facts

    def messages(self, role: str, name: Json) -> list[Message]:
        """Return the message, unless it has nothing but tool results, and a message for each of these.

        At least one: without any part a message without content.
        """
        # Results alone become the messages of the tools, without an empty one before them.
        if self.results and not (self._content or self._reasoning or self._calls):
            message = self.results.pop(0)
        else:
            message = {"role": role, "content": _joined(self._content)}
        message.update(_named(name))
        if self._reasoning:
            message["reasoning_content"] = "\n".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        if self.facts:
            message[_PART_FACTS] = self.facts
        return [message, *self.results]


def _is_result(part: Json) -> bool:
    return isinstance(part, dict) and str(part.get("type")) in _RESULT_TYPES


def _named(name: Json) -> Message:
    return {"name": name} if isinstance(name, str) and name else {}


def _facts_of(part: dict[str, Json]) -> dict[str, Json]:
    """Return what a part holds beside the keys that are read of its type; empty for an unknown type.

    A part of an unknown type stays as it is, so that nothing of it is left over.
    """
    read_keys = _READ_KEYS.get(str(part.get("type")))
    if read_keys is None or part.keys() <= read_keys:
        return {}
    facts: dict[str, Json] = {}
    for key, value in part.items():
        if key not in read_keys:
            facts[key] = as_text(value) if too_deep(value) else value
    return facts


def _tool_message(part: dict[str, Json], result_keys: tuple[str, ...]) -> Message:
    result = next((part[key] for key in result_keys if part.get(key) is not None), None)
    message: Message = {"role": "tool", "content": as_text(result)}
    if isinstance(part.get("id"), str):
        message["tool_call_id"] = part["id"]
    message.update(_named(part.get("name")))
    return message


def _media(part: dict[str, Json]) -> Json:
    """Convert an image, sound or file to OpenAI's content part; return any other part unchanged.

    What nests too deeply for JSON of trackers becomes text. The MIME type decides where the
    modality is missing. Without it PNG and WAV are assumed, since OpenAI's form must name a format.
    """
    kind = part.get("type")
    modality = part.get("modality")
    if kind == "file":
        return {"type": "file", "file": {"file_id": as_text(part.get("file_id"))}}
    if kind == "uri":
        if modality not in _OF_IMAGES:
            return part
        return {"type": "image_url", "image_url": {"url": as_text(part.get("uri"))}}
    if kind == "blob":
        mime = as_text(part.get("mime_type"))
        data = as_text(part.get("content", part.get("data")))
        if modality == "image" or mime.startswith("image/"):
            return {
                "type": "image_url",
                "image_url": {"url": f"data:{mime or 'image/png'};base64,{data}"},
            }
        if modality == "audio" or mime.startswith("audio/"):
            return {
                "type": "input_audio",
                "input_audio": {
                    "data": data,
                    "format": mime.partition("/")[2] or "wav",
                },
            }
    return {"type": "text", "text": as_text(part)} if too_deep(part) else part


def _joined(content: list[Json]) -> Json:
    """Return plain text when every part is text, nothing when *content* is empty, else the parts."""
    texts: list[str] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "text":
            texts.append(as_text(part["text"]))
    # Mixed content keeps its parts, in their order.
    if len(texts) < len(content):
        return content
    return "\n".join(texts) if texts else None
