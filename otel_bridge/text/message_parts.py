"""A part of a message -> its text, where only text can be shown."""

from __future__ import annotations

import json
from typing import cast

_TITLES = {"image_url": "[image]", "input_audio": "[audio]", "blob": "[media]"}
"""Type of a part to what is shown in place of its bytes."""


def part_text(part: object) -> str:
    """Return the text of *part*; of a medium its kind, or its address on the web.

    Of any other part its JSON. For a part of JSON data it never raises; a value that JSON cannot
    hold is shown by ``str()``.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return _json(part)
    fields = cast("dict[str, object]", part)
    kind = fields.get("type")
    text = fields.get("text")
    if kind == "text" and isinstance(text, str):
        return text
    image = fields.get("image_url")
    if isinstance(image, dict):
        url = cast("dict[str, object]", image).get("url")
    else:
        url = None
    # A data URL holds the whole picture.
    if isinstance(url, str) and not url.startswith("data:"):
        return url
    return _TITLES.get(str(kind)) or _json(fields)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
