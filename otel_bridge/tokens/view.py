"""The tokens of one rollout -> one HTML page that needs nothing else, and back. Pure.

The page is ``view.html`` with the data as JSON; its script puts them in as text, never as HTML.
Trackers and the terminal show the same data.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import accumulate

import orjson

from otel_bridge.records import Json, Message
from otel_bridge.text.message_parts import part_text
from otel_bridge.tokens.statistics import ENGINE, TOKEN_IDS, TRAINER, streams_of_figures

MISMATCH = "mismatch"
OVERLAYS: Mapping[str, str] = {
    "entropies": "entropy", "advantages": "advantage", "is_masked": "mask", "is_clipped": "clipped",
}  # fmt: skip
"""Stream to the name of the overlay that it makes."""
_MAX_TOKENS = 20_000
_DIGITS = 4
_BEGIN = '<script type="application/json" id="data">'
_END = "</script>"
_HEAD, _, _FOOT = (
    files("otel_bridge.tokens")
    .joinpath("view.html")
    .read_text("utf-8")
    .partition(f"{_BEGIN}{_END}")
)


@dataclass(frozen=True, slots=True)
class TokenView:
    """Holds what is shown of the tokens of one rollout.

    Attributes:
        title: What names the rollout.
        facts: Name and text of each further fact.
        turns: Messages in order: ``role``, ``name``, ``text``, and ``tokens``, the first and the end of its own ones.
        tokens: Text of each token, or its id in brackets.
        overlays: Values of each token by the name of the overlay; NaN for no value, ``None`` in a
            view that was read from a page.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    turns: Sequence[Mapping[str, Json]] = ()
    tokens: Sequence[str] = ()
    overlays: Mapping[str, Sequence[float | None]] = field(
        default_factory=dict[str, "Sequence[float | None]"]
    )


def view_of(
    title: str,
    facts: Mapping[str, str],
    messages: Iterable[Message],
    texts: Sequence[str],
    streams: Mapping[str, Sequence[float]],
) -> TokenView:
    """Return the view of a rollout; tokens beyond `_MAX_TOKENS` are left out, so that the page is bounded.

    A token without text is shown by its id, one without either by a dot.

    Args:
        title: What names the rollout.
        facts: Name and text of each further fact.
        messages: Its conversation in OpenAI's chat format.
        texts: Texts of its tokens, or of the first of them; empty when they are not known.
        streams: Values of each token by stream.
    """
    length = min(max(map(len, streams.values()), default=len(texts)), _MAX_TOKENS)
    ids = streams.get(TOKEN_IDS, ())
    tokens = list(texts[:length])
    for index in range(len(tokens), length):
        has_id = index < len(ids) and math.isfinite(ids[index])
        tokens.append(f"[{ids[index]:.0f}]" if has_id else "[·]")
    overlays: dict[str, Sequence[float]] = {}
    if ENGINE in streams and TRAINER in streams:
        # The first one is that which a page shows at first.
        pairs = zip(streams[TRAINER], streams[ENGINE], strict=False)
        overlays[MISMATCH] = [trainer - engine for trainer, engine in pairs]
    for name, values in streams_of_figures(streams).items():
        overlays[OVERLAYS.get(name, name)] = values
    rounded = {
        name: [round(value, _DIGITS) for value in values[:length]]
        for name, values in overlays.items()
    }
    turns = _turns(messages, tokens if texts else [])
    return TokenView(title, facts, turns, tokens, rounded)


def _turns(messages: Iterable[Message], tokens: Sequence[str]) -> list[dict[str, Json]]:
    """Return the messages, each with the range of its tokens where these give its text, in order.

    Others have no range: texts that were cut or redacted differ from the tokens, and tokens are of
    what the model sampled, not of the user's messages.
    """
    whole = "".join(tokens)
    starts = [0, *accumulate(map(len, tokens))]
    reached = 0
    turns: list[dict[str, Json]] = []
    for message in messages:
        text = _text(message)
        turn: dict[str, Json] = {
            "role": message.get("role"),
            "name": message.get("name"),
            "text": text,
        }
        start = whole.find(text, reached) if text else -1
        # The first of several: tokens without text begin where the next one does.
        first = bisect_left(starts, start)
        if starts[first] == start and message.get("role") != "user":
            # The last token goes on beyond the text, as with an end of turn.
            end = bisect_left(starts, start + len(text))
            turn["tokens"] = [first, end]
            reached = starts[end]
        turns.append(turn)
    return turns


def _text(message: Message) -> str:
    """Return the text of a message: its content, then the calls of tools as JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    parts = [*parts, message.get("tool_calls")]
    return "\n".join(part_text(part) for part in parts if part)


def page_of(view: TokenView) -> str:
    """Return the page of *view*."""
    data = orjson.dumps(view).decode()
    for sign in (
        "<>&\u2028\u2029"
    ):  # nothing in the data can end the script, or begin another element
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    return f"{_HEAD}{_BEGIN}{data}{_END}{_FOOT}"


def view_in(page: str) -> TokenView | None:
    """Return the view that *page* holds.

    ``None`` when it is another page, or lacks a field of the view.
    """
    _, begin, rest = page.partition(_BEGIN)
    if not begin:
        return None
    try:
        return TokenView(**orjson.loads(rest.partition(_END)[0]))
    except (orjson.JSONDecodeError, TypeError):
        # Cut off, or of a version with other fields.
        return None
