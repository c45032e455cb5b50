"""Declares every setting of otel-bridge: its variable, default, parser and meaning.

``otel-bridge doctor`` prints this table. An exporter declares its own in its ``settings.py`` with
`Setting`, as ``OTEL_BRIDGE_<EXPORTER>_<SETTING>``. `otel_bridge.emit.config.identity` reads what
launchers set, such as ``RANK``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from otel_bridge.alert_rules import NO_RULES, alert_rules
from otel_bridge.setting_parsers import (
    NO_NAMES,
    NO_TABLE,
    SECRETS,
    Setting,
    capture_content,
    engine_addresses,
    environment,
    featured_keys,
    flag,
    int_or_off,
    message_content,
    names,
    no_content_policy,
    non_negative_int,
    one_of,
    optional,
    positive_int,
    positive_seconds,
    redactions,
    seconds,
    size_bytes,
    table_of_names,
    text,
    tokens,
    webhook_address,
)

__all__ = [
    "Setting",
    "environment",
    "flag",
    "names",
    "non_negative_int",
    "one_of",
    "positive_int",
    "positive_seconds",
    "seconds",
    "size_bytes",
    "text",
]

# --- which run --------------------------------------------------------------------------------------------------------
PROJECT = Setting(
    "OTEL_BRIDGE_PROJECT", "", text, "Project of the run (MLflow: experiment)."
)
RUN_NAME = Setting(
    "OTEL_BRIDGE_RUN_NAME",
    "",
    text,
    "Name of the run; processes with the same name join the same run.",
)
RUN_ID = Setting(
    "OTEL_BRIDGE_RUN_ID",
    "",
    text,
    "Id of the run; default: 16 hex digits derived from project and name.",
)
ROLE = Setting(
    "OTEL_BRIDGE_ROLE", "", text, "Role of this process: trainer, explorer, …"
)
GENERATED_PROJECT = Setting(
    "OTEL_BRIDGE_GENERATED_PROJECT",
    "",
    text,
    "Internal: set by init() and `run` for their children when the project was generated.",
)
GENERATED_NAME = Setting(
    "OTEL_BRIDGE_GENERATED_NAME",
    "",
    text,
    "Internal: set by init() and `run` for their children when the name was generated.",
)
NEW_RUN = Setting(
    "OTEL_BRIDGE_NEW_RUN",
    False,
    flag,
    "Start a new run even if one of this name exists.",
)
NODE_RANK = Setting(
    "OTEL_BRIDGE_NODE_RANK",
    None,
    optional(non_negative_int),
    "Number of this machine in the job.",
)
ATTEMPT = Setting(
    "OTEL_BRIDGE_ATTEMPT",
    None,
    optional(positive_int),
    "Number of this attempt of the job, from 1.",
)
OWNER_ROLE = Setting(
    "OTEL_BRIDGE_OWNER_ROLE",
    "trainer",
    text,
    "Role whose end determines the run's status.",
)

# --- which exporters --------------------------------------------------------------------------------------------------
EXPORTERS = Setting(
    "OTEL_BRIDGE_EXPORTERS",
    NO_NAMES,
    names,
    "Exporters of all signals, e.g. trackio,otlp; none records nothing.",
)
METRICS_EXPORTER = Setting(
    "OTEL_METRICS_EXPORTER",
    NO_NAMES,
    names,
    "Exporters of metrics; overrides OTEL_BRIDGE_EXPORTERS.",
)
TRACES_EXPORTER = Setting(
    "OTEL_TRACES_EXPORTER",
    NO_NAMES,
    names,
    "Exporters of rollouts; overrides OTEL_BRIDGE_EXPORTERS.",
)
LOGS_EXPORTER = Setting(
    "OTEL_LOGS_EXPORTER",
    NO_NAMES,
    names,
    "Exporters of log records; overrides OTEL_BRIDGE_EXPORTERS.",
)
RANKS = Setting(
    "OTEL_BRIDGE_RANKS",
    "0",
    one_of("0", "all", "merge"),
    "Record rows of rank 0 only, of all ranks, or of all ranks merged into one a step.",
)

# --- this process -----------------------------------------------------------------------------------------------------
DIR = Setting(
    "OTEL_BRIDGE_DIR",
    "",
    text,
    "Directory of run folders; default: .otel-bridge in the working directory.",
)
OFFLINE = Setting(
    "OTEL_BRIDGE_OFFLINE",
    False,
    flag,
    "Append only and start no bridge; deliver later with `otel-bridge drain`.",
)
BRIDGE_PYTHON = Setting(
    "OTEL_BRIDGE_PYTHON",
    "",
    text,
    "Python of another environment, with otel-bridge and the trackers, in which the bridge runs; default: this Python.",
)
CAPTURE = Setting(
    "OTEL_BRIDGE_CAPTURE",
    NO_NAMES,
    names,
    "Internal: set by `otel-bridge run --capture` for its children: what they capture, e.g. wandb,tensorboard.",
)
CAPTURE_MODES = ("replace", "tee")
CAPTURE_MODE = Setting(
    "OTEL_BRIDGE_CAPTURE_MODE",
    "replace",
    one_of(*CAPTURE_MODES),
    "replace: only otel-bridge gets what captured programs log; tee: their own tracker gets it too.",
)
LIGHTNING = Setting(
    "OTEL_BRIDGE_LIGHTNING",
    False,
    flag,
    "Add an otel-bridge logger to every trainer of Lightning and to Fabric.",
)
CAPTURE_COUNTS = Setting(
    "OTEL_BRIDGE_CAPTURE_COUNTS",
    "",
    text,
    "Internal: set by `otel-bridge run --capture` for its children: folder of the counts for the table at its end.",
)
QUIET = Setting(
    "OTEL_BRIDGE_QUIET", False, flag, "Do not print the lines of init() and finish()."
)
NO_BRIDGE = Setting(
    "OTEL_BRIDGE_NO_BRIDGE",
    False,
    flag,
    "Internal: set in the bridge itself, so that nothing in it emits.",
)
LAUNCHER = Setting(
    "OTEL_BRIDGE_LAUNCHER",
    "",
    text,
    "Internal: set by `otel-bridge run` for its children: its pid and start time.",
)
LAUNCHER_EXPORTERS = Setting(
    "OTEL_BRIDGE_LAUNCHER_EXPORTERS",
    NO_TABLE,
    table_of_names,
    "Internal: set by `otel-bridge run` for its children: its exporters by signal, e.g. metrics=mlflow;traces=trackio.",
)
LAUNCHER_DESTINATIONS = Setting(
    "OTEL_BRIDGE_LAUNCHER_DESTINATIONS",
    "",
    text,
    "Internal: set by `otel-bridge run` for its children: where its exporters deliver, as JSON.",
)
LAUNCHER_NEW = Setting(
    "OTEL_BRIDGE_LAUNCHER_NEW",
    "",
    text,
    "Internal: set by `otel-bridge run --new` for its children: the end of the run's name.",
)

SYSTEM_METRICS_S = Setting(
    "OTEL_BRIDGE_SYSTEM_METRICS_S",
    15.0,
    seconds,
    "Interval of the measurements of init(system_metrics=True); 0: never.",
)

SCRAPE = Setting(
    "OTEL_BRIDGE_SCRAPE",
    NO_NAMES,
    engine_addresses,
    "Prometheus endpoints of inference engines that the bridge reads, e.g. http://10.0.0.1:8000/metrics,….",
)
SCRAPE_S = Setting(
    "OTEL_BRIDGE_SCRAPE_S",
    10.0,
    positive_seconds,
    "Interval at which the bridge reads them.",
)

# --- bounds -----------------------------------------------------------------------------------------------------------
SEGMENT_BYTES = Setting(
    "OTEL_BRIDGE_SEGMENT_BYTES",
    8 << 20,
    size_bytes,
    "Size at which a segment is closed and the next one opened.",
)
MAX_BYTES = Setting(
    "OTEL_BRIDGE_MAX_BYTES",
    16 << 30,
    size_bytes,
    "Size limit of the directory of run folders; at most half of the free disk.",
)
REQUEST_BYTES = Setting(
    "OTEL_BRIDGE_REQUEST_BYTES",
    64 << 20,
    size_bytes,
    "Largest request that the receiver accepts, also after decompression.",
)
MAX_KEYS = Setting(
    "OTEL_BRIDGE_MAX_KEYS",
    100_000,
    positive_int,
    "Distinct metric keys of one run; values of further keys are dropped and counted.",
)
MAX_OPEN_TRACES = Setting(
    "OTEL_BRIDGE_MAX_OPEN_TRACES",
    20_000,
    positive_int,
    "Most traces that wait for spans at the same time.",
)
MAX_OPEN_TRACE_BYTES = Setting(
    "OTEL_BRIDGE_MAX_OPEN_TRACE_BYTES",
    1 << 30,
    size_bytes,
    "Most bytes of traces that wait for spans.",
)
TIMELINE_BYTES = Setting(
    "OTEL_BRIDGE_TIMELINE_BYTES",
    64 << 20,
    size_bytes,
    "Most bytes of a run's timeline; the newest and the slowest steps are kept longest.",
)
TOKEN_BYTES = Setting(
    "OTEL_BRIDGE_TOKEN_BYTES",
    64 << 20,
    size_bytes,
    "Most bytes of token streams that a run keeps, to join engine and trainer and for token views.",
)
ROLLOUT_BYTES = Setting(
    "OTEL_BRIDGE_ROLLOUT_BYTES",
    4 << 20,
    size_bytes,
    "Largest rollout; longer content is truncated and marked.",
)
MEDIA_BYTES = Setting(
    "OTEL_BRIDGE_MEDIA_BYTES",
    32 << 20,
    size_bytes,
    "Most bytes of encoded media that one call may log under one key.",
)
MAX_MEDIA_PER_STEP = Setting(
    "OTEL_BRIDGE_MAX_MEDIA_PER_STEP",
    100,
    non_negative_int,
    "Media items recorded per key and step of a process; 0: no media.",
)
FILE_BYTES = Setting(
    "OTEL_BRIDGE_FILE_BYTES",
    1 << 30,
    size_bytes,
    "Size limit of the file exporter's folder; the oldest file is deleted first.",
)

FEATURED = Setting(
    "OTEL_BRIDGE_FEATURED",
    NO_NAMES,
    featured_keys,
    "At most 12 keys that trackers show in a first section too, e.g. reward/mean, time/step; "
    "read in the bridge's environment.",
)

# --- alerts -----------------------------------------------------------------------------------------------------------
ALERTS = Setting(
    "OTEL_BRIDGE_ALERTS",
    NO_RULES,
    alert_rules,
    "Rules that raise alerts, e.g. nan, stalled:10m, trainer/kl>0.2; read in the bridge's environment.",
)
ALERT_WEBHOOK = Setting(
    "OTEL_BRIDGE_ALERT_WEBHOOK",
    "",
    webhook_address,
    "URL that each alert is posted to in Slack's format; read in the bridge's environment.",
    secret=True,
)

# --- rollouts ---------------------------------------------------------------------------------------------------------
MAX_ROLLOUTS_PER_STEP = Setting(
    "OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP",
    16,
    int_or_off,
    "Rollouts kept per role and step; 0 or less: none.",
)
MAX_ROLLOUTS_PER_STEP_EVAL = Setting(
    "OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP_EVAL",
    None,
    optional(int_or_off),
    "Rollouts kept per role and step for split eval; default: OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP.",
)
ROLLOUT_SELECTION = Setting(
    "OTEL_BRIDGE_ROLLOUT_SELECTION",
    "stratified",
    one_of("stratified", "first"),
    "How a step's rollouts are sampled: stratified (best, worst, failures, a fixed rest) or first (in order of "
    "arrival).",
)
ROLLOUT_KEY = Setting(
    "OTEL_BRIDGE_ROLLOUT_KEY",
    "rollouts",
    text,
    "Key of the traces in trackers; {split} is replaced.",
)
MESSAGE_CONTENT = Setting(
    "OTEL_BRIDGE_MESSAGE_CONTENT",
    "full",
    message_content,
    "Message text: full, truncate:N or off.",
)
REDACT = Setting(
    "OTEL_BRIDGE_REDACT",
    SECRETS,
    redactions,
    "What is redacted from message text: secrets (keys, tokens), email, both, or none; and your own module:function.",
)
CAPTURE_MESSAGE_CONTENT = Setting(
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
    True,
    capture_content,
    "The switch of GenAI instrumentations; no_content means off when OTEL_BRIDGE_MESSAGE_CONTENT is unset.",
)

CUMULATIVE_HISTOGRAMS = Setting(
    "OTEL_BRIDGE_CUMULATIVE_HISTOGRAMS",
    False,
    flag,
    "Show cumulative histograms of third-party producers as sent, instead of the increase since the last point.",
)

# --- waiting ----------------------------------------------------------------------------------------------------------
POLL_S = Setting(
    "OTEL_BRIDGE_POLL_S",
    0.05,
    positive_seconds,
    "Interval at which the bridge reads new data from the segments.",
)
ROW_WAIT_S = Setting(
    "OTEL_BRIDGE_ROW_WAIT_S",
    10.0,
    seconds,
    "How long a row waits for its missing fragments.",
)
END_OF_STREAM_WAIT_S = Setting(
    "OTEL_BRIDGE_END_OF_STREAM_WAIT_S",
    150.0,
    seconds,
    "How long the end of a forwarded process waits for rows that were sent before it and have not arrived.",
)
TRACE_GRACE_S = Setting(
    "OTEL_BRIDGE_TRACE_GRACE_S",
    2.0,
    seconds,
    "How long a rollout waits for spans after its root ended.",
)
TRACE_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_TRACE_TIMEOUT_S",
    600.0,
    seconds,
    "How long a rollout waits for its root before it is stored as incomplete.",
)
STEP_WATERMARK_S = Setting(
    "OTEL_BRIDGE_STEP_WATERMARK_S",
    30.0,
    seconds,
    "How long a step that every worker has reached waits for more rollouts.",
)
STEP_STARTUP_S = Setting(
    "OTEL_BRIDGE_STEP_STARTUP_S",
    5.0,
    seconds,
    "How long steps of a role stay open for workers that start a little later than the role's newest process.",
)
STEP_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_STEP_TIMEOUT_S",
    1800.0,
    seconds,
    "How long a step waits for a lagging worker that sends no rollouts; also the longest wait of any step.",
)
LIVENESS_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_LIVENESS_TIMEOUT_S",
    600.0,
    seconds,
    "Time without data after which a remote process is considered ended.",
)
END_GRACE_S = Setting(
    "OTEL_BRIDGE_END_GRACE_S",
    30.0,
    seconds,
    "How long a run stays open after its last process was killed.",
)
RETRY_AFTER_EXIT_S = Setting(
    "OTEL_BRIDGE_RETRY_AFTER_EXIT_S",
    60.0,
    seconds,
    "How long a bridge retries a failing tracker after its last process has exited (`drain`: default 20).",
)
DRAIN_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_DRAIN_TIMEOUT_S",
    None,
    optional(seconds),
    "How long `run` delivers after its command exits (default 300), and `serve` after a signal (default 30).",
)

# --- service ----------------------------------------------------------------------------------------------------------
TOKEN = Setting(
    "OTEL_BRIDGE_TOKEN",
    NO_NAMES,
    tokens,
    "Bearer tokens of the receiver; otel-bridge's clients send the first one.",
    secret=True,
)
FSYNC = Setting(
    "OTEL_BRIDGE_FSYNC",
    True,
    flag,
    "Whether the receiver syncs to disk before it acknowledges.",
)
MAX_REQUESTS = Setting(
    "OTEL_BRIDGE_MAX_REQUESTS",
    256,
    positive_int,
    "Most requests that the receiver handles at the same time.",
)
MAX_RATE = Setting(
    "OTEL_BRIDGE_MAX_RATE",
    None,
    optional(size_bytes),
    "Most bytes per second that the receiver accepts; default: no limit.",
)
MAX_RUNS = Setting(
    "OTEL_BRIDGE_MAX_RUNS",
    100_000,
    positive_int,
    "Most run folders that the receiver creates; data of further runs is rejected for good and counted.",
)
MAX_OPEN_RUNS = Setting(
    "OTEL_BRIDGE_MAX_OPEN_RUNS",
    None,
    optional(positive_int),
    "Most active runs of a bridge at the same time; others wait. Default: what the limit of open files allows.",
)
STALL_S = Setting(
    "OTEL_BRIDGE_STALL_S",
    30.0,
    positive_seconds,
    "How long the thread that reads run folders may make no progress before /readyz answers 503.",
)
TLS_CERT = Setting(
    "OTEL_BRIDGE_TLS_CERT",
    "",
    text,
    "File with the receiver's certificate and its chain (PEM).",
)
TLS_KEY = Setting(
    "OTEL_BRIDGE_TLS_KEY", "", text, "File with the key of that certificate (PEM)."
)
TLS_CLIENT_CA = Setting(
    "OTEL_BRIDGE_TLS_CLIENT_CA",
    "",
    text,
    "File with the CA certificates (PEM) that must have signed a client's certificate (mTLS).",
)


def content_of(exporter: str) -> Setting[str]:
    """Return the content setting of *exporter*, which can only reduce the message text that the run has."""
    name = f"OTEL_BRIDGE_{''.join(char if char.isalnum() else '_' for char in exporter.upper())}_MESSAGE_CONTENT"
    if exporter == "otlp":
        return Setting(
            name,
            "full",
            no_content_policy,
            "Only full is possible: otlp forwards unchanged what the processes wrote.",
        )
    doc = f"Message text for {exporter}: full, truncate:N or off; never more than the run has."
    return Setting(name, "full", message_content, doc)


def truncate_for_some(env: Mapping[str, str]) -> bool:
    """Return whether *env* reduces the message text of the run or of any exporter.

    The texts of exporters are not parsed: one that is not valid counts as a limit here, and their
    own settings raise for it. Raises as `content_mode`.
    """
    if content_mode(env) != "full":
        return True
    for name, value in env.items():
        is_limit = name.startswith("OTEL_BRIDGE_") and name.endswith(_CONTENT_END)
        if is_limit and value.strip() not in {"", "full"}:
            return True
    return False


_CONTENT_END = "_MESSAGE_CONTENT"


def content_mode(env: Mapping[str, str]) -> str:
    """Return the content policy of *env*: `MESSAGE_CONTENT` if set, else off when the GenAI switch is off.

    Raises:
        ConfigError: The setting that decides cannot be read. The switch is not read where
            `MESSAGE_CONTENT` is set.
    """
    if not env.get(
        MESSAGE_CONTENT.name, ""
    ).strip() and not CAPTURE_MESSAGE_CONTENT.read(env):
        return "off"
    return MESSAGE_CONTENT.read(env)


def declared() -> tuple[Setting[object], ...]:
    """Return every setting of this module, in the order declared."""
    settings: list[Setting[object]] = []
    for value in globals().values():
        if isinstance(value, Setting):
            settings.append(cast("Setting[object]", value))
    return tuple(settings)
