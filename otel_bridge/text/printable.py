"""External text -> text for terminals and logs, without control characters and secrets. Pure.

Names arrive over the wire, and models and trackers may answer anything. An escape sequence or a C1
control could move the cursor, write the clipboard (OSC 52) or hide a line. A bidirectional override
could reverse the text.
"""

from __future__ import annotations

from typing import cast

from otel_bridge.text.secret_patterns import redact_text


def printable(text: str, *, lines: bool = False) -> str:
    """Return *text* with control characters written out, ESC as backslash x1b.

    *lines*: line breaks stay.
    """
    # Hot path: one look in C, since nearly every text is printable.
    if text.isprintable():
        return text
    parts: list[str] = []
    for char in text:
        stays = char.isprintable() or (lines and char == "\n")
        parts.append(char if stays else ascii(char)[1:-1])
    return "".join(parts)


def shown(text: str) -> str:
    """Return *text*, with its line breaks, in a form to show: without secrets and control characters."""
    return printable(redact_text(text), lines=True)


def printable_json(text: str) -> str:
    """Return JSON *text* that a terminal may show, with control characters as JSON escapes."""
    if text.isprintable():
        return text
    return "".join(map(_json_shown, text))


def is_printable_json(data: bytes) -> bool:
    """Return whether every text in the JSON *data* is surely printable.

    ``False`` when this needs a closer check. *data* was parsed before, so that it is UTF-8.
    """
    return b"\\" not in data and data.decode().isprintable()


def _json_shown(char: str) -> str:
    """Return a character of JSON text as it is, or a control character as its escape."""
    if char.isprintable() or char == "\n":
        return char
    return json_escape(char)


def json_escape(char: str) -> str:
    """Return a character as JSON writes it in ASCII."""
    # JSON escapes UTF-16 units, so that a character beyond U+FFFF is two of them.
    units = char.encode("utf-16-be", "surrogatepass")
    escapes = ""
    for index in range(0, len(units), 2):
        escapes += f"\\u{units[index : index + 2].hex()}"
    return escapes


def all_printable(value: object) -> object:
    """Return JSON data with every text, names included, made `printable`.

    Anything that is not a text or a collection as it is.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [all_printable(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return {all_printable(key): all_printable(item) for key, item in fields.items()}
    return value
