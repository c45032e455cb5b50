"""Text of others -> text that may be shown on a terminal or written to a log: no control characters, no secrets. Pure.

Names come over the wire, and models and trackers answer anything. An escape sequence among it would move the cursor,
write the clipboard (OSC 52) or hide a line; so would C1 controls, and bidirectional overrides would turn it around.
"""

from __future__ import annotations

from typing import TypeVar, cast

from otel_bridge.text.redaction import redact_text

_T = TypeVar("_T")


def printable(text: str, *, lines: bool = False) -> str:
    """Return *text* with what a terminal acts on written out, ESC as backslash x1b; *lines*: breaks stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or (lines and one == "\n") else ascii(one)[1:-1] for one in text)


def shown(text: str) -> str:
    """Return *text*, breaks between its lines included, as it may be shown: without secrets and control characters."""
    return printable(redact_text(text), lines=True)


def printable_json(text: str) -> str:
    """Return JSON *text* that a terminal may show: what it would act on is escaped as JSON escapes it."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _json_escape(one) for one in text)


def is_printable_json(data: bytes) -> bool:
    """Return whether every text in the JSON *data* is printable as it is; ``False`` where that needs a closer look."""
    return b"\\" not in data and data.decode().isprintable()


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def all_printable(value: _T) -> _T:
    """Return JSON data, every text in it, names too, as `printable`."""
    return cast("_T", _all(value))


def _all(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_all(entry) for entry in cast("list[object]", value)]
    if isinstance(value, dict):
        return {_all(key): _all(entry) for key, entry in cast("dict[object, object]", value).items()}
    return value
