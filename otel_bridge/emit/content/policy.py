"""Message content -> what may leave the process: cut, redacted or left out, before the segment.

A cut falls inside a text, never inside JSON. Pure but for the hook, which is the user's.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import orjson

from otel_bridge import settings
from otel_bridge.emit.config.hyperparameters import Unreadable, entries_of, is_list_like, items_of
from otel_bridge.emit.encode.protobuf import utf8
from otel_bridge.errors import ConfigError
from otel_bridge.records import Json
from otel_bridge.text.redaction import (
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

MAX_DEPTH: Final = 32
MAX_ITEMS: Final = 10_000
_MARGIN: Final = 512
"""Characters behind a cut that are redacted too, so that a secret on the edge is seen whole."""
_log = logging.getLogger("otel_bridge")

# What every secret below begins with, each looked for where its rarest character stands: 2 to 50 us for 24 KB, where
# the expressions themselves take a millisecond.
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
    )
)
_ASSIGNED: Final = tuple(
    (anchor, re.compile(name))
    for anchor, name in (
        (b"asswd", rb"asswd[\"']?\s?[=:]"),
        (b"assword", rb"assword[\"']?\s?[=:]"),
        (b"oken", rb"oken[\"']?\s?[=:]"),
        (b"ecret", rb"ecret[\"']?\s?[=:]"),
        (b"pi", rb"pi[_-]?[kK]ey[\"']?\s?[=:]"),
        (b"ASSW", rb"ASSW(?:OR)?D[\"']?\s?[=:]"),
        (b"://", rb"://[^/\s@]{1,256}@"),
    )
)
"""What `redact_assigned` needs, behind a look for the part of it that is found fastest."""
_FEW: Final = 8
"""So many are gone through one by one, which for a rare character is faster than a search."""


def may_hold_secret(data: bytes) -> bool:
    """Return whether text as UTF-8, or JSON of it, can hold what a policy's ``secrets`` redacts; false is certain."""
    return may_have_shape(data) or may_name_secret(data)


def may_have_shape(data: bytes) -> bool:
    """As `may_hold_secret`, but for what is a secret by a name in JSON."""
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
    if b"dapi" in data or b"ya29." in data:
        return True
    if any(anchor in data and name.search(data) for anchor, name in _ASSIGNED):
        return True
    return (b"B" in data or b"b" in data) and b"earer " in data


_NAMED_SECRET: Final = re.compile(
    r"((?:\b[Bb]earer )|(?:(?:API_KEY|SECRET|PASSWORD|ACCESS_TOKEN|AUTH_TOKEN|_TOKEN)[\"']?[ ]?[=:][ ]?[\"']?))"
    r"[A-Za-z0-9._~+/=-]{12,}"
)


class _HookResult:
    """The user's own redaction, one for the process."""

    redaction: Redaction | None = None
    warned: bool = False
    count: Callable[[str, int], None] | None = None


def redact_by_setting(env: Mapping[str, str]) -> None:
    """Take the function that ``OTEL_BRIDGE_REDACT`` names, where it names one, as `redact_with` would.

    Raises:
        ConfigError: It cannot be imported, or is not a function.
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
    """Set what counts texts that the user's function fails on."""
    _HookResult.count = count


def redact_with(redaction: Redaction | None) -> None:
    """Set a function that every text of a rollout passes before it leaves the process; ``None`` takes it back.

    One that raises, or returns no text, costs that text: it is left out and counted.
    """
    _HookResult.redaction = redaction
    _HookResult.warned = False


@dataclass(frozen=True, slots=True)
class ContentPolicy:
    """What of a text may leave.

    Attributes:
        off: No text at all.
        max_chars: Longest text; ``None``: any.
        secrets: Redact what looks like a key or a token.
        email: Redact e-mail addresses.
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
        """Redact what must not leave; without *secrets* only the rest of it."""
        if secrets and self.secrets and may_hold_secret(utf8(text)):
            text = redact_named(redact_assigned(_NAMED_SECRET.sub(rf"\1{REDACTED}", redact_shapes(text))))
        if self.email:
            text = redact_emails(text)
        return text if _HookResult.redaction is None else _by_hook(_HookResult.redaction, text)


def hooked() -> bool:
    """Return whether a function of the user's sees every text: each once, so none may be encoded twice."""
    return _HookResult.redaction is not None


def _by_hook(redaction: Redaction, text: str) -> str:
    try:
        redacted: object = redaction(text)
    except Exception as exc:  # noqa: BLE001  # the user's code
        redacted = exc
    if isinstance(redacted, str):
        return redacted
    if _HookResult.count is not None:
        _HookResult.count("rollout_redaction", 1)
    if not _HookResult.warned:
        _HookResult.warned = True
        # The type alone: what it raised may hold the text.
        _log.warning("the redaction hook gave %s instead of text; such texts are left out", type(redacted).__name__)
    return REDACTED


