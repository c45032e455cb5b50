"""Every setting: its variable, default, parser and meaning. The one module that reads ``os.environ``.

``otel-bridge doctor`` prints this table. A third-party exporter declares its own with `Setting` as
``OTEL_BRIDGE_<EXPORTER>_<SETTING>``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from otel_bridge.errors import ConfigError

T = TypeVar("T")
_NO_NAMES: tuple[str, ...] = ()
_SECRETS: tuple[str, ...] = ("secrets",)
_NO_TABLE: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One environment variable.

    Attributes:
        name: The variable.
        default: The value when it is unset or empty.
        parse: From its text to the value; raises `ValueError` with what was expected.
        doc: One sentence on its meaning.
        secret: Shown masked wherever settings are shown.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    doc: str
    secret: bool = False

    def read(self, env: Mapping[str, str] | None = None) -> T:
        """Return the value from *env* (default: this process's environment).

        Raises:
            ConfigError: The text cannot be parsed.
        """
        raw = (os.environ if env is None else env).get(self.name, "")
        if not raw.strip():
            return self.default
        try:
            return self.parse(raw.strip())
        except ValueError as exc:
            seen = "…" if self.secret else repr(raw)
            raise ConfigError(f"{self.name}={seen}: {exc}; unset it to use the default, {self.default!r}") from exc


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, for code that must decide on one snapshot."""
    return dict(os.environ)


def text(raw: str) -> str:
    """Take the text as it is."""
    return raw


def flag(raw: str) -> bool:
    """Parse a yes or no."""
    value = raw.lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected 1 or 0")


def integer(raw: str) -> int:
    """Parse an integer."""
    try:
        return int(raw)
    except ValueError:
        raise ValueError("expected an integer") from None


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


def seconds(raw: str) -> float:
    """Parse a number of seconds, zero or more."""
    try:
        value = float(raw)
    except ValueError:
        raise ValueError("expected a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise ValueError("expected a number of seconds, 0 or more")
    return value


_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}


def size_bytes(raw: str) -> int:
    """Parse a number of bytes, with or without a unit (``64MiB``, ``2g``)."""
    value = raw.lower().replace(" ", "")
    digits = value.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = value[len(digits) :]
    if not digits.isdigit() or unit not in _UNITS or int(digits) == 0:
        raise ValueError("expected a number of bytes above 0, e.g. 67108864 or 64MiB")
    return int(digits) * _UNITS[unit]


def names(raw: str) -> tuple[str, ...]:
    """Parse a list of names parted by commas; doubles are dropped, order kept."""
    return tuple(dict.fromkeys(part.strip() for part in raw.split(",") if part.strip()))


def table_of_names(raw: str) -> dict[str, tuple[str, ...]]:
    """Parse lists of names by key (``metrics=mlflow,otlp;traces=trackio``)."""
    parts = [part.partition("=") for part in raw.split(";") if part.strip()]
    if any(not equals for _, equals, _ in parts):
        raise ValueError("expected key=name,name;key=name")
    return {key.strip(): names(value) for key, _, value in parts}


def one_of(*choices: str) -> Callable[[str], str]:
    """Make a parser that takes one of *choices*."""

    def parse(raw: str) -> str:
        if raw.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return raw.lower()

    return parse


def message_content(raw: str) -> str:
    """Parse the content policy: ``full``, ``off`` or ``truncate:N``."""
    value = raw.lower()
    kind, _, count = value.partition(":")
    if value in {"full", "off"} or (kind == "truncate" and count.isdigit() and int(count) > 0):
        return value
    raise ValueError("expected full, off or truncate:N with N characters a message part")


def no_content_policy(raw: str) -> str:
    """Parse the policy of ``otlp``, which can have none."""
    if raw.lower() != "full":
        raise ValueError("expected full: otlp forwards segments as they are; set OTEL_BRIDGE_MESSAGE_CONTENT instead")
    return "full"


_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
REDACTIONS = ("secrets", "email")


def redactions(raw: str) -> tuple[str, ...]:
    """Parse what is struck out of message text: ``secrets``, ``email``, both, or ``none``; and ``module:function``.

    Functions stand behind the kinds, as they are named; where only functions are named, the kinds are the default.
    """
    given = names(raw)
    functions = tuple(name for name in given if ":" in name)
    kinds = tuple(name.lower() for name in given if ":" not in name) or (_SECRETS if functions else ())
    if kinds == ("none",):
        return functions
    unknown = set(kinds) - set(REDACTIONS)
    if not kinds or unknown or len(functions) > 1 or not all(_FUNCTION.fullmatch(name) for name in functions):
        raise ValueError(f"expected none, or some of {', '.join(REDACTIONS)}, and at most one module:function")
    return (*kinds, *functions)


def capture_content(raw: str) -> bool:
    """Parse the GenAI instrumentations' switch: a flag or one of their modes; only ``no_content`` captures nothing."""
    if raw.lower() in {"no_content", "span_only", "event_only", "span_and_event"}:
        return raw.lower() != "no_content"
    return flag(raw)


def _optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return parse


# --- which run --------------------------------------------------------------------------------------------------------
PROJECT = Setting("OTEL_BRIDGE_PROJECT", "", text, "Project of the run (MLflow: experiment).")
RUN_NAME = Setting("OTEL_BRIDGE_RUN_NAME", "", text, "Name of the run; the same name is the same run.")
RUN_ID = Setting("OTEL_BRIDGE_RUN_ID", "", text, "Id of the run; default: 16 hex digits made of project and name.")
ROLE = Setting("OTEL_BRIDGE_ROLE", "", text, "Who speaks in this process: trainer, explorer, …")
NEW_RUN = Setting("OTEL_BRIDGE_NEW_RUN", False, flag, "Start another run although one of this name exists.")
NODE_RANK = Setting("OTEL_BRIDGE_NODE_RANK", None, _optional(non_negative_int), "Number of this machine in the job.")
ATTEMPT = Setting("OTEL_BRIDGE_ATTEMPT", None, _optional(positive_int), "Which start of the job this is, from 1.")
OWNER_ROLE = Setting("OTEL_BRIDGE_OWNER_ROLE", "trainer", text, "The role whose end decides the run's status.")

# --- which exporters --------------------------------------------------------------------------------------------------
EXPORTERS = Setting("OTEL_BRIDGE_EXPORTERS", _NO_NAMES, names, "Exporters of all signals, e.g. trackio,otlp.")
METRICS_EXPORTER = Setting(
    "OTEL_METRICS_EXPORTER", _NO_NAMES, names, "Exporters of metrics; goes before OTEL_BRIDGE_EXPORTERS."
)
TRACES_EXPORTER = Setting(
    "OTEL_TRACES_EXPORTER", _NO_NAMES, names, "Exporters of rollouts; goes before OTEL_BRIDGE_EXPORTERS."
)
LOGS_EXPORTER = Setting(
    "OTEL_LOGS_EXPORTER", _NO_NAMES, names, "Exporters of log records; goes before OTEL_BRIDGE_EXPORTERS."
)
RANKS = Setting("OTEL_BRIDGE_RANKS", "0", one_of("0", "all"), "Rows of rank 0 only, or of all ranks.")

# --- this process -----------------------------------------------------------------------------------------------------
DIR = Setting("OTEL_BRIDGE_DIR", "", text, "Where run folders are; default: .otel-bridge in the working folder.")
HOLD = Setting("OTEL_BRIDGE_HOLD", False, flag, "Append only and start no bridge; `otel-bridge drain` delivers later.")
QUIET = Setting("OTEL_BRIDGE_QUIET", False, flag, "Do not print the lines of init() and finish().")
NO_BRIDGE = Setting("OTEL_BRIDGE_NO_BRIDGE", False, flag, "Set in the bridge itself: nothing in it emits.")
LAUNCHER = Setting(
    "OTEL_BRIDGE_LAUNCHER", "", text, "Set by `otel-bridge run` for its children: its pid and start time."
)
LAUNCHER_EXPORTERS = Setting(
    "OTEL_BRIDGE_LAUNCHER_EXPORTERS",
    _NO_TABLE,
    table_of_names,
    "Set by `otel-bridge run` for its children: its exporters by signal, e.g. metrics=mlflow;traces=trackio.",
)
LAUNCHER_NEW = Setting(
    "OTEL_BRIDGE_LAUNCHER_NEW", "", text, "Set by `otel-bridge run --new` for its children: the end of the run's name."
)

SYSTEM_METRICS_S = Setting(
    "OTEL_BRIDGE_SYSTEM_METRICS_S", 15.0, seconds, "How often init(system_metrics=True) has the machine measured."
)

# --- bounds -----------------------------------------------------------------------------------------------------------
SEGMENT_BYTES = Setting(
    "OTEL_BRIDGE_SEGMENT_BYTES", 8 << 20, size_bytes, "Size at which a segment is closed and the next opened."
)
MAX_BYTES = Setting(
    "OTEL_BRIDGE_MAX_BYTES", 16 << 30, size_bytes, "Limit of one directory; at most half of the free disk."
)
REQUEST_BYTES = Setting(
    "OTEL_BRIDGE_REQUEST_BYTES", 64 << 20, size_bytes, "Largest request the receiver takes, inflated too."
)
MAX_OPEN_TRACES = Setting(
    "OTEL_BRIDGE_MAX_OPEN_TRACES", 20_000, positive_int, "Traces that may wait for spans at one time."
)
MAX_OPEN_TRACE_BYTES = Setting(
    "OTEL_BRIDGE_MAX_OPEN_TRACE_BYTES", 1 << 30, size_bytes, "Bytes that waiting traces may take."
)
ROLLOUT_BYTES = Setting(
    "OTEL_BRIDGE_ROLLOUT_BYTES", 4 << 20, size_bytes, "Largest rollout; longer content is clipped and marked."
)
FILE_BYTES = Setting(
    "OTEL_BRIDGE_FILE_BYTES", 1 << 30, size_bytes, "Limit of the file exporter's folder; the oldest file goes first."
)

# --- rollouts ---------------------------------------------------------------------------------------------------------
MAX_ROLLOUTS_PER_STEP = Setting(
    "OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP", 16, integer, "Rollouts kept of a role's step; 0: none."
)
MAX_ROLLOUTS_PER_STEP_EVAL = Setting(
    "OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP_EVAL", None, _optional(integer), "The same for split eval; default: as above."
)
ROLLOUT_SELECTION = Setting(
    "OTEL_BRIDGE_ROLLOUT_SELECTION", "stratified", one_of("stratified", "first"), "Which rollouts of a step are kept."
)
ROLLOUT_KEY = Setting(
    "OTEL_BRIDGE_ROLLOUT_KEY", "rollouts", text, "Key of the traces in trackers; {split} is replaced."
)
MESSAGE_CONTENT = Setting(
    "OTEL_BRIDGE_MESSAGE_CONTENT", "full", message_content, "Message text: full, truncate:N or off."
)
REDACT = Setting(
    "OTEL_BRIDGE_REDACT",
    _SECRETS,
    redactions,
    "What is struck out of message text: secrets (keys, tokens), email, both, or none; and module:function of yours.",
)
CAPTURE_MESSAGE_CONTENT = Setting(
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
    True,
    capture_content,
    "The GenAI instrumentations' own switch; no_content means off where OTEL_BRIDGE_MESSAGE_CONTENT is unset.",
)

# --- waiting ----------------------------------------------------------------------------------------------------------
POLL_S = Setting("OTEL_BRIDGE_POLL_S", 0.05, seconds, "How often the bridge looks at the segments.")
ROW_WAIT_S = Setting("OTEL_BRIDGE_ROW_WAIT_S", 10.0, seconds, "How long a row waits for its missing pieces.")
TAIL_WAIT_S = Setting(
    "OTEL_BRIDGE_TAIL_WAIT_S",
    150.0,
    seconds,
    "How long the end of a forwarded process, when no row comes, waits for those that it says were sent before it.",
)
TRACE_GRACE_S = Setting(
    "OTEL_BRIDGE_TRACE_GRACE_S", 2.0, seconds, "How long a rollout waits for spans after its root ended."
)
TRACE_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_TRACE_TIMEOUT_S", 600.0, seconds, "When a rollout whose root never came is taken as it is."
)
STEP_WAIT_S = Setting(
    "OTEL_BRIDGE_STEP_WAIT_S", 30.0, seconds, "When the rollouts of a step are chosen though no later step came."
)
SILENCE_S = Setting("OTEL_BRIDGE_SILENCE_S", 600.0, seconds, "Silence after which a remote process is taken for ended.")
END_GRACE_S = Setting(
    "OTEL_BRIDGE_END_GRACE_S", 30.0, seconds, "How long a run stays open after its last process was killed."
)
PARK_S = Setting(
    "OTEL_BRIDGE_PARK_S", 60.0, seconds, "How long a bridge without processes keeps trying a failing tracker."
)
DRAIN_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_DRAIN_TIMEOUT_S",
    None,
    _optional(seconds),
    "How long `run` delivers after its command's end (default 300), `serve` after a signal (30).",
)

