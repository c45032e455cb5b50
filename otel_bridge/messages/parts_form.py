"""One message in the shape of any library -> the message of GenAI's parts form.

Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from otel_bridge.messages import shapes
from otel_bridge.messages.fields import (
    ReadFields,
    fields_of,
    first,
    is_absent,
    parsed,
    plain,
    text_or_none,
)
from otel_bridge.messages.parts import EMPTY, Parts
from otel_bridge.messages.reader import Message, is_item
from otel_bridge.records import Json
from otel_bridge.values.mappings import without
from otel_bridge.values.plain import CLIPPED
from otel_bridge.values.scalars import any_text

_MAX_FACTS = 100
_RESERVED = ("role", shapes.PARTS_KEY)
_USER = "user"
_TOOL = "tool"


def parts_form(message: Message, parts: Parts) -> dict[str, Json]:
    """Return *message* with its role, its parts, which are added to *parts*, its facts and its name.

    What is in no known shape is its text, and counted as ``rollout_message``. A message of GenAI's
    parts is read by these alone, an item of OpenAI's Responses API as its one part. What the
    program's own objects raise is raised.
    """
    role = message.role or _USER
    name: str | None = None
    facts: Mapping[str, Json] = {}
    if message.fields is None:
        parts.add_unread(message.value)
    elif is_item(first(message.fields, shapes.KIND_KEYS)):
        reasons = shapes.FINISH_KEYS & message.fields.keys()
        parts.add_part(without(message.fields, reasons))
        # Why the model stopped is a fact of the message: readers do not look for it in a part.
        reason_facts = {key: message.fields[key] for key in reasons}
        facts = parts.content_filter.facts(reason_facts, "message")
    else:
        fields = ReadFields(message.fields)
        _add_fields(parts, fields, role)
        first(fields, shapes.ROLE_KEYS)  # read before, for the role of the message
        name = text_or_none(fields.get("name"))
        facts = _facts_of(fields, parts)
    form: dict[str, Json] = {
        "role": role,
        "parts": cast("list[Json]", parts.parts),
        **facts,
    }
    if name is not None:
        form["name"] = parts.name(name)
    return form


def _add_fields(parts: Parts, fields: ReadFields, role: str) -> None:
    """Add what a message holds: GenAI's parts where it has them, else by its *role*."""
    given_parts = plain(fields.whole.get(shapes.PARTS_KEY))
    if isinstance(given_parts, (list, tuple)):
        parts.add_content(cast("object", given_parts))
        _add_media(parts, fields)
        fields.skip(shapes.PARTS_KEY)
        # A message of its own.
        if isinstance(fields.whole.get(shapes.INSTRUCTIONS_KEY), str):
            fields.skip(shapes.INSTRUCTIONS_KEY)
    elif role == _TOOL:
        _add_answer(parts, fields)
    else:
        _add_message(parts, fields)


def _facts_of(fields: ReadFields, parts: Parts) -> dict[str, Json]:
    """Return what a message holds beside what was read: weights, masks, times, ….

    Those beyond 100 are counted as ``clipped``. A role or parts that were not read cannot be a fact
    beside the role and the parts of the message, and become a text.
    """
    other_fields: dict[str, Any] = {}
    for key, value in fields.unread():
        if not _says_nothing(key, value):
            other_fields[key] = value
    for key in _RESERVED:  # has no place as a fact
        if key in other_fields:
            parts.add_unread({key: other_fields.pop(key)})
    if not other_fields:
        return {}
    beyond = list(other_fields)[_MAX_FACTS:]
    if beyond:
        parts.content_filter.losses.add(CLIPPED, len(beyond), any_text(beyond[0]))
    for key in beyond:
        del other_fields[key]
    facts = parts.content_filter.facts(other_fields, "message")
    return {key: fact for key, fact in facts.items() if fact not in EMPTY}


def _says_nothing(key: str, value: object) -> bool:
    """Return whether a field is a type, which the role says, or a default of LangChain's messages."""
    return (
        value is None
        or is_absent(value)
        or (key in shapes.TYPE_KEYS and isinstance(value, str))
        or (key == "example" and value is False)
    )


def _add_answer(parts: Parts, fields: ReadFields) -> None:
    """Add the message of a tool, or the answers that its content itself holds (Vercel, Bedrock).

    These name their calls. Then the ids of the message are not needed, and stay as its facts.
    """
    content: object = first(fields, shapes.CONTENT_KEYS)
    if _holds_answers(content):
        parts.add_content(content)
    else:
        extras = fields_of(fields.whole.get(shapes.EXTRAS)) or {}
        call_id = first(fields, shapes.ANSWER_CALL_KEYS)
        if call_id is None and shapes.TAU_KEY in fields.whole:
            call_id = fields.get("id")
        if call_id is None:  # LlamaIndex
            call_id = first(extras, shapes.ANSWER_CALL_KEYS)
        name = text_or_none(first(fields, ("name",))) or text_or_none(
            extras.get("name")
        )
        parts.add_answer(text_or_none(call_id), content, name)
    _add_media(parts, fields)


