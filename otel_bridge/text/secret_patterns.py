"""Finds secrets by the name of their key and by their shape, and replaces them.

Which texts are searched is decided in `otel_bridge.content.policy`. Shapes follow the issuers'
documentation (Hugging Face, OpenAI, GitHub, GitLab, AWS, Azure, Google, Slack, Databricks, NVIDIA,
W&B, Groq, xAI, npm, PyPI, JWT, PEM). E-mail addresses are redacted on request. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

from otel_bridge.records import Json

REDACTED = "[redacted]"
_KEEP_NAME = rf"\1{REDACTED}"
"""Replacement of a name, the first group, and of the secret behind it."""
MARGIN_CHARS = 512
"""Characters after a cut that are redacted too, so that a secret at the edge is seen whole."""
_MAX_KNOWN_CHARS = 256

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_SECRET_WORDS = frozenset({
    "apikey", "apikeys", "authorization", "cookie", "credential", "credentials", "jwt", "passphrase", "passwd",
    "password", "passwords", "pwd", "secret", "secrets",
})
_KEY_OWNERS = frozenset({
    "access", "account", "api", "auth", "encryption", "private", "secret", "signing", "ssh",
})
_TOKEN_OWNERS = frozenset({
    "access", "api", "auth", "bearer", "bot", "databricks", "github", "gitlab", "hf", "hub", "id", "mlflow", "oauth",
    "personal", "refresh", "security", "session", "slack", "tracking", "user", "wandb", "write",
})
# fmt: on
# `pad_token`, `max_tokens` and `tokenizer` are not secrets; the value of a bare `token` is one when
# it looks opaque.
_OPAQUE = re.compile(r"(?=[^\s<>|]*[0-9])(?=[^\s<>|]*[A-Za-z])[A-Za-z0-9_\-.=+/:]{16,}")
_ALNUM = "[A-Za-z0-9]"
_WORD = "[A-Za-z0-9_-]"
_PREFIXES = {
    "_": {
        "hf_": rf"{_ALNUM}{{20,}}", "api_org_": rf"{_ALNUM}{{20,}}", "gh": rf"[oprsu]_{_ALNUM}{{20,}}",
        "github_pat_": "[A-Za-z0-9_]{20,}", "gsk_": rf"{_ALNUM}{{20,}}", "npm_": rf"{_ALNUM}{{30,}}",
        "wandb_v": "[0-9]+_[A-Za-z0-9_]{20,}",
    },
    "-": {
        "sk-": rf"{_WORD}{{16,}}", "glpat-": rf"{_WORD}{{16,}}", "xox": "[abeoprs]-[A-Za-z0-9-]{10,}",
        "xai-": rf"{_ALNUM}{{20,}}", "nvapi-": rf"{_WORD}{{20,}}", "pypi-": rf"{_WORD}{{30,}}",
    },
    "A": {"AKIA": r"[0-9A-Z]{16}\b", "ASIA": r"[0-9A-Z]{16}\b", "AIza": rf"{_WORD}{{30,}}"},
    "J": {"eyJ": rf"{_WORD}{{8,}}\.{_WORD}{{8,}}\.{_WORD}*"},
    ".": {"ya29.": rf"{_WORD}{{20,}}"},
    "d": {"dapi": "[0-9a-f]{32}"},
}  # fmt: skip
"""A character to the prefixes of secrets that hold it, each with the expression of what follows it."""
# Each begins with a literal, for which `re` searches in C: 24 KB take 10 us an expression. One
# expression of alternatives takes 10 ms.
_SHAPES = {character: list[re.Pattern[str]]() for character in _PREFIXES}
for _character, _prefixes in _PREFIXES.items():
    for _prefix, _rest in _prefixes.items():
        _literal = re.escape(_prefix)
        _shape = re.compile(rf"{_literal}(?<=\b{_literal}){_rest}")
        _SHAPES[_character].append(_shape)
_SHAPES["-"].append(
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        re.DOTALL,
    )
)
_EMAIL = re.compile(
    r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+"
)
_IN_URL = re.compile(r"(://)(?:[^/\s:@]*:[^/\s@]+|[A-Za-z0-9_.~%-]{16,})(?=@)")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9_\-.=+/]{12,}")
_ASSIGNED = re.compile(
    r"(?i)((?:\b[a-z_]{0,40}(?:api[_-]?key|token|password|passwd|secret|credential)s?[\"']?\s*[=:]\s*"
    r"|--[a-z_-]{0,40}(?:api[_-]key|token|password|secret)[ ]+)[\"']?)([^\s&\"',;]{6,})"
)
"""What follows the name of a secret and ``=`` or ``:``, or an option of a command line (``--api-key``)."""

_LINKED = ("Key=", "-Signature=", "hooks.slack.com/")
_IN_LINK = re.compile(
    r"(\b(?:Account|SharedAccess)Key=|\bX-(?:Amz|Goog)-Signature=|\bhooks\.slack\.com/services/)[^\s&\"',;]{6,}"
)

# A name and its text in JSON within a text, plain or escaped like JSON within JSON; the last text
# may be cut.
_IN_JSON = re.compile(r'"([^"\\\n]{1,64})"( ?:\s*)"((?:[^"\\]|\\.)*)("|\Z)', re.DOTALL)
_IN_ESCAPED_JSON = re.compile(
    r'(\\{1,15}")([^"\\\n]{1,64})\1( ?:\s*)\1(.*?)((?<!\\)\1|\Z)', re.DOTALL
)
_NAMES = re.compile(
    rb"(?i)key|token|pass|pwd|secret|credential|cookie|jwt|authorization"
)
"""Expression that matches every name for which `may_be_secret` is true."""
_NAME_ENDS = re.compile(rb'" ?:')
_NAME_BYTES = 72


class _Name(Enum):
    """States what a key's name means for a text below it."""

    PLAIN = 0
    SECRET = 1
    SECRET_UNLESS_MARKUP = 2
    SECRET_IF_OPAQUE = 3


