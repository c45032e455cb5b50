"""Values of a program -> the content that may leave: truncated, redacted or left out, before the segment.

Which text leaves is decided by `otel_bridge.content.policy`; this module reads the values and
counts what is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import MARGIN_CHARS, redact_text, scrubbed
from otel_bridge.values.plain import (
    CLIPPED,
    Losses,
    PlainReader,
    ReadingRules,
    json_number,
    mapping_of,
)
from otel_bridge.values.reading import ReadBudget, items_of
from otel_bridge.values.scalars import number_of

_RULES = ReadingRules()


class ContentFilter:
    """Applies a policy to the texts of one rollout and counts the bytes that are cut.

    Args:
        policy: The policy.
        max_chars: Longest text that this rollout's limit of bytes allows.

    Attributes:
        off: Whether no text leaves.
        clipped_bytes: Number of bytes that were cut.
        losses: Values within data that are not recorded.
    """

    __slots__ = (
        "_budget",
        "_limit",
        "_policy",
        "clipped_bytes",
        "losses",
        "off",
    )

    def __init__(self, policy: ContentPolicy, max_chars: int) -> None:
        self._policy = policy
        self._limit = (
            max_chars if policy.limit is None else min(policy.limit, max_chars)
        )
        self.off = policy.off
        self.clipped_bytes = 0
        self.losses = Losses()
        self._budget = ReadBudget(_RULES.entries)

    def text(self, text: str) -> str:
        """Return the part of *text* that may leave, with a mark at a cut.

        Empty with policy ``off``. Cut characters are added to `clipped_bytes`, which the span
        shows. What the user's redaction function refuses is ``[redacted]``, and counted.
        """
        if self.off:
            return ""
        limit = self._limit
        if len(text) <= limit:
            return self._policy.redact(text)
        # With a margin, so that a secret at the cut is recognised as a whole.
        beginning = self._policy.redact(text[: limit + MARGIN_CHARS])[:limit]
        cut_chars = len(text) - limit
        # Characters beyond ASCII make this a lower bound; counting 100 MB exactly would cost the
        # caller 20 ms.
        self.clipped_bytes += cut_chars
        return f"{beginning}… [{cut_chars} more characters]"

    def error(self, text: str) -> str:
        """Return the part of an error's text that may leave.

        Like a config, this text names addresses and settings.
        """
        return self.text(redact_text(text) if self._policy.secrets else text)

    def blob(self, content: str) -> str:
        """Return base64 *content* whole, or nothing: a cut would break it.

        Its bytes count as cut, so that a reader sees that something is missing.
        """
        if self.off or len(content) > self._limit:
            self.clipped_bytes += len(content)
            return ""
        return content

    def json(self, value: object, name: str = "") -> Json:
        """Return *value* as JSON data, with its texts filtered by `text`; it never raises.

        Other objects become a descriptive text. With policy ``off`` only a number stays, anything
        else is an empty text.

        Args:
            value: Anything.
            name: Name of the value; this name, and names within the value, may mark a secret.
        """
        if self.off:
            number = _number_or_none(value)
            if number is None:
                return ""
            return number
        plain = self._reader().read(value, name)
        if self._policy.secrets and (name or isinstance(plain, (dict, list))):
            return scrubbed(plain, name)
        return plain

    def facts(self, values: object, name: str) -> dict[str, Json]:
        """Return free facts by key; without content only the numbers among them.

        A fact that is ``None`` is left out: it says nothing in a tracker. Raises what `entries`
        raises.

        Args:
            values: A mapping, or an object with fields; anything else is one fact.
            name: Name of this one fact.
        """
        facts: dict[str, Json] = {}
        for key, value in self.entries(values, name).items():
            fact = self.json(value, key)
            if fact is not None and not (self.off and fact == ""):
                facts[key] = fact
        return facts

    def entries(self, values: object, name: str) -> dict[str, object]:
        """Return the entries of a mapping or of an object with fields.

        Anything else is the one entry *name*.

        Keys leave also without content, so a secret in a key is redacted under every policy. Of
        keys that are equal then the last counts, the others are counted as ``same_key``. Entries
        beyond the budget (``clipped``) and those whose key is empty (``empty_key``) or raises
        (``bad_key``) are left out and counted. What a mapping's own ``len()`` raises is raised: it
        costs the message, the rollout or the span that has it.
        """
        mapping = mapping_of(values)
        if mapping is None:
            return {name: values}
        entries: dict[str, object] = {}
        for raw_key, value in self._reader().entries(mapping, values).items():
            key = self._policy.redact(raw_key)
            if key in entries:
                self.losses.add("same_key", 1, key)
            entries[key] = value
        return entries

    def items(self, collection: Sequence[object], whole: object) -> Sequence[object]:
        """Return the messages or parts of *collection* that may still be read.

        The others are counted as ``clipped``: lists that hold one another may have more entries
        than memory.

        Args:
            collection: The messages or parts.
            whole: What the program gave: an array of them makes another list each time.
        """
        share = self._budget.share(whole, len(collection))
        if share == len(collection):
            return collection
        self.losses.add(CLIPPED, len(collection) - share, "messages")
        return items_of(collection, share)

    def _reader(self) -> PlainReader:
        return PlainReader(_RULES, self.text, self.losses.add, self._budget)


def _number_or_none(value: object) -> Json:
    """Return a number, which may leave without content.

    ``None`` for anything else, also for what raises. Names and structure around numbers may not.
    """
    try:
        number = number_of(value)
    except any_error_but_signals():  # code of the user's own object
        return None
    if number is None:
        return None
    return json_number(number)
