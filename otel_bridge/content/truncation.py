"""One text -> its part within a limit of characters, with a mark at the cut. Pure.

Text is cut inside message parts and string values, never inside JSON, and a mark states how much
was cut.
"""

from __future__ import annotations

import re

from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.records import Json

NOT_TEXT = frozenset({
    "type", "role", "id", "name", "mime_type", "modality", "finish_reason", "tool_call_id", "file_id",
})  # fmt: skip
"""Fields of a message and its parts that hold names, not text."""
_MARK = re.compile(r"… \[\+?([0-9]+) (?:more )?characters\]\Z")
"""Mark at the end of a text that was cut before."""
_MARK_CHARS = 48
_IDENTIFIER = re.compile(r"[\w.:/<>()\[\]{}#@+*-]{1,64}")


def is_identifier(text: str) -> bool:
    """Return whether *text* is one word, as names and ids are."""
    return _IDENTIFIER.fullmatch(text) is not None


def cut(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters and a mark; empty for the limit 0.

    JSON stays JSON, its strings are cut; text that is not quite JSON is cut as text.

    For a text that was cut before, the mark counts all missing characters: the emitter, the bridge
    and an exporter's own limit may each cut it.
    """
    if len(text) <= limit:
        return text
    if not limit:
        return ""
    parsed = parsed_json(text)
    if isinstance(parsed, (list, dict)):
        return as_text(cut_json(parsed, limit))
    if text.startswith("data:"):  # half an image is useless
        return f"[{len(text)} characters left out]"
    # From near the end on, where alone a mark can be: the text may have megabytes.
    mark = _MARK.search(text, max(len(text) - _MARK_CHARS, 0))
    size = len(text) if mark is None else mark.start()
    # Cut before, to this length or less: the mark still counts all missing characters.
    if size <= limit:
        return text
    return (
        f"{text[:limit]}… [+{size - limit + (int(mark[1]) if mark else 0)} characters]"
    )


def cut_json(value: Json, limit: int) -> Json:
    """Return *value* with each of its texts cut to *limit* characters.

    Names, ids and types stay: without them a message could not be read. Base64 is cut whole.
    """
    if isinstance(value, str):
        return cut(value, limit)
    if isinstance(value, list):
        return [cut_json(entry, limit) for entry in value]
    if isinstance(value, dict):
        blob = value.get("type") == "blob"
        fields: dict[str, Json] = {}
        for key, entry in value.items():
            field = key if is_identifier(key) else cut(key, limit)
            fields[field] = _cut_field(key, entry, limit, blob=blob)
        return fields
    return value


def _cut_field(key: str, value: Json, limit: int, *, blob: bool) -> Json:
    """Return a field of a message, cut to *limit*.

    Types, roles and ids stay whole, so that the message is readable.
    """
    if key in NOT_TEXT and isinstance(value, str) and is_identifier(value):
        return value
    if blob:
        return _cut_blob(value, limit)
    return cut_json(value, limit)


def _cut_blob(value: Json, limit: int) -> Json:
    """Return media whole, or only its length. Half of base64 shows nothing."""
    if isinstance(value, str) and len(value) > limit:
        return f"[{len(value)} characters left out]"
    return value
