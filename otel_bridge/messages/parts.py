"""Content, tool calls and tool answers of one message -> GenAI parts.

Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json``.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import orjson

from otel_bridge.messages import shapes
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.messages.fields import (
    ReadFields,
    entries_of,
    fields_of,
    first,
    parsed,
    plain,
    text_or_none,
)
from otel_bridge.messages.shapes import ANSWER, CALL, REASONING, TEXT
from otel_bridge.records import Json
from otel_bridge.values.plain import CLIPPED, dumps
from otel_bridge.values.scalars import any_text

UNREAD = "rollout_message"
"""Reason of values in no known shape, which are kept as text."""
MAX_NAME_CHARS = 256
_MAX_PATH_CHARS = 255
_MAX_SCHEME_CHARS = 64
_TEXT_TYPES = ("text", "reasoning")
_TEXT_KEYS = frozenset({"type", "content"})
EMPTY: Sequence[Json] = (None, "", [], {})


class ToolCall(NamedTuple):
    """Holds a tool call in an assistant message.

    *arguments* is JSON text, empty without arguments.
    """

    id: str | None
    name: str
    arguments: bytes


class ToolAnswer(NamedTuple):
    """Holds a tool's answer: id of its call, the tool's name when known, and the answer as UTF-8 text."""

    call_id: str | None
    name: str | None
    text: bytes


class Parts:
    """Collects the parts of one message, in the order added.

    Objects of programs that JSON does not have, as pictures, are read by a subclass. What they
    raise while they are read is raised.

    Attributes:
        content_filter: Filter of every text.
        parts: Parts in the form of the JSON.
        calls: The tool calls among them.
        answers: The tools' answers among them.
    """

    __slots__ = ("answers", "calls", "content_filter", "parts")

    def __init__(self, content_filter: ContentFilter) -> None:
        self.content_filter = content_filter
        self.parts: list[dict[str, Json]] = []
        self.calls: list[ToolCall] = []
        self.answers: list[ToolAnswer] = []

    def name(self, value: object) -> str:
        """Return *value* as the name of a tool or an author; empty where it has no text.

        One of over 256 characters is cut, counted as ``clipped``.
        """
        text = text_or_none(value) or ""
        if len(text) > MAX_NAME_CHARS:
            self.content_filter.losses.add(CLIPPED, 1, "name")
        return text[:MAX_NAME_CHARS]

    def add_text(self, kind: str, text: object) -> None:
        """Add a part whose ``content`` is text; what is not text is kept as JSON text."""
        if isinstance(text, str):
            content = self.content_filter.text(text)
        else:
            value = self.content_filter.json(text)
            content = value if isinstance(value, str) else dumps(value).decode()
        self.parts.append({"type": kind, "content": content})

    def add_unread(self, value: object) -> None:
        """Add a value in no known shape as text, and count it as ``rollout_message``."""
        self.content_filter.losses.add(UNREAD, 1, "")
        self.add_text("text", value)

    def add_reasoning(self, thought: object) -> None:
        """Add reasoning: a text, or a list of parts with text."""
        self.parts.append({"type": "reasoning", "content": self._response(thought)})

    def add_content(self, content: object) -> None:
        """Add a message's content: a text, one part or many; ``None`` adds nothing."""
        parts = plain(content)
        if isinstance(parts, (list, tuple)):
            for part in self.content_filter.items(
                cast("Sequence[object]", parts), content
            ):
                self.add_part(part)
        elif parts is not None:
            self.add_part(parts)

    def add_calls(self, calls: object) -> None:
        """Add one tool call or many, also as JSON text; what iterating over them raises is raised.

        What is not a call is kept as text, and counted as ``rollout_message``. A call that the
        content has already given is left out.
        """
        # Each message is asked for calls under each name of a library.
        if calls is None:
            return
        # LangChain repeats the blocks of Anthropic in the content as calls.
        content_calls = {call.id for call in self.calls if call.id is not None}
        for entry in entries_of(calls):
            fields = fields_of(parsed(entry) if isinstance(entry, str) else entry)
            if fields is None:
                self.add_unread(entry)
            elif text_or_none(first(fields, shapes.CALL_ID_KEYS)) not in content_calls:
                self._add_with_facts(fields, self._add_call)

    def add_media(self, kind: str, media: object) -> None:
        """Add what stands beside the content of a message: one medium or many of a modality.

        What cannot be encoded leaves a text, and is counted as ``rollout_message``.
        """
        for medium in entries_of(media):
            fields = fields_of(medium)
            self._add_with_facts(
                {kind: medium} if fields is None else fields,
                partial(self._add_medium, kind),
            )

    def add_answer(
        self, call_id: str | None, content: object, name: str | None = None
    ) -> None:
        """Add the answer of a tool, with the tool's *name* when known.

        The text is kept for the tool's span as well. Without an id the span finds its call by the
        order.
        """
        response = self._response(content)
        part: dict[str, Json] = {"type": "tool_call_response"}
        if call_id is not None:
            part["id"] = call_id
        part["response"] = response
        self.parts.append(part)
        if isinstance(response, str):
            text = response.encode("utf-8", "replace")
        else:
            text = dumps(response)
        self.answers.append(ToolAnswer(call_id, name, text))

    def _response(self, content: object) -> Json:
        """Return the text of content that is text alone, else its parts; empty for ``None``.

        Data of a tool as it is, unless it is a list. Parts with more fields than their text stay
        parts, so that no field is lost.
        """
        content = plain(content)
        if content is None or not isinstance(content, list):
            if content is None:
                return ""
            return self.content_filter.json(content)
        inner = type(self)(self.content_filter)
        inner.add_content(cast("object", content))
        texts: list[str] = []
        for part in inner.parts:
            if part["type"] not in _TEXT_TYPES or part.keys() != _TEXT_KEYS:
                return cast("Json", inner.parts)
            texts.append(str(part["content"]))
        return "\n".join(texts)

    def add_part(self, part: object) -> None:
        """Add one part of a message, which is a text, a medium, or fields with a type or a telling key.

        Anything else is kept as text, and counted as ``rollout_message``.
        """
        if isinstance(part, str):
            self.add_text("text", part)
            return
        fields = fields_of(part)
        if fields is None:
            self._add_object(part)
        else:
            self._add_with_facts(fields, self._add_fields)

    def _add_fields(self, fields: ReadFields) -> None:
        """Add a part by its type, or by a telling key.

        A part of an unknown type keeps all its fields under its type.
        """
        kind = any_text(first(fields, shapes.KIND_KEYS) or "")
        if not kind:
            self._add_keyed(fields)
        elif (meaning := shapes.KINDS.get(kind)) is not None:
            self._add_known(meaning, fields)
        elif _modality(kind, fields.whole) is not None:
            self._add_medium(kind, fields)
        else:
            self.parts.append(self._generic(kind, fields))

    def _add_with_facts(
        self, fields: Mapping[str, Any], add: Callable[[ReadFields], None]
    ) -> None:
        """Add a part with *add*, and the facts of *fields* that it does not read, as labels and times.

        They lie in the part, in the first one if *add* makes several. Without a part they become
        text, and are counted as ``rollout_message``; of two with one name the last counts
        (``same_key``).
        """
        reading = ReadFields(fields)
        number_before = len(self.parts)
        add(reading)
        facts: dict[str, Any] = {}
        for key, value in reading.unread():
            # The type of a call is that of its part.
            if value is None or (key == "type" and isinstance(value, str)):
                continue
            if key in facts:
                self.content_filter.losses.add("same_key", 1, any_text(key))
            facts[key] = value
        if facts:
            self._keep_facts(facts, number_before)

    def _keep_facts(self, facts: dict[str, Any], index: int) -> None:
        """Keep *facts* in the part at *index*.

        ``part.id`` is the id of an item beside that of its call. Empty facts, and those that the
        part has with this value, are left out: clients write every field of their schema.
        """
        if index == len(self.parts):
            self.add_unread(facts)
            return
        part = self.parts[index]
        for key, fact in self.content_filter.facts(facts, "part").items():
            if fact not in EMPTY and part.get(key) != fact:
                part[f"part.{key}" if key in part else key] = fact

    def _add_object(self, value: object) -> None:
        """Add a value without fields as text, counted as ``rollout_message`` unless it is a number or ``None``."""
        if isinstance(value, (bool, int, float)) or value is None:
            self.add_text("text", str(value))
        else:
            self.add_unread(value)

    def _add_keyed(self, fields: ReadFields) -> None:
        """Add a part that says what it is by a key instead of a type: those of Gemini and Bedrock.

        Without such a key it is a text, or a part of the type ``unknown`` with all its fields.
        """
        key = next(
            (key for key in shapes.KEYED_PARTS if fields.get(key) is not None), None
        )
        if key is not None:
            meaning = shapes.KEYED_PARTS[key]
            value = fields[key]
            if meaning == TEXT:  # data of a tool, as JSON text
                self.add_text("text", value)
                return
            inner = fields.inside(value)
            if meaning in {CALL, ANSWER, REASONING}:
                self._add_known(
                    meaning,
                    ReadFields({"name": key, "content": value})
                    if inner is None
                    else inner,
                )
            else:
                self._add_medium(
                    meaning, ReadFields({meaning: value}) if inner is None else inner
                )
        elif fields.get("text") is not None:
            self._add_known(REASONING if fields.get("thought") else TEXT, fields)
        else:
            self.parts.append(self._generic("unknown", fields))

    def _add_known(self, meaning: str, fields: ReadFields) -> None:
        """Add a part of a known *meaning*.

        A text that is itself a list of parts adds these, one without content an empty text.
        """
        if meaning == TEXT:
            text = first(fields, shapes.TEXT_KEYS)
            if isinstance(text, str) or text is None:
                self.add_text("text", text or "")
            else:
                self.add_content(text)
        elif meaning == REASONING:
            self._add_thoughts(fields)
        elif meaning == CALL:
            self._add_call(fields)
        else:
            call_id = text_or_none(first(fields, shapes.CALL_ID_KEYS))
            name = text_or_none(first(fields, shapes.CALL_NAME_KEYS))
            self.add_answer(call_id, _answer_in(fields), name)
            if name is not None:  # of the tool, which a message has itself
                self.parts[-1]["name"] = self.name(name)

    def _add_thoughts(self, fields: ReadFields) -> None:
        """Add reasoning, and its summary where it has both.

        An empty one where it has neither, as redacted thoughts have.
        """
        thoughts = [fields[key] for key in shapes.THOUGHT_KEYS if fields.get(key)]
        for thought in thoughts or [""]:
            inner = fields.inside(thought)
            self.add_reasoning(
                thought if inner is None else first(inner, shapes.THOUGHT_KEYS)
            )

    def _generic(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Json]:
        """Return a part of an unknown type with its fields, under the content policy.

        Base64 in a ``blob`` is not text: it leaves whole or not at all.
        """
        part: dict[str, Json] = {"type": kind}
        for key, value in self.content_filter.entries(fields, "part").items():
            if kind == "blob" and key == "content" and isinstance(value, str):
                part[key] = self.content_filter.blob(value)
            elif key != "type":
                part[key] = self.content_filter.json(value, key)
        return part

    def _add_call(self, fields: ReadFields) -> None:
        """Add a tool call in any of the shapes of its libraries.

        One without a name has that of its type, or none. Arguments that are not JSON stay as the
        text that the model wrote.
        """
        nested = first(fields, shapes.NESTED_CALL_KEYS)
        function = parsed(nested) if isinstance(nested, str) else nested
        inner = fields.inside(function) or fields
        name = first(inner, shapes.CALL_NAME_KEYS)
        if name is None:
            name = function if isinstance(function, str) else fields.get("type") or ""
        arguments = first(inner, shapes.ARGUMENT_KEYS)
        if isinstance(arguments, str):
            # OpenAI gives arguments as JSON text, other libraries as an object.
            arguments = parsed(arguments)
        call = ToolCall(
            text_or_none(first(fields, shapes.CALL_ID_KEYS)),
            self.name(name),
            b"" if arguments is None else dumps(self.content_filter.json(arguments)),
        )
        part: dict[str, Json] = {"type": "tool_call"}
        if call.id is not None:
            part["id"] = call.id
        part["name"] = call.name
        if call.arguments:
            # Encoded once, used in the message and in the tool's span.
            part["arguments"] = cast("Json", orjson.Fragment(call.arguments))
        self.calls.append(call)
        self.parts.append(part)

    # --- media ------------------------------------------------------------------------------------
    def _add_medium(self, kind: str, fields: ReadFields) -> None:
        """Add a medium, or the texts that a document of Anthropic is made of."""
        source = fields_of(fields.whole.get(shapes.SOURCE_KEY)) or {}
        content_key = shapes.TEXT_SOURCES.get(str(source.get("type")))
        inner = content_key and fields.inside(fields[shapes.SOURCE_KEY])
        if content_key and inner:
            self.add_content(inner.get(content_key))
        else:
            self.parts.append(self._media(kind, fields))

    def _media(self, kind: str, fields: ReadFields) -> dict[str, Json]:
        """Encode an image, audio, video or file as ``uri``, ``blob`` or ``file``.

        The id of a file comes before data, data before an address: a part that has several was
        given the first by its library. What it cannot read leaves a text with its type, and is
        counted as ``rollout_message``.
        """
        modality = _modality(kind, fields.whole) or "document"
        source = first(fields, (kind, f"{modality}_url", modality, *shapes.SOURCE_KEYS))
        inner = (None if isinstance(source, str) else fields.inside(source)) or fields
        file_id = inner.get("file_id", fields.get("file_id"))
        if isinstance(file_id, str):
            return {
                "type": "file",
                "modality": fields.get("modality", modality),
                "file_id": file_id,
            }
        data = _data_of(kind, fields, inner, source)
        # Vercel's AI SDK takes a URL in the place of base64, which has no colon.
        if isinstance(data, str) and ":" not in data[:_MAX_SCHEME_CHARS]:
            return self.blob(_mime_of(inner, modality), modality, data)
        url = first(inner, shapes.URL_KEYS) if data is None else data
        address = _address_in(source) or _address_in(url)
        if address is not None:
            return self._address(address, modality)
        picture = self._picture(source)
        if picture is not None:
            return picture
        self.content_filter.losses.add(UNREAD, 1, "")
        return {"type": "text", "content": f"[{modality}: {type(source).__name__}]"}

    def _address(self, address: str, modality: str) -> dict[str, Json]:
        """Encode the address of a medium.

        A data URL, and the base64 that Ollama has instead, are the medium itself, which the limit of
        texts would cut.
        """
        if _is_base64(address):
            return self.blob(f"{modality}/*", modality, address)
        if not address.startswith("data:"):
            return {
                "type": "uri",
                "modality": modality,
                "uri": self.content_filter.text(address),
            }
        mime, _, data = address[5:].partition(",")
        return self.blob(mime.partition(";")[0], modality, data)

    def _picture(self, value: object) -> dict[str, Json] | None:  # noqa: ARG002  # of a subclass
        """Return the part of a picture that is an object of the program.

        ``None`` for anything else.
        """
        return None

    def blob(self, mime: str, modality: str, data: str) -> dict[str, Json]:
        """Return the part of a medium whose content, *data*, is base64."""
        return {
            "type": "blob",
            "mime_type": mime,
            "modality": modality,
            "content": self.content_filter.blob(data),
        }