def secret_by_name(key: str, value: object) -> bool:
    """Return whether *value* is a secret by its key's name; numbers and booleans never are.

    ``max_tokens`` and ``pad_token`` are names of ordinary settings, so that for some names the text
    decides.
    """
    if not isinstance(value, str) or not value:
        return False
    name = _name_of(key)
    if name is _Name.PLAIN or name is _Name.SECRET:
        return name is _Name.SECRET
    return (
        name is _Name.SECRET_UNLESS_MARKUP and not _MARKUP.search(value)
    ) or _looks_opaque(value)


def may_be_secret(key: str) -> bool:
    """Return whether *key* can make a text a secret; false is certain.

    A known key costs one lookup.
    """
    return _name_of(key) is not _Name.PLAIN


def _name_of(key: str) -> _Name:
    """Return what *key* means. Long keys are not cached, so that the cache stays small."""
    if len(key) <= _MAX_KNOWN_CHARS:
        return _known_name(key)
    return _known_name.__wrapped__(key)


@lru_cache(maxsize=4096)
def _known_name(key: str) -> _Name:
    """Return what a name means, by its words; `PLAIN` for one without a word.

    ``apiKey``, ``api-key`` and ``API_KEY`` have the same two. The last word decides with the one
    before it, since ``key`` and ``token`` alone name ordinary things as well.
    """
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words:
        return _Name.PLAIN
    if _SECRET_WORDS.intersection(words):
        return _Name.SECRET
    owner = words[-2] if len(words) > 1 else ""
    last = words[-1]
    if last in {"key", "keys"}:
        return _Name.SECRET if owner in _KEY_OWNERS else _Name.SECRET_IF_OPAQUE
    if last in {"token", "tokens"}:
        return (
            _Name.SECRET_UNLESS_MARKUP
            if owner in _TOKEN_OWNERS
            else _Name.SECRET_IF_OPAQUE
        )
    if owner and last == "pass":
        return _Name.SECRET
    return _Name.PLAIN


def _unchanged(text: str, _name: str) -> str:
    return text