class ContentFilter:
    """Applies a policy to the texts of one rollout and counts what was cut.

    Args:
        policy: The policy.
        max_chars: Longest text that this rollout's limit of bytes allows.

    Attributes:
        off: No text leaves.
        clipped_bytes: What was cut.
        secrets: Look for secrets in each text; switched off by who looks, with `may_have_shape`, at all at once.
        named: Then, whether something that passed may be a secret by its name.
    """

    __slots__ = ("_limit", "_policy", "clipped_bytes", "named", "off", "secrets")

    def __init__(self, policy: ContentPolicy, max_chars: int) -> None:
        self._policy = policy
        self._limit = max_chars if policy.max_chars is None else min(policy.max_chars, max_chars)
        self.off = policy.off
        self.secrets = policy.secrets
        self.named = False
        self.clipped_bytes = 0

    def text(self, text: str) -> str:
        """Return what may leave of *text*; a cut is marked in it."""
        if self.off:
            return ""
        if not self.secrets and '"' in text:
            self._look_at_names(text)
        limit = self._limit
        if len(text) <= limit:
            return self._policy.redact(text, secrets=self.secrets)
        kept = self._policy.redact(text[: limit + _MARGIN], secrets=self.secrets)[:limit]
        left = len(text) - limit
        # Characters beyond ASCII make this a lower bound; counting 100 MB exactly would cost the caller 20 ms.
        self.clipped_bytes += left
        return f"{kept}… [{left} more characters]"

    def error(self, text: str) -> str:
        """Return what may leave of an error's text, which names addresses and settings as a config does."""
        return self.text(redact_text(text) if self.secrets else text)

    def leaves(self, text: str) -> bool:
        """Return whether *text* would leave as it is."""
        if self.off or len(text) > self._limit:
            return False
        if not self.secrets:
            self._look_at_names(text)
        elif '"--' in text:
            return False
        return not (hooked() or self._policy.email) and not (self.secrets and may_hold_secret(utf8(text)))

    def _look_at_names(self, text: str) -> None:
        """Look for what `json` redacts by a name: of a key, or of a ``--flag`` in a list of arguments."""
        self.named = self.named or (self._policy.secrets and ('"--' in text or may_name_secret(utf8(text))))

    def blob(self, content: str) -> str:
        """Return base64 *content* whole, or nothing: a cut would break it."""
        if self.off or len(content) > self._limit:
            self.clipped_bytes += len(content)
            return ""
        return content

    def json(self, value: object, name: str = "") -> Json:
        """Return *value* as JSON data, its texts through `text`; what cannot be kept becomes a text saying so.

        Args:
            value: Anything.
            name: What it is known as, which may say that it is a secret, as the names within it may.
        """
        plain = self._json(value, 0)
        if not self.secrets or self.off or not (name or isinstance(plain, (dict, list))):
            return plain
        return scrubbed(plain, name, shapes=False)

    def _json(self, value: object, depth: int) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return _number(value)
        if depth >= MAX_DEPTH:
            return "… [nested too deeply]"
        try:
            return self._structure(value, depth + 1)
        except Exception:  # noqa: BLE001  # code of the user's own objects
            return f"[{type(value).__name__}]"

    def _structure(self, value: object, depth: int) -> Json:
        if isinstance(value, Mapping):
            mapping = cast("Mapping[object, object]", value)
            items = entries_of(mapping, MAX_ITEMS + 1)
            self._count_cut(len(items) if len(items) <= MAX_ITEMS else len(mapping))
            if not self.secrets:
                self.named = self.named or any(may_be_secret(str(key)) for key, _ in items)
            return {self.text(str(key)): self._json(item, depth) for key, item in items[:MAX_ITEMS]}
        if isinstance(value, Unreadable):
            return self.text(value.shown)
        if is_list_like(value):
            entries = items_of(value, len(cast("Sequence[object]", value)))
            self._count_cut(len(entries))
            if not self.secrets:
                self.named = self.named or any(isinstance(entry, str) and entry.startswith("--") for entry in entries)
            return [self._json(item, depth) for item in entries[:MAX_ITEMS]]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return "[bytes]"
        for method in ("model_dump", "tolist", "_asdict"):
            if callable(convert := getattr(value, method, None)):
                return self._json(convert(), depth)
        return self.text(str(value))

    def _count_cut(self, count: int) -> None:
        self.clipped_bytes += max(count - MAX_ITEMS, 0)


def _number(value: bool | float | None) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else str(value)
    return float(value) if math.isfinite(value) else str(float(value))


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
