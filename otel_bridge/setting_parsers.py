"""Defines `Setting` and the parsers of values. `settings` declares every setting with them.

A parser takes the text of a variable and raises `ValueError` with what it expected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

from otel_bridge.errors import ConfigError
from otel_bridge.text.addresses import is_loopback, without_credentials

T = TypeVar("T")
NO_NAMES: tuple[str, ...] = ()
SECRETS: tuple[str, ...] = ("secrets",)
NO_TABLE: dict[str, tuple[str, ...]] = {}
_INT64 = 1 << 63
_MAX_DIGITS = 20
"""Most digits of a number that is parsed; every number of 64 bits has fewer."""
_MAX_SECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """Describes one environment variable.

    Attributes:
        name: The variable.
        default: The value when the variable is unset or empty.
        parse: Returns the value of a text; raises `ValueError` with what was expected.
        doc: One sentence on its meaning.
        secret: Whether the value is masked wherever settings are shown.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    doc: str
    secret: bool = False

    @property
    def internal(self) -> bool:
        """Return whether otel-bridge sets the variable for its own processes."""
        return self.doc.startswith("Internal: ")

    def written(self, value: T) -> str:
        """Return *value* as the variable would have it, e.g. ``64MiB`` or ``1``; empty for no value.

        Messages and `doctor` show it, so that a person can copy it.
        """
        if value is None:
            return ""
        if isinstance(value, bool):
            return str(int(value))
        if isinstance(value, Mapping):
            table = cast("Mapping[str, tuple[str, ...]]", value)
            return ";".join(
                f"{name}={','.join(listed)}" for name, listed in table.items()
            )
        if isinstance(value, tuple):
            return ",".join(map(str, cast("tuple[object, ...]", value)))
        if self.parse is size_bytes and isinstance(value, int):
            return _with_unit(value)
        return str(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def read(self, env: Mapping[str, str] | None = None) -> T:
        """Return the value from *env* (default: this process's environment).

        An empty value counts as unset, as the OpenTelemetry specification demands. A secret, or the
        password of an address, is never repeated in the message.

        Raises:
            ConfigError: The text cannot be parsed.
        """
        raw = (os.environ if env is None else env).get(self.name, "")
        if not raw.strip():
            return self.default
        try:
            return self.parse(raw.strip())
        except ValueError as exc:
            addresses = map(without_credentials, raw.split(","))
            shown_value = "…" if self.secret else repr(",".join(addresses))
            usual = self.written(self.default)
            default = f"to use the default, {usual}" if usual else "for none"
            message = f"{self.name}={shown_value}: {exc}; unset it {default}"
            raise ConfigError(message) from (None if self.secret else exc)


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, for code that must decide on one snapshot."""
    return dict(os.environ)


def text(raw: str) -> str:
    """Return the text unchanged."""
    return raw


def webhook_address(raw: str) -> str:
    """Parse an https address; http only for this machine. The address is a secret, so that no message repeats it.

    Raises `ValueError` for any other text.
    """
    parts = http_parts(raw)
    if parts is None:
        raise ValueError(
            "expected an address such as https://hooks.slack.com/services/…"
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError(
            "expected https, because others could read the address on its way; http is for this machine only"
        )
    return raw


_MAX_ENGINES = 64
MAX_FEATURED = 12
"""Most keys that are featured: more than a person watches are of no use, and each is stored with each row."""
_METRICS_PATH = "/metrics"


def engine_addresses(raw: str) -> tuple[str, ...]:
    """Parse addresses of metrics, each of another host and port; without a path they get ``/metrics``.

    Raises `ValueError` for another address, one with a password, two of one engine, or too many.

    The row of an engine is named by host and port, so that two addresses of one would be mixed.
    """
    addresses: dict[str, str] = {}
    for name in names(raw):
        parts = http_parts(name)
        if parts is None:
            raise ValueError(
                f"expected addresses such as http://10.0.0.1:8000/metrics, got {without_credentials(name)!r}"
            )
        if parts.username is not None:
            raise ValueError(
                "expected addresses without user and password, since they are stored with the run"
            )
        engine = engine_of_address(name)
        if engine in addresses:
            raise ValueError(f"expected one address of {engine}, got several")
        addresses[engine] = (
            name
            if parts.path not in {"", "/"}
            else f"{parts.scheme}://{parts.netloc}{_METRICS_PATH}"
        )
    if len(addresses) > _MAX_ENGINES:
        raise ValueError(
            f"expected at most {_MAX_ENGINES} addresses; for more use collector/otelcol/engines.yaml"
        )
    return tuple(addresses.values())


def engine_of_address(address: str) -> str:
    """Return host and port of an address, as Prometheus names an instance.

    Raises `ValueError` for a wrong port.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_parts(raw: str) -> SplitResult | None:
    """Return the parts of an address of http or https, ``None`` when nothing could be reached at it.

    A space or line break is refused here: clients drop or escape it, each in its own way.
    """
    try:
        parts = urlsplit(raw)
        is_valid = parts.scheme in {"http", "https"} and parts.port != 0
    except ValueError:  # a port that is not a number, or brackets without an address
        return None
    if is_valid and parts.hostname and raw.isprintable() and " " not in raw:
        return parts
    return None


def host_and_port(
    option: str, address: str, *, expected: str, highest: int = 65535
) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, which *option* has as its value; port 0 means any free port.

    Raises:
        ConfigError: It is not one, or the port is above *highest*; the message has what is
            *expected*. Without a host it is refused too: it could mean this machine or all
            networks.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > highest:
        raise ConfigError(f"{option}={address!r}: expected HOST:PORT, {expected}")
    return host.strip("[]"), int(port)


def flag(raw: str) -> bool:
    """Parse a Boolean."""
    value = raw.lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected 1 or 0")


def integer(raw: str) -> int:
    """Parse an integer."""
    try:
        value = int(raw)
    except ValueError:
        raise ValueError("expected an integer") from None
    if not -_INT64 <= value < _INT64:
        raise ValueError("expected an integer of 64 bits")
    return value


def absolute_path(name: str, value: str, cwd: Path) -> Path:
    """Return the path that the variable *name* has as its *value*: below *cwd*, with ``~`` as a home folder.

    Raises:
        ConfigError: The home of a ``~`` is not known, or *value* is not a path.
    """
    # An argument may hold one, a variable cannot.
    if "\0" in value:
        raise ConfigError(f"{name}={value!r}: expected a path without a zero byte")
    try:
        expanded = Path(value).expanduser()
    except RuntimeError as exc:
        raise ConfigError(
            f"{name}={value!r}: the home of that user is not known; set it to an absolute path"
        ) from exc
    return Path(os.path.abspath(cwd / expanded))


def positive_int(raw: str) -> int:
    """Parse an integer above zero."""
    value = integer(raw)
    if value <= 0:
        raise ValueError("expected an integer above 0")
    return value


def non_negative_int(raw: str) -> int:
    """Parse an integer of zero or more."""
    value = integer(raw)
    if value < 0:
        raise ValueError("expected an integer of 0 or more")
    return value


def int_or_off(raw: str) -> int:
    """Parse an integer; one below zero is off, as zero is."""
    return max(integer(raw), 0)


def seconds(raw: str) -> float:
    """Parse a number of seconds, from 0 to 31 years, which every clock and timeout of Python accepts."""
    try:
        value = float(raw)
    except ValueError:
        raise ValueError("expected a number of seconds") from None
    if not 0 <= value <= _MAX_SECONDS:
        raise ValueError(f"expected a number of seconds from 0 to {_MAX_SECONDS}")
    return value


def positive_seconds(raw: str) -> float:
    """Parse a number of seconds above zero."""
    value = seconds(raw)
    if not value:
        raise ValueError("expected a number of seconds above 0")
    return value


_UNITS = {"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30}
"""Unit of a size to its power of two."""


def size_bytes(raw: str) -> int:
    """Parse a number of bytes, with or without a unit (``64MiB``, ``2g``).

    Units are powers of 1,024. Raises `ValueError` for any other text.
    """
    value = raw.lower().replace(" ", "")
    digits = value.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = value[len(digits) :]
    if not digits.isdecimal() or len(digits) > _MAX_DIGITS or unit not in _UNITS:
        raise ValueError("expected a number of bytes above 0, e.g. 67108864 or 64MiB")
    size = int(digits) << _UNITS[unit]
    if not 0 < size < _INT64:
        raise ValueError(
            "expected a number of bytes above 0 and below 8 EiB, e.g. 67108864 or 64MiB"
        )
    return size


def _with_unit(size: int) -> str:
    """Return *size* as a text, in a unit that divides it: nothing is rounded."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def names(raw: str) -> tuple[str, ...]:
    """Parse a list of names separated by commas; duplicates are dropped and the order is kept."""
    parts = [part.strip() for part in raw.split(",")]
    return tuple(dict.fromkeys(filter(None, parts)))


def tokens(raw: str) -> tuple[str, ...]:
    """Parse a list of tokens, each of which a header can hold."""
    if not (raw.isascii() and raw.isprintable()):
        raise ValueError("expected printable ASCII")
    return names(raw)


def featured_keys(raw: str) -> tuple[str, ...]:
    """Parse keys of rows, with or without their beginning."""
    keys = names(raw)
    if len(keys) > MAX_FEATURED:
        raise ValueError(f"expected at most {MAX_FEATURED} keys, got {len(keys)}")
    return keys


def table_of_names(raw: str) -> dict[str, tuple[str, ...]]:
    """Parse lists of names by key (``metrics=mlflow,otlp;traces=trackio``)."""
    table: dict[str, tuple[str, ...]] = {}
    for part in filter(str.strip, raw.split(";")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError("expected key=name,name;key=name")
        table[key.strip()] = names(value)
    return table


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of *choices*."""

    def parse(raw: str) -> str:
        if raw.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return raw.lower()

    return parse


def message_content(raw: str) -> str:
    """Parse the content policy: ``full``, ``off`` or ``truncate:N``."""
    value = raw.lower()
    kind, _, count = value.partition(":")
    if value in {"full", "off"} or (kind == "truncate" and _is_count(count)):
        return value
    raise ValueError(
        "expected full, off or truncate:N with N characters per message part"
    )


def _is_count(raw: str) -> bool:
    """Return whether *raw* is a number above 0.

    Few digits only: ``int()`` raises for thousands of them.
    """
    return raw.isdecimal() and len(raw) <= _MAX_DIGITS and int(raw) > 0


def no_content_policy(raw: str) -> str:
    """Parse the content policy of ``otlp``, which can only be ``full``."""
    if raw.lower() != "full":
        raise ValueError(
            "expected full: otlp forwards segments unchanged; set OTEL_BRIDGE_MESSAGE_CONTENT instead"
        )
    return "full"


_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
REDACTIONS = ("secrets", "email")


def redactions(raw: str) -> tuple[str, ...]:
    """Parse what is redacted from message text: ``secrets``, ``email``, both, or ``none``; and ``module:function``.

    The result holds the kinds, then the function. If only a function is named, the kinds are the
    default.

    Raises `ValueError` for an unknown kind, two functions, or ``none`` beside a kind.
    """
    functions: list[str] = []
    kinds: list[str] = []
    for name in names(raw):
        if ":" in name:
            functions.append(name)
        else:
            kinds.append(name.lower())
    if functions and not kinds:
        kinds.extend(SECRETS)
    if kinds == ["none"]:
        return tuple(functions)
    unknown = set(kinds) - set(REDACTIONS)
    if (
        not kinds
        or unknown
        or len(functions) > 1
        or not all(map(_FUNCTION.fullmatch, functions))
    ):
        raise ValueError(
            f"expected none, or some of {', '.join(REDACTIONS)}, and at most one module:function"
        )
    return (*kinds, *functions)


def capture_content(raw: str) -> bool:
    """Parse the GenAI instrumentations' switch.

    Return ``False`` for ``no_content`` and for a Boolean that is off.
    """
    if raw.lower() in {"no_content", "span_only", "event_only", "span_and_event"}:
        return raw.lower() != "no_content"
    return flag(raw)


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return *parse* as a parser of a setting whose default is ``None``.

    Only its type differs: an unset variable is not parsed.
    """
    return parse