def scrubbed(
    value: Json,
    key: str = "",
    *,
    text: Callable[[str, str], str] = _unchanged,
    names: bool = True,
) -> Json:
    """Return plain *value*, named *key*, without its secrets.

    A name also applies to every text of a list or map below it. A flag in a list of arguments
    (``--api-key``) applies to the next argument. A copy: *value* stays as it is.

    Args:
        value: JSON data.
        key: Name of the value.
        text: Callable from a text and its name, which is ``name`` for a key, to what stays of it.
        names: Whether a name makes its text a secret.
    """
    if isinstance(value, str):
        if names and secret_by_name(key, value):
            return REDACTED
        return text(value, key)
    if isinstance(value, list):
        entry_names = names_of(value, key)
        entries: list[Json] = []
        for item, name in zip(value, entry_names, strict=True):
            entries.append(scrubbed(item, name, text=text, names=names))
        return entries
    if isinstance(value, dict):
        # A map below a secret's name ("credentials") is secret as a whole, whatever its keys are.
        if names and value and secret_by_name(key, _ANY):
            return _all_redacted(value)
        fields: dict[str, Json] = {}
        for name, item in value.items():
            field = text(name, "name")
            fields[field] = scrubbed(item, name, text=text, names=names)
        return fields
    return value


def names_of(items: Sequence[object], key: str) -> Iterator[str]:
    """Yield the name of each entry of a list: the list's own *key*, or, after a ``--flag``, the flag's name."""
    name = key
    for item in items:
        yield name
        if isinstance(item, str) and item.startswith("--") and "=" not in item:
            name = item.lstrip("-")
        else:
            name = key


def _all_redacted(value: Json) -> Json:
    """Return *value* with every text redacted.

    Names, numbers and empty texts stay, to show its form.
    """
    if isinstance(value, list):
        return list(map(_all_redacted, value))
    if isinstance(value, dict):
        return {name: _all_redacted(item) for name, item in value.items()}
    if isinstance(value, str) and value:
        return REDACTED
    return value


def redact_named(text: str) -> str:
    """Return *text* without values that are secrets by their name in JSON within the text.

    The JSON need not be whole: models write it in prose, and a log cuts it.
    """
    text = _IN_JSON.sub(_redacted_pair, text)
    if '\\"' in text:
        return _IN_ESCAPED_JSON.sub(_redacted_escaped_pair, text)
    return text


def may_name_secret(data: bytes) -> bool:
    """Return whether UTF-8 text, or JSON, can hold a secret that `redact_named` redacts.

    False is certain. It looks only at names: the whole search takes ten times as long.
    """
    # Check each name once: 24 KB of messages hold a few dozen occurrences of a handful of names.
    names: set[bytes] = set()
    for match in _NAME_ENDS.finditer(data):
        end = match.start()
        tail = data[max(end - _NAME_BYTES, 0) : end].rstrip(b"\\")
        names.add(tail[tail.rfind(b'"') + 1 :])
    return _NAMES.search(b"\n".join(names)) is not None


def _redacted_pair(match: re.Match[str]) -> str:
    """Return a pair of JSON, redacted when its name makes it a secret."""
    key, between, value, end = match.groups()
    if secret_by_name(key, value):
        return f'"{key}"{between}"{REDACTED}{end}'
    return match[0]


def _redacted_escaped_pair(match: re.Match[str]) -> str:
    """Return a pair of escaped JSON with its value redacted, or with what within the value is."""
    quote, key, between, value, end = match.groups()
    # JSON within the value is escaped once more.
    if secret_by_name(key, value):
        redacted = REDACTED
    else:
        redacted = _IN_ESCAPED_JSON.sub(_redacted_escaped_pair, value)
    return f"{quote}{key}{quote}{between}{quote}{redacted}{end}"


def redact_emails(value: str) -> str:
    """Return *value* with every e-mail address in it redacted."""
    if "@" in value:
        return _EMAIL.sub(REDACTED, value)
    return value


_ANY = "x"
_MARKUP = re.compile(r"[<>|\[\]]")
"""Characters in a chat template's `user_token`, but never in a credential."""


