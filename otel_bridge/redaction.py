"""Secrets: recognised by the name of their key and by their shape, struck out.

Used where a process emits, before its segment, and at translation for producers that do not know us. Shapes are those
of the issuers' own documentation (Hugging Face, OpenAI, GitHub, GitLab, AWS, Google, Slack, Databricks, NVIDIA, W&B,
JWT, PEM). E-mail addresses, where they are asked for. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from otel_bridge.records import Json

STRUCK_OUT: Final = "[redacted]"

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_SECRET_WORDS: Final = frozenset({
    "apikey", "apikeys", "authorization", "cookie", "credential", "credentials", "jwt", "passphrase", "passwd",
    "password", "passwords", "pwd", "secret", "secrets",
})
_KEY_OWNERS: Final = frozenset({
    "access", "account", "api", "auth", "encryption", "private", "secret", "signing", "ssh",
})
_TOKEN_OWNERS: Final = frozenset({
    "access", "api", "auth", "bearer", "bot", "databricks", "github", "gitlab", "hf", "hub", "id", "mlflow", "oauth",
    "personal", "refresh", "security", "session", "slack", "tracking", "user", "wandb", "write",
})
# fmt: on
# `pad_token`, `max_tokens` and `tokenizer` are no secrets; a bare `token` is one when it looks like one.
_OPAQUE: Final = re.compile(r"(?=[^\s<>|]*[0-9])(?=[^\s<>|]*[A-Za-z])[A-Za-z0-9_\-.=+/:]{16,}")
_SHAPES: Final = re.compile(
    r"""
    \bhf_[A-Za-z0-9]{20,} | \bapi_org_[A-Za-z0-9]{20,} | \bsk-[A-Za-z0-9_-]{16,} | \bgh[pousr]_[A-Za-z0-9]{20,}
    | \bgithub_pat_[A-Za-z0-9_]{20,} | \bglpat-[A-Za-z0-9_-]{16,} | \bxox[abeoprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[0-9A-Za-z_-]{30,} | \bya29\.[0-9A-Za-z_-]{20,} | \bdapi[0-9a-f]{32}
    | \bnvapi-[A-Za-z0-9_-]{20,} | \bwandb_v[0-9]+_[A-Za-z0-9_]{20,}
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_EMAIL: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+")
_IN_URL: Final = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9_\-.=+/]{12,}")
_ASSIGNED: Final = re.compile(
    r"(?i)(\b[a-z_]{0,40}(?:api[_-]?key|token|password|passwd|secret|credential)s?[\"']?\s*[=:]\s*[\"']?)([^\s&\"',;]{6,})"
)


def secret_by_name(key: str, value: object) -> bool:
    """Tell whether the key's name says that *value* is a secret; numbers and booleans never are."""
    if not isinstance(value, str) or not value:
        return False
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words:
        return False
    if _SECRET_WORDS.intersection(words):
        return True
    owner, last = words[-2] if len(words) > 1 else "", words[-1]
    if last in {"key", "keys"}:
        return owner in _KEY_OWNERS or _looks_opaque(value)
    if last in {"token", "tokens"}:
        return (owner in _TOKEN_OWNERS and not _MARKUP.search(value)) or _looks_opaque(value)
    return bool(owner) and last == "pass"


def scrubbed(value: Json, key: str = "", *, shapes: bool = True) -> Json:
    """Return plain *value*, known as *key*, without what is secret in it.

    A name holds for every text of a list or map below it too, and a flag in a list of arguments (``--api-key``) for the
    one behind it.

    Args:
        value: What JSON can hold.
        key: Its name.
        shapes: Look at the texts too; they were looked at before otherwise.
    """
    if isinstance(value, str):
        return STRUCK_OUT if secret_by_name(key, value) else strike_out(value) if shapes else value
    if isinstance(value, list):
        names = _names_of(value, key)
        return [scrubbed(item, name, shapes=shapes) for item, name in zip(value, names, strict=True)]
    if isinstance(value, dict):
        if value and secret_by_name(key, _ANY):
            return {name: _all_struck(item) for name, item in value.items()}
        return {
            strike_out(name) if shapes else name: scrubbed(item, name, shapes=shapes) for name, item in value.items()
        }
    return value


def _names_of(items: Sequence[object], key: str) -> Iterator[str]:
    """Yield the name of each entry of a list: the list's own *key*, behind a ``--flag`` that flag's."""
    name = key
    for item in items:
        yield name
        name = item.lstrip("-") if isinstance(item, str) and item.startswith("--") and "=" not in item else key


def _all_struck(value: Json) -> Json:
    if isinstance(value, list):
        return [_all_struck(item) for item in value]
    if isinstance(value, dict):
        return {name: _all_struck(item) for name, item in value.items()}
    return STRUCK_OUT if isinstance(value, str) and value else value


def strike_emails(value: str) -> str:
    """Return *value* with every e-mail address in it struck out."""
    return _EMAIL.sub(STRUCK_OUT, value) if "@" in value else value


@dataclass(frozen=True, slots=True)
class Redaction:
    """What is struck out.

    Attributes:
        secrets: What is a secret by its name or its shape.
        email: E-mail addresses.
    """

    secrets: bool = True
    email: bool = False

    def text(self, text: str) -> str:
        """Return *text* without them."""
        struck = strike_out(text) if self.secrets else text
        return strike_emails(struck) if self.email else struck

    def value(self, value: Json, key: str = "") -> Json:
        """Return plain *value*, known as *key*, without them."""
        struck = scrubbed(value, key) if self.secrets else value
        return _without_emails(struck) if self.email else struck


SECRETS_ONLY: Final = Redaction()


def _without_emails(value: Json) -> Json:
    if isinstance(value, str):
        return strike_emails(value)
    if isinstance(value, list):
        return [_without_emails(item) for item in value]
    if isinstance(value, dict):
        return {strike_emails(name): _without_emails(item) for name, item in value.items()}
    return value


_ANY: Final = "x"
_MARKUP: Final = re.compile(r"[<>|\[\]]")
"""In a chat template's `user_token`, never in a credential."""


def strike_out(value: str) -> str:
    """Return *value* with every part that has the shape of a secret struck out."""
    if len(value) < 8:
        return value
    value = _SHAPES.sub(STRUCK_OUT, value)
    value = _IN_URL.sub(STRUCK_OUT, value)
    value = _BEARER.sub(rf"\1 {STRUCK_OUT}", value)
    return _ASSIGNED.sub(_struck_assignment, value)


def _struck_assignment(found: re.Match[str]) -> str:
    # `max_tokens=512` is no secret.
    return found[0] if found[2].isdigit() else f"{found[1]}{STRUCK_OUT}"


def _looks_opaque(value: str) -> bool:
    return _OPAQUE.fullmatch(value) is not None
