"""Content, tool calls and tool answers of one message -> GenAI parts. Source: as in ``messages.py``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import orjson

from otel_bridge.emit.content.policy import ContentFilter, dumps
from otel_bridge.emit.encode.coerce import mapping
from otel_bridge.records import Json

_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "summary_text"})
_REASONING_TYPES: Final = frozenset({"reasoning", "thinking"})
_CALL_TYPES: Final = frozenset({"tool_call", "tool_use", "function_call"})
_ANSWER_TYPES: Final = frozenset({"tool_call_response", "tool_result", "function_call_output"})
_MODALITIES: Final = ("image", "audio", "video")
_ARGUMENT_KEYS: Final = ("arguments", "input", "args", "parameters")
_MAX_NAME_CHARS: Final = 256
_MAX_ARGUMENT_CHARS: Final = 1 << 20


class ToolCall(NamedTuple):
    """Holds a tool call in an assistant message; *arguments* is JSON text, empty without arguments."""

    id: str | None
    name: str
    arguments: bytes


class ToolAnswer(NamedTuple):
    """Holds a tool's answer: id of its call, the tool's name when known, and the answer as UTF-8 text."""

    call_id: str | None
    name: str | None
    text: bytes


def mapping_of(value: object) -> Mapping[str, Any] | None:
    """Return *value* as a mapping: *value* itself, or the result of its ``model_dump``."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    dump = getattr(value, "model_dump", None)
    dumped: object = dump() if callable(dump) else None
    return cast("dict[str, Any]", dumped) if isinstance(dumped, dict) else None


def text_or_none(value: object) -> str | None:
    """Return a name or an id as text; ``None`` when *value* is empty or anything else."""
    return str(value) if isinstance(value, (str, int)) and value != "" else None