_IS = r"[\"']?\s?[=:]\s?[\"']?"
_ANY_WORD = r"[^\s&\"',;<>(){}\[\]\\]{4,}"
_OPAQUE_WORD = r"(?=[^\s&\"',;]*[0-9])(?=[^\s&\"',;]*[A-Za-z])[A-Za-z0-9_.=+/-]{8,}"
_LONG_WORD = "[A-Za-z0-9._~+/=-]{12,}"
_NAMES_IN_TEXT = {
    _ANY_WORD: ["assw(?:or)?d", "ASSW(?:OR)?D"],
    _LONG_WORD: ["API_KEY", "SECRET", "_TOKEN"],
    _OPAQUE_WORD: ["oken", "OKEN", "ecret", "ECRET", "pi[_-]?[kK]ey", "PI[_-]KEY"],
}
_NAMED_IN_TEXT: list[re.Pattern[str]] = []
"""A password, key or token after the end of its name in free text; each begins with a literal, as shapes do."""
for _value, _names in _NAMES_IN_TEXT.items():
    for _name in _names:
        _NAMED_IN_TEXT.append(re.compile(f"({_name}{_IS}){_value}"))
_BEARER_END = "earer "
_BEARER_IN_TEXT = re.compile(rf"({_BEARER_END}(?<=\b[Bb]earer )){_LONG_WORD}")


def redact_message(value: str) -> str:
    """Return *value*, input or output of a model, without secrets; words and links stay.

    Names count only with what looks like a secret behind them: in prose "the token: a word" is
    ordinary.
    """
    value = _without_shapes(value)
    if "=" in value or ":" in value:
        for named in (*_NAMED_IN_TEXT, _IN_URL):
            value = named.sub(_KEEP_NAME, value)
    # A search for a plain text takes a sixth of that of the expression.
    if _BEARER_END in value:
        value = _BEARER_IN_TEXT.sub(_KEEP_NAME, value)
    # The names of all keys in JSON take a tenth of the search for secrets below them.
    if '"' in value and may_name_secret(value.encode("utf-8", "replace")):
        return redact_named(value)
    return value


def _without_shapes(value: str) -> str:
    """Return *value* without what looks like a credential of a known kind."""
    for character, shapes in _SHAPES.items():
        # Its search takes a tenth of that for a prefix, and most texts have none of some
        # characters.
        if character in value:
            for shape in shapes:
                value = shape.sub(REDACTED, value)
    return value


def redact_text(value: str) -> str:
    """Return *value* with every part that has the shape of a secret redacted.

    Shorter than eight characters nothing has.
    """
    if len(value) < 8:
        return value
    # Names and ids come again with each record, and the expressions take some 10 us.
    if len(value) <= _MAX_KNOWN_CHARS:
        return _redacted_once(value)
    return _redacted_once.__wrapped__(value)


@lru_cache(maxsize=4096)
def _redacted_once(value: str) -> str:
    """Return *value* without secrets: of known kinds, in addresses and links, and behind the names of secrets."""
    value = _without_shapes(redact_named(value) if '"' in value else value)
    value = _IN_URL.sub(_KEEP_NAME, value)
    value = _BEARER.sub(rf"\1 {REDACTED}", value)
    if any(link in value for link in _LINKED):
        value = _IN_LINK.sub(_KEEP_NAME, value)
    return _ASSIGNED.sub(_redacted_assignment, value)


def redact_and_cut(value: str, limit: int) -> str:
    """Return the first *limit* characters of *value* after redaction.

    A secret at the edge is seen whole.
    """
    # Cut before as well: the text may be as long as a whole answer of a server.
    return redact_text(value[: limit + MARGIN_CHARS])[:limit]


def _redacted_assignment(match: re.Match[str]) -> str:
    # `max_tokens=512` is not a secret.
    if match[2].isdigit():
        return match[0]
    return f"{match[1]}{REDACTED}"


def _looks_opaque(value: str) -> bool:
    """Return whether all of *value* looks generated, as keys are."""
    return _OPAQUE.fullmatch(value) is not None
