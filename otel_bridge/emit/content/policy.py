"""Message content -> content that may leave the process: truncated, redacted or left out, before the segment.

What counts as a secret is in `otel_bridge.text.secret_patterns`; this module applies that to messages and errors.
A cut falls inside a text, never inside JSON. Pure, except for the user's hook.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import orjson

from otel_bridge import settings
from otel_bridge.emit.encode.protobuf import utf8
from otel_bridge.emit.values.plain import CLIPPED, Losses, PlainReader, ReadingRules, json_number, mapping_of
from otel_bridge.emit.values.reading import ReadBudget, items_of
from otel_bridge.emit.values.scalars import number_of
from otel_bridge.errors import ConfigError, any_error
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import (
    MARGIN_CHARS,
    REDACTED,
    may_be_secret,
    may_name_secret,
    redact_assigned,
    redact_emails,
    redact_named,
    redact_shapes,
    redact_text,
    scrubbed,
)

Redaction: TypeAlias = Callable[[str], str]

_RULES: Final = ReadingRules()
_log = logging.getLogger("otel_bridge")

# Prefixes of every secret below, each searched by its rarest character: 2 to 50 us for 24 KB, while the expressions
# themselves take a millisecond.
_LOOKS: Final = tuple(
    (anchor, re.compile(literals))
    for anchor, literals in (
        (b"A", rb"A(?:KIA|SIA|Iza)"),
        (b"S", rb"S(?:ECRET|WORD)"),
        (b"-", rb"-(?<=[abekprsti-]-)(?:(?<=sk-)|(?<=lpat-)|(?<=nvapi-)|(?<=xox[a-z]-)|(?<=-----)BEGIN)"),
        (
            b"_",
            rb"_(?:TOKEN|(?<=[bfgopsurtI]_)(?:(?<=hf_)|(?<=gh[opsur]_)|(?<=b_pat_)|(?<=i_org_)|(?<=wandb_)v|(?<=API_)KEY))",
        ),
        (b"J", rb"J(?<=eyJ)"),
        (b"9", rb"9(?<=ya29)\."),
    )
)
_ASSIGNED_NAME: Final = re.compile(rb"(?:asswd|assword|oken|ecret|pi[_-]?[kK]ey|ASSW(?:OR)?D)[\"']?\s?\Z")
"""End of a name of `redact_assigned`, before its ``=`` or ``:``."""
_NAME_ENDS: Final = (b"asswd", b"assword", b"oken", b"ecret", b"key", b"Key", b"ASSWD", b"ASSWORD")
_LAST_OF_NAME: Final = frozenset(ends[-1] for ends in _NAME_ENDS)
_AFTER_NAME: Final = b" \t\n\r\f\v\"'"
_NAME_BYTES: Final = 16
_PASSWORD_IN_URL: Final = re.compile(rb"://[^/\s@]{1,256}@")
_FEW: Final = 8
"""Number of occurrences checked one by one, which for a rare character is faster than a search."""


def may_hold_secret(data: bytes) -> bool:
    """Return whether UTF-8 text, or JSON, may hold a secret that a policy's ``secrets`` redacts; false is certain."""
    return may_have_shape(data) or may_name_secret(data)


def may_have_shape(data: bytes) -> bool:
    """Return the result of `may_hold_secret` without secrets that only a name in JSON reveals."""
    for anchor, literals in _LOOKS:
        at = data.find(anchor)
        steps = _FEW
        while at >= 0 and steps:
            if literals.match(data, at):
                return True
            at = data.find(anchor, at + 1)
            steps -= 1
        if at >= 0 and literals.search(data, at):
            return True
    if b"dapi" in data or _may_assign(data):
        return True
    return (b"B" in data or b"b" in data) and b"earer " in data


def _may_assign(data: bytes) -> bool:
    """Return whether a name of a secret stands before a ``=`` or ``:``, or a password in a URL."""
    # JSON has a separator for each key: a look at what stands before each takes a tenth of a search for the names, and
    # find() of one byte a tenth of split() or of a search for "://".
    url = False
    for separator in (b":", b"="):
        at = data.find(separator)
        while at >= 0:
            last = at - 1
            while last > 0 and data[last] in _AFTER_NAME:
                last -= 1
            if data[last] in _LAST_OF_NAME:
                name = data[max(at - _NAME_BYTES, 0) : at]
                if name.rstrip(_AFTER_NAME).endswith(_NAME_ENDS) and _ASSIGNED_NAME.search(name):
                    return True
            url = url or data.startswith(b"//", at + 1)
            at = data.find(separator, at + 1)
    return url and _PASSWORD_IN_URL.search(data) is not None