class Parts:
    """Collects the parts of one message, in the order added.

    Attributes:
        parts: Parts in the form of the JSON.
        calls: The tool calls among them.
        answers: The tools' answers among them.
        unread: Number of tool calls in no known shape, which are kept as text.
    """

    __slots__ = ("_content_filter", "answers", "calls", "parts", "unread")

    def __init__(self, content_filter: ContentFilter) -> None:
        self._content_filter = content_filter
        self.parts: list[dict[str, Json]] = []
        self.calls: list[ToolCall] = []
        self.answers: list[ToolAnswer] = []
        self.unread = 0

    def add_text(self, kind: str, text: object) -> None:
        """Add a part whose ``content`` is text."""
        content = self._content_filter.text(text) if isinstance(text, str) else self._content_filter.json(text)
        self.parts.append({"type": kind, "content": content})

    def add_reasoning(self, thought: object) -> None:
        """Add reasoning: a text, or a list of parts with text."""
        self.parts.append({"type": "reasoning", "content": self._response(thought)})

    def add_content(self, content: object) -> None:
        """Add a message's content: a text, one part or many; ``None`` adds nothing."""
        content = _plain(content)
        if isinstance(content, (list, tuple)):
            for part in cast("Sequence[object]", content):
                self._add_part(part)
        elif content is not None:
            self._add_part(content if mapping_of(content) is not None else str(content))

    def add_calls(self, calls: object) -> None:
        """Add one tool call or many, also as JSON text; what is not a call is kept as text, and counted."""
        for entry in _call_entries(calls):
            call = _parsed(entry) if isinstance(entry, str) else entry
            fields = mapping_of(call) or _call_fields(call)
            if fields is None:
                self.add_text("text", str(entry))
                self.unread += 1
            else:
                self._add_call(fields)

    def add_answer(self, call_id: str | None, content: object, name: str | None = None) -> None:
        """Add the answer of a tool, with the tool's *name* when known."""
        response = self._response(content)
        part: dict[str, Json] = {"type": "tool_call_response"}
        if call_id is not None:
            part["id"] = call_id
        part["response"] = response
        self.parts.append(part)
        text = response.encode("utf-8", "replace") if isinstance(response, str) else dumps(response)
        self.answers.append(ToolAnswer(call_id, name, text))

    def _response(self, content: object) -> Json:
        content = _plain(content)
        if content is None or not isinstance(content, list):
            return "" if content is None else self._content_filter.json(content)
        inner = Parts(self._content_filter)
        inner.add_content(cast("object", content))
        texts = [part["content"] for part in inner.parts if part["type"] == "text"]
        return "\n".join(map(str, texts)) if len(texts) == len(inner.parts) else cast("Json", inner.parts)

    def _add_part(self, part: object) -> None:
        fields = mapping_of(part)
        if fields is None:
            self.add_text("text", part if isinstance(part, str) else str(part))
            return
        kind = str(fields.get("type") or ("text" if "text" in fields else "unknown"))
        if kind in _TEXT_TYPES:
            self.add_text("text", _first(fields, "text", "content"))
        elif kind in _REASONING_TYPES:
            self.add_reasoning(_first(fields, "content", "thinking", "text", "summary"))
        elif kind in _CALL_TYPES:
            self._add_call(fields)
        elif kind in _ANSWER_TYPES:
            call_id = text_or_none(_first(fields, "call_id", "tool_use_id", "id"))
            answer = _first(fields, "response", "result", "content", "output")
            self.add_answer(call_id, answer, text_or_none(fields.get("name")))
        else:
            self.parts.append(self._media(kind, fields) or self._generic(kind, fields))

    def _generic(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Json]:
        """Return a part of an unknown type with its fields."""
        part: dict[str, Json] = {"type": kind}
        for key, value in fields.items():
            if key != "type":
                is_blob = kind == "blob" and key == "content" and isinstance(value, str)
                part[str(key)] = (
                    self._content_filter.blob(value) if is_blob else self._content_filter.json(value, str(key))
                )
        return part

    def _media(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Json] | None:
        """Encode an image, audio, video or file as ``uri``, ``blob`` or ``file``; ``None`` for any other part."""
        modality = "document" if kind in {"file", "input_file"} else next((m for m in _MODALITIES if m in kind), None)
        if modality is None:
            return None
        names = (kind, f"{modality}_url", modality, "file", "source", "url")
        source: object = next((fields[name] for name in names if fields.get(name) is not None), None)
        inner = mapping(source)
        if isinstance(file_id := inner.get("file_id", fields.get("file_id")), str):
            return {"type": "file", "modality": fields.get("modality", modality), "file_id": file_id}
        if isinstance(data := inner.get("data"), str):
            mime = str(inner.get("media_type") or f"{modality}/{inner.get('format', '*')}")
            return self._blob(mime, modality, data)
        address = source if isinstance(source, str) else inner.get("url", inner.get("file_data"))
        if not isinstance(address, str):
            return {"type": "text", "content": f"[{modality}: {type(source).__name__}]"}
        if address.startswith("data:"):
            mime, _, data = address[5:].partition(",")
            return self._blob(mime.partition(";")[0], modality, data)
        return {"type": "uri", "modality": modality, "uri": self._content_filter.text(address)}

    def _blob(self, mime: str, modality: str, data: str) -> dict[str, Json]:
        return {"type": "blob", "mime_type": mime, "modality": modality, "content": self._content_filter.blob(data)}

    def _add_call(self, fields: Mapping[str, Any]) -> None:
        function_field = fields.get("function")
        function = _parsed(function_field) if isinstance(function_field, str) else function_field
        inner = mapping_of(function) or mapping_of(fields.get("custom")) or fields
        name = inner.get("name") or (function if isinstance(function, str) else "")
        arguments = next((inner[key] for key in _ARGUMENT_KEYS if inner.get(key) is not None), None)
        if isinstance(arguments, str):
            arguments = _parsed(arguments)
        call = ToolCall(
            text_or_none(_first(fields, "call_id", "id")),
            str(name)[:_MAX_NAME_CHARS],
            b"" if arguments is None else dumps(self._content_filter.json(arguments)),
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


def _first(fields: Mapping[str, Any], *names: str) -> object:
    return next((fields[name] for name in names if fields.get(name) is not None), "")


def _plain(content: object) -> object:
    """Return an array (numpy, pandas, pyarrow) as a list; anything else unchanged."""
    convert = getattr(content, "tolist", None)
    return convert() if callable(convert) else content


def _call_entries(calls: object) -> Sequence[object]:
    """Return the entries of a message's tool calls; nothing for an absent value, which pandas gives as NaN."""
    calls = _plain(calls)
    if isinstance(calls, str):
        calls = _parsed(calls)
    is_absent = calls is None or calls == "" or (isinstance(calls, float) and math.isnan(calls))
    if is_absent:
        return ()
    is_single = isinstance(calls, (str, Mapping)) or hasattr(calls, "model_dump") or hasattr(calls, "function")
    if is_single or not isinstance(calls, Iterable):
        entries: list[object] = [calls]
        return entries
    return list(cast("Iterable[object]", calls))


def _call_fields(call: object) -> Mapping[str, Any] | None:
    """Read a call that is an object with attributes, as OpenAI's client makes them."""
    function = getattr(call, "function", None)
    if function is None:
        return None
    inner = {"name": getattr(function, "name", ""), "arguments": getattr(function, "arguments", None)}
    return {"id": getattr(call, "id", None), "function": inner}


def _parsed(arguments: str) -> object:
    """Return the parsed JSON text of a call's arguments; a model's broken JSON stays text."""
    if not arguments.startswith(("{", "[")) or len(arguments) > _MAX_ARGUMENT_CHARS:
        return arguments
    try:
        return orjson.loads(arguments)
    except ValueError:
        return arguments
