"""Media beside a conversation -> parts of its first message: pictures of a rollout's metadata, cells of a table."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, cast

from otel_bridge.emit.media.pictures import MediaDropped, is_picture
from otel_bridge.emit.media.values import Audio, Image, Media, Table, Video, media_in
from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages.parts import UNREAD
from otel_bridge.records import Json
from otel_bridge.values.plain import Losses

MAX_MEDIUM_BYTES = 32 << 20
_MAX_MEDIA = 100
"""Most media of one rollout: the training loop waits for their encoding."""
_PLAIN = frozenset({str, int, float, bool, type(None), dict})
_USER = "user"


def media_facts(metadata: Mapping[str, Any]) -> dict[str, Sequence[object]]:
    """Return the entries of *metadata* that are media, pictures of pillow or figures, or lists of these.

    Empty without any. An entry that raises is not one of them, and is read as a fact, which counts
    it.
    """
    facts: dict[str, Sequence[object]] = {}
    for name, value in metadata.items():
        try:
            media = None if type(value) in _PLAIN else _media_in(value)
        except any_error_but_signals():
            # Code of the user's own object, which is read as a fact.
            continue
        if media is not None:
            facts[name] = media
    return facts


def _media_in(value: object) -> Sequence[object] | None:
    """Return the media that a value is or lists, ``None`` for anything else.

    The first entry of a list decides.
    """
    media = media_in(value)
    if media is not None:
        return media
    if isinstance(value, (list, tuple)):
        entries = cast("Sequence[object]", value)
    else:
        entries = (value,)
    if entries and is_picture(entries[0]):
        return list(map(Image, entries))
    return None


def parts_of(media: Sequence[object], losses: Losses) -> list[Json]:
    """Encode media as parts.

    One that cannot be encoded leaves a text that says why, and is counted as ``rollout_message``.
    Media beyond 100 are so too: the training loop waits for their encoding.
    """
    encoded: list[Json] = []
    for medium in media[:_MAX_MEDIA]:
        parts = _parts_or_reason(medium)
        if isinstance(parts, str):
            losses.add(UNREAD, 1, "")
            encoded.append({"type": "text", "content": f"[{_kind(medium)}: {parts}]"})
        else:
            encoded += parts
    if len(media) > _MAX_MEDIA:
        losses.add(UNREAD, len(media) - _MAX_MEDIA, "")
    return encoded


def _parts_or_reason(medium: object) -> list[Json] | str:
    """Return a medium as parts, or why it cannot be encoded."""
    try:
        return _parts(medium)
    except MediaDropped as exc:
        return str(exc)
    except any_error_but_signals():  # code of the user's own object
        return "media_unreadable"


def _kind(medium: object) -> str:
    if isinstance(medium, Media):
        return medium.kind
    return type(medium).__name__


def _parts(medium: object) -> list[Json]:
    """Return a medium as a part, and its caption as another; a text as a part alone.

    A table has no place in a conversation.

    Raises:
        MediaDropped: It cannot be encoded.
    """
    from otel_bridge.emit.media.encode import file_of  # noqa: PLC0415  # only programs with media pay for it

    if not isinstance(medium, Media) or isinstance(medium, Table):
        raise MediaDropped("media_mixed")
    if not isinstance(medium, (Image, Audio, Video)):
        return [{"type": "text", "content": str(medium.value)}]
    mime, data = file_of(medium, MAX_MEDIUM_BYTES)
    content = base64.b64encode(data).decode()
    parts: list[Json] = [
        {"type": "blob", "mime_type": mime, "modality": medium.kind, "content": content}
    ]
    if medium.caption:
        parts.append({"type": "text", "content": str(medium.caption)})
    return parts


def attached(entries: Sequence[object], parts: Sequence[Json]) -> list[object]:
    """Return *entries* with *parts* in the first message of the user.

    Without one, in a message ahead of the others, so that nothing is lost.

    A part that only names a modality, as in the templates of vision models, is the place of the
    next medium.
    """
    for index, entry in enumerate(entries):
        if type(entry) is not dict:
            continue
        message = cast("dict[str, object]", entry)
        content = message.get("content")
        if message.get("role") == _USER and isinstance(content, (str, list)):
            filled = {
                **message,
                "content": _filled(cast("str | list[object]", content), list(parts)),
            }
            return [*entries[:index], filled, *entries[index + 1 :]]
    return [{"role": _USER, "content": list(parts)}, *entries]


def _filled(content: str | list[object], parts: list[Json]) -> list[object]:
    """Return *content* with *parts* in the places that it has for them, the others before it."""
    if isinstance(content, str):
        return [*parts, {"type": "text", "content": content}]
    filled: list[object] = []
    for part in content:
        filled.append(parts.pop(0) if parts and _is_place(part) else part)
    return [*parts, *filled]


def _is_place(part: object) -> bool:
    """Return whether a part names its type and nothing else."""
    return isinstance(part, dict) and list(cast("dict[object, object]", part)) == [
        "type"
    ]