def _modality(kind: str, fields: Mapping[str, Any]) -> str | None:
    """Return the modality of a medium by its type or its MIME type.

    ``None`` for a part that is not a medium. A file without a MIME type is a document.
    """
    for modality in shapes.MODALITIES:
        if modality in kind:
            return modality
    if kind not in shapes.DOCUMENTS:
        return None
    mime = str(first(fields, shapes.MIME_KEYS) or "")
    for modality in shapes.MODALITIES:
        if mime.startswith(modality):
            return modality
    return "document"


def _data_of(
    kind: str, fields: ReadFields, inner: ReadFields, source: object
) -> object:
    """Return the data of a medium, bytes as base64; ``None`` without any.

    A text may be an address. The bytes of LlamaIndex are base64, under the name of their modality.
    """
    keys = shapes.BINARY_KEYS if kind == "binary" else shapes.DATA_KEYS
    data: object = first(inner, keys)
    is_encoded = shapes.ENCODED_KEY in fields.whole
    if data is None and is_encoded:
        data = source
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return data
    content = bytes(cast("bytes", data))
    # Its checks encode raw bytes, but not those that are assigned to a block.
    is_encoded = is_encoded and content.isascii()
    return (content if is_encoded else base64.b64encode(content)).decode()


def _mime_of(fields: ReadFields, modality: str) -> str:
    mime = first(fields, shapes.MIME_KEYS)
    return str(mime or f"{modality}/{fields.get('format', '*')}")


def _address_in(value: object) -> str | None:
    """Return the text of an address, a path or a URL of pydantic, ``None`` for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[str]", value))
    if hasattr(value, "scheme") and hasattr(value, "path"):
        return str(value)
    return None


def _is_base64(address: str) -> bool:
    """Return whether *address* is not one: too long for a path, without a scheme and a suffix."""
    return len(address) > _MAX_PATH_CHARS and "." not in address and ":" not in address


def _answer_in(fields: Mapping[str, Any]) -> object:
    """Return what a tool answered; ``None`` without an answer."""
    answer = first(fields, shapes.ANSWER_KEYS)
    if isinstance(answer, dict):
        typed = cast("dict[str, object]", answer)
        # Vercel's AI SDK states the type of a result from version 5 on.
        if sorted(typed) == ["type", "value"]:
            return typed["value"]
    return cast("object", answer)