# --- service ----------------------------------------------------------------------------------------------------------
TOKEN = Setting(
    "OTEL_BRIDGE_TOKEN",
    _NO_NAMES,
    names,
    "Bearer tokens of the receiver; the first is sent by our clients.",
    secret=True,
)
FSYNC = Setting("OTEL_BRIDGE_FSYNC", True, flag, "The receiver syncs to disk before it acknowledges.")
MAX_REQUESTS = Setting(
    "OTEL_BRIDGE_MAX_REQUESTS", 256, positive_int, "Requests that the receiver has under way at one time."
)
MAX_RATE = Setting(
    "OTEL_BRIDGE_MAX_RATE", None, _optional(size_bytes), "Bytes a second that the receiver takes; default: all."
)
TLS_CERT = Setting("OTEL_BRIDGE_TLS_CERT", "", text, "File of the receiver's certificate with its chain (PEM).")
TLS_KEY = Setting("OTEL_BRIDGE_TLS_KEY", "", text, "File of the key of that certificate (PEM).")
TLS_CLIENT_CA = Setting(
    "OTEL_BRIDGE_TLS_CLIENT_CA", "", text, "File of certificates that a client's own must be signed by (PEM): mTLS."
)


def content_of(exporter: str) -> Setting[str]:
    """Return the setting of how much message text *exporter* gets: less than the run's own, never more."""
    name = f"OTEL_BRIDGE_{''.join(char if char.isalnum() else '_' for char in exporter.upper())}_MESSAGE_CONTENT"
    if exporter == "otlp":
        return Setting(name, "full", no_content_policy, "Only full: otlp forwards what processes wrote as it is.")
    doc = f"Message text for {exporter}: full, truncate:N or off; never more than the run has."
    return Setting(name, "full", message_content, doc)


def content_mode(env: Mapping[str, str]) -> str:
    """Return what message text may leave: our own setting, else what the GenAI instrumentations' switch says."""
    if not env.get(MESSAGE_CONTENT.name, "").strip() and not CAPTURE_MESSAGE_CONTENT.read(env):
        return "off"
    return MESSAGE_CONTENT.read(env)


def declared() -> tuple[Setting[object], ...]:
    """Return every setting of this module, in the order declared."""
    return tuple(cast("Setting[object]", value) for value in globals().values() if isinstance(value, Setting))