_NAMED_SECRET: Final = re.compile(
    r"((?:\b[Bb]earer )|(?:(?:API_KEY|SECRET|PASSWORD|ACCESS_TOKEN|AUTH_TOKEN|_TOKEN)[\"']?[ ]?[=:][ ]?[\"']?))"
    r"[A-Za-z0-9._~+/=-]{12,}"
)


class _HookResult:
    """Holds the user's own redaction function, one for the process."""

    redaction: Redaction | None = None
    warned: bool = False
    count: Callable[[str, int], None] | None = None


def redact_by_setting(env: Mapping[str, str]) -> None:
    """Set the function that ``OTEL_BRIDGE_REDACT`` names, if any, as `redact_with` does.

    Raises:
        ConfigError: The function cannot be imported, or is not a function.
    """
    named = next((kind for kind in settings.REDACT.read(env) if ":" in kind), None)
    if named is None:
        return
    module, _, name = named.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except Exception as exc:  # the user's module may raise anything
        raise ConfigError(
            f"{settings.REDACT.name}={named!r}: it cannot be imported ({type(exc).__name__}: {exc}); "
            "name a function from text to text in a module that this process can import"
        ) from exc
    if not callable(found):
        raise ConfigError(f"{settings.REDACT.name}={named!r}: a {type(found).__name__}, expected a function")
    redact_with(cast("Redaction", found))


def count_refused_with(count: Callable[[str, int], None]) -> None:
    """Set the counter of texts on which the user's function fails."""
    _HookResult.count = count


def redact_with(redaction: Redaction | None) -> None:
    """Set a function that redacts every text of a rollout before it leaves the process; ``None`` removes the function.

    It applies to all runs of this process, from the next text on. A text for which the function raises, or returns no
    text, is left out and counted as ``rollout_redaction``.

    Args:
        redaction: Function from text to text. The thread that records calls it, so it must be thread-safe.
    """
    _HookResult.redaction = redaction
    _HookResult.warned = False


@dataclass(frozen=True, slots=True)
class ContentPolicy:
    """Defines which texts leave the process.

    Attributes:
        off: Whether no text leaves at all.
        max_chars: Longest text; ``None``: any length.
        secrets: Whether texts that look like keys or tokens are redacted.
        email: Whether e-mail addresses are redacted.
    """

    off: bool = False
    max_chars: int | None = None
    secrets: bool = True
    email: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str]) -> ContentPolicy:
        """Read the policy from *env*.

        Raises:
            ConfigError: A value cannot be parsed.
        """
        mode = settings.content_mode(env)
        kinds = settings.REDACT.read(env)
        _, _, count = mode.partition(":")
        return cls(mode == "off", int(count) if count else None, "secrets" in kinds, "email" in kinds)

    def redact(self, text: str, *, secrets: bool = True) -> str:
        """Redact *text*; without *secrets*, apply only the other redactions."""
        if secrets and self.secrets and may_hold_secret(utf8(text)):
            text = redact_named(redact_assigned(_NAMED_SECRET.sub(rf"\1{REDACTED}", redact_shapes(text))))
        if self.email:
            text = redact_emails(text)
        return text if _HookResult.redaction is None else _by_hook(_HookResult.redaction, text)


def hooked() -> bool:
    """Return whether the user's function sees every text, once each, so that no text may be encoded twice."""
    return _HookResult.redaction is not None


def _by_hook(redaction: Redaction, text: str) -> str:
    try:
        redacted: object = redaction(text)
    except any_error() as exc:  # the user's code
        redacted = exc
    if isinstance(redacted, str):
        return redacted
    if _HookResult.count is not None:
        _HookResult.count("rollout_redaction", 1)
    if not _HookResult.warned:
        _HookResult.warned = True
        # The type alone: the exception may hold the text.
        _log.warning("the redaction hook gave %s instead of text; such texts are left out", type(redacted).__name__)
    return REDACTED


