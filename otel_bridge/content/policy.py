"""The decision: which part of a text may leave, by the run's policy and by what the text is.

What a text is follows from the name of its attribute in `otel_bridge.conventions`, and from nothing
else. What counts as a secret is in `otel_bridge.text.secret_patterns`. Pure, except for the user's
own function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

from otel_bridge import settings
from otel_bridge.content.truncation import cut
from otel_bridge.content.user_function import by_user
from otel_bridge.conventions import is_content, is_name
from otel_bridge.conventions.registry import USER_FACT_PREFIXES
from otel_bridge.text.secret_patterns import (
    REDACTED,
    redact_emails,
    redact_message,
    redact_text,
    secret_by_name,
)

Limit: TypeAlias = int | None
"""Most characters of a text; 0: no content at all; ``None``: no limit."""

_ERRORS = frozenset({"exception.message", "exception.stacktrace"})


class TextKind(Enum):
    """States what a text is."""

    NAME = 0
    """A name, an id or an enumeration: leaves whole, without secrets."""
    MESSAGE = 1
    """Input or output of a model: redacted as prose, in which words such as "token" are ordinary."""
    FACT = 2
    """An error's text, or a fact that the user gave: redacted as settings and addresses are."""
    UNKNOWN = 3
    """A text whose name no convention knows, which may be a prompt: as a fact, and counted when less of it leaves."""


# Keys are few, and looked up for each attribute of each span.
@lru_cache(maxsize=4096)
def kind_of(key: str) -> TextKind:
    """Return what the texts of the attribute *key* are; ``UNKNOWN`` if no convention knows it."""
    # First: for `is_content` errors are content too.
    if key in _ERRORS or key.startswith(USER_FACT_PREFIXES):
        return TextKind.FACT
    if is_content(key):
        return TextKind.MESSAGE
    if is_name(key):
        return TextKind.NAME
    return TextKind.UNKNOWN


def limit_of(message_content: str) -> Limit:
    """Return the limit that ``full``, ``off`` or ``truncate:N`` means.

    ``None``, no limit, for ``full`` and any other text, which the parser of the setting refuses
    before.
    """
    if message_content == "off":
        return 0
    _, _, number = message_content.partition(":")
    if number.isdigit():
        return int(number)
    return None


@dataclass(frozen=True, slots=True)
class ContentPolicy:
    """Decides which texts leave.

    Attributes:
        limit: Most characters of a text that is not a name.
        secrets: Whether texts that look like keys or tokens are redacted.
        email: Whether e-mail addresses are redacted.
    """

    limit: Limit = None
    secrets: bool = True
    email: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str]) -> ContentPolicy:
        """Read the policy from *env*; without any setting texts stay whole but for secrets.

        Raises:
            ConfigError: A value cannot be parsed.
        """
        redactions = settings.REDACT.read(env)
        return cls(
            limit_of(settings.content_mode(env)),
            "secrets" in redactions,
            "email" in redactions,
        )

    @property
    def off(self) -> bool:
        """Whether no content leaves at all."""
        return self.limit == 0

    def allowed(self, text: str, kind: TextKind, name: str = "") -> str:
        """Return the part of *text* that may leave, empty with policy ``off``; a name leaves whole.

        What the user's function refuses is ``[redacted]``, and counted by it.

        Args:
            text: The text.
            kind: What the text is.
            name: Name of the text, which may mark a secret.
        """
        if kind is TextKind.NAME:
            return self.redact_fact(text, name)
        if self.off:
            return ""
        # Before the cut, after which half of a secret would not be recognised.
        if kind is TextKind.MESSAGE:
            redacted = self.redact(text)
        else:
            redacted = by_user(self.redact_fact(text, name))
        if self.limit is None:
            return redacted
        return cut(redacted, self.limit)

    def redact(self, text: str) -> str:
        """Return *text*, of a message, after redaction."""
        if self.secrets:
            text = redact_message(text)
        if self.email:
            text = redact_emails(text)
        # Last, so that the user's function gets texts without the known secrets.
        return by_user(text)

    def redact_fact(self, text: str, name: str = "") -> str:
        """Return *text*, of a name or a fact, without secrets and addresses.

        The user's function does not see names.
        """
        if self.secrets:
            text = REDACTED if secret_by_name(name, text) else redact_text(text)
        if self.email:
            return redact_emails(text)
        return text


DEFAULT_POLICY = ContentPolicy()