def _add_media(parts: Parts, fields: ReadFields) -> None:
    """Add the media beside a message's content."""
    # None of them in nearly every message.
    if shapes.MEDIA_KEYS.keys().isdisjoint(fields.whole):
        return
    for key, modality in shapes.MEDIA_KEYS.items():
        medium = fields.whole.get(key)
        # OpenAI names an earlier answer in audio by its id alone, which stays a fact.
        is_reference = isinstance(medium, dict) and medium.keys() == {"id"}
        if medium is not None and not is_reference:
            parts.add_media(modality, fields[key])


def _holds_answers(content: object) -> bool:
    """Return whether *content* is many parts, one of them a tool's answer, by its type or its key."""
    # A row of Parquet has an array of parts.
    parts = plain(content)
    if not isinstance(parts, (list, tuple)):
        return False
    for part in cast("Sequence[object]", parts):
        fields = fields_of(part) or {}
        kind = first(fields, shapes.KIND_KEYS)
        if isinstance(kind, str) and shapes.KINDS.get(kind) == shapes.ANSWER:
            return True
        if kind is None and first(fields, shapes.KEYED_ANSWERS) is not None:
            return True
    return False


def _add_message(parts: Parts, fields: ReadFields) -> None:
    """Add the content of a message that is not a tool's: reasoning, content, media, refusal, calls.

    It is the order in which models generate. LangChain keeps reasoning and calls of older models in
    its extras, which count as read when they hold nothing else.
    """
    extras = fields_of(fields.whole.get(shapes.EXTRAS)) or {}
    thought = first(fields, shapes.REASONING_KEYS) or first(
        extras, shapes.REASONING_KEYS
    )
    if thought:
        parts.add_reasoning(thought)
        for key in shapes.REASONING_KEYS:
            if _is_same(fields.whole.get(key), thought):
                fields.skip(key)
    _add_said(parts, fields)
    _add_media(parts, fields)
    refusal = fields.whole.get("refusal")
    if isinstance(refusal, str):
        fields.skip("refusal")
        if refusal:
            parts.add_text("refusal", refusal)
    for key in shapes.CALL_KEYS:
        parts.add_calls(fields.get(key))
    if not parts.calls:  # LangChain repeats the calls of its own fields
        for key in shapes.CALL_KEYS:
            parts.add_calls(extras.get(key))
    if _are_read(extras, thought):
        fields.skip(shapes.EXTRAS)


def _add_said(parts: Parts, fields: ReadFields) -> None:
    """Add the content of a message, by its role or Harmony's channel a tool call or reasoning."""
    content: object = first(fields, shapes.CONTENT_KEYS)
    role = first(fields.whole, shapes.ROLE_KEYS)
    channel = fields.whole.get(shapes.CHANNEL_KEY)
    recipient = fields.whole.get(shapes.RECIPIENT_KEY)
    calls: object = None
    if isinstance(role, str) and role in shapes.CALL_ROLES:
        calls = parsed(content) if isinstance(content, str) else content
    elif channel in shapes.TOOL_CHANNELS and recipient not in shapes.NO_TOOLS:
        fields.skip(shapes.RECIPIENT_KEY)
        calls = {"name": recipient, "arguments": _text_in(content)}
    if calls is not None and not isinstance(calls, str):
        parts.add_calls(calls)
    elif channel == shapes.REASONING_CHANNEL:
        fields.skip(shapes.CHANNEL_KEY)
        parts.add_reasoning(content)
    else:
        parts.add_content(content)


def _text_in(content: object) -> object:
    """Return the text of content of one text part, anything else unchanged."""
    entries = plain(content)
    if not isinstance(entries, list) or len(cast("list[object]", entries)) != 1:
        return content
    text = (fields_of(cast("list[object]", entries)[0]) or {}).get("text")
    return text if isinstance(text, str) else content


def _are_read(extras: Mapping[str, Any], thought: object) -> bool:
    """Return whether the extras of a message hold calls and its reasoning only.

    Then they need not stay as a fact of the message. False without any: what stands in their place
    may have no fields.
    """
    for key, value in extras.items():
        if not (
            key in shapes.CALL_KEYS or _is_empty(value) or _is_same(value, thought)
        ):
            return False
    return bool(extras)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _is_same(value: object, thought: object) -> bool:
    """Return whether *value* is the reasoning that was added: servers give it under several names.

    Only texts are compared: arrays have no truth value.
    """
    return value is thought or (
        isinstance(value, str) and isinstance(thought, str) and value == thought
    )