class ContentFilter:
    """Applies a policy to the texts of one rollout and counts the bytes that are cut.

    Args:
        policy: The policy.
        max_chars: Longest text that this rollout's limit of bytes allows.

    Attributes:
        off: Whether no text leaves.
        clipped_bytes: Number of bytes that were cut.
        losses: Values within data that are not recorded.
        secrets: Whether each text is searched for secrets; a caller that checks all texts at once with
            `may_have_shape` switches this off.
        named: In that case, whether a text that passed may be a secret by its name.
    """

    __slots__ = ("_budget", "_limit", "_policy", "clipped_bytes", "losses", "named", "off", "secrets")

    def __init__(self, policy: ContentPolicy, max_chars: int) -> None:
        self._policy = policy
        self._limit = max_chars if policy.max_chars is None else min(policy.max_chars, max_chars)
        self.off = policy.off
        self.secrets = policy.secrets
        self.named = False
        self.clipped_bytes = 0
        self.losses = Losses()
        self._budget = ReadBudget(_RULES.entries)

    def text(self, text: str) -> str:
        """Return the part of *text* that may leave, with a mark at a cut."""
        if self.off:
            return ""
        if not self.secrets and '"' in text:
            self._look_at_names(text)
        limit = self._limit
        if len(text) <= limit:
            return self._policy.redact(text, secrets=self.secrets)
        kept = self._policy.redact(text[: limit + MARGIN_CHARS], secrets=self.secrets)[:limit]
        left = len(text) - limit
        # Characters beyond ASCII make this a lower bound; counting 100 MB exactly would cost the caller 20 ms.
        self.clipped_bytes += left
        return f"{kept}… [{left} more characters]"

    def error(self, text: str) -> str:
        """Return the part of an error's text that may leave; like a config, this text names addresses and settings."""
        return self.text(redact_text(text) if self.secrets else text)

    def leaves(self, text: str) -> bool:
        """Return whether *text* would leave unchanged."""
        if self.off or len(text) > self._limit:
            return False
        if not self.secrets:
            self._look_at_names(text)
        elif '"--' in text:
            return False
        return not (hooked() or self._policy.email) and not (self.secrets and may_hold_secret(utf8(text)))

    def _look_at_names(self, text: str) -> None:
        """Search for names by which `json` redacts: of a key, or of a ``--flag`` in a list of arguments."""
        self.named = self.named or (self._policy.secrets and ('"--' in text or may_name_secret(utf8(text))))

    def blob(self, content: str) -> str:
        """Return base64 *content* whole, or nothing: a cut would break it."""
        if self.off or len(content) > self._limit:
            self.clipped_bytes += len(content)
            return ""
        return content

    def json(self, value: object, name: str = "") -> Json:
        """Return *value* as JSON data, with its texts filtered by `text`; other objects become a descriptive text.

        Args:
            value: Anything.
            name: Name of the value; this name, and names within the value, may mark a secret.
        """
        if self.off:
            number = _number_or_none(value)
            return "" if number is None else number
        plain = self._reader().read(value, name)
        if not self.secrets or not (name or isinstance(plain, (dict, list))):
            return plain
        return scrubbed(plain, name, shapes=False)

    def facts(self, values: object, name: str) -> dict[str, Json]:
        """Return free facts by key; without content only the numbers among them.

        Args:
            values: A mapping, or an object with fields; anything else is one fact.
            name: Name of this one fact.
        """
        facts = {key: self.json(value, key) for key, value in self.entries(values, name).items()}
        return {key: fact for key, fact in facts.items() if fact is not None and not (self.off and fact == "")}

    def entries(self, values: object, name: str) -> dict[str, object]:
        """Return the entries of a mapping or of an object with fields; anything else is the one entry *name*.

        Keys leave also without content, so a secret in a key is redacted under every policy.
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
        """Return the messages or parts of *collection* that may still be read; the others are counted.

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
        return PlainReader(_RULES, self._nested_text, self.losses.add, self._budget)

    def _nested_text(self, text: str) -> str:
        """Return the part of a key, or of a text within data, that may leave."""
        if not self.secrets and (text.startswith("--") or may_be_secret(text)):
            self.named = True
        return self.text(text)


def _number_or_none(value: object) -> Json:
    """Return a number, which may leave without content; names and structure around numbers may not."""
    try:
        number = number_of(value)
    except any_error():  # code of the user's own object
        return None
    return None if number is None else json_number(number)


def dumps(value: Json) -> bytes:
    """Encode JSON data as UTF-8; lone surrogates become question marks."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_encodable(value))


def _encodable(value: Json) -> Json:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {str(_encodable(key)): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value
