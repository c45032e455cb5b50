"""Records what is said of a run as a whole, beside rows and rollouts: configs, summaries, alerts.

Nothing raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_bridge import semconv
from otel_bridge.emit.arguments import counts_unknown, role_of
from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.emit.config.named_run import NamedRun
from otel_bridge.emit.config.snapshot import RunStart
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.recording.recorder import Recorder
from otel_bridge.emit.values.scalars import key_text
from otel_bridge.errors import any_error
from otel_bridge.text.secret_patterns import redact_and_cut

# The bridge accepts as many of a run.
MAX_ALERTS = 1_000
"""Most alerts of one process in one run."""
_MAX_TITLE_CHARS = 256
_MAX_TEXT_CHARS = 10_000
_DEFAULT_LEVEL = "warn"
_LEVELS = {
    "info": "info", "debug": "info", "warn": "warn", "warning": "warn",
    "error": "error", "critical": "error", "fatal": "error",
}  # fmt: skip


class RecordedFacts(NamedRun):
    """Records the facts of a run.

    Args:
        facts: How the run was begun.
        recorder: Appends the records; ``None`` when nothing is recorded.
    """

    def __init__(self, facts: RunStart, recorder: Recorder | None) -> None:
        super().__init__(facts)
        self._recorder = recorder
        self._alerts = 0

    def count_drop(self, reason: str, n: int = 1, key: str = "") -> None:
        """Count *n* drops by *reason*, of which *key* is the first.

        Drops are printed at most once a minute.
        """
        if self._recorder is not None:
            self._recorder.count_drop(reason, n, key)

    @counts_unknown
    def log_config(self, /, config: object = None, **entries: object) -> None:
        """Record hyperparameters: a nested mapping, dataclass or namespace. Secrets are redacted.

        Keywords are entries: ``log_config(lr=1e-6)``. Only rank 0 records them.

        Args:
            config: The hyperparameters. Later calls add entries to those of earlier calls, or
                replace them.
            entries: Further entries.
        """
        if self._recorder is None or self.facts.identity.rank:
            return
        if config is None and entries:
            config = entries
        elif entries:
            self.log_config(entries)
        body = config_of(config, self.count_drop)
        if body:
            self._recorder.event(semconv.EVENT_CONFIG, {}, body)

    @counts_unknown
    def summary(
        self,
        /,
        values: Mapping[str, object] | None = None,
        *,
        role: str | None = None,
        **entries: object,
    ) -> None:
        """Record last values, which trackers show beside the curves: a best score, a total, a verdict.

        Keywords are entries: ``summary(best=0.9)``. The latest value of a key holds. Only rank 0
        records them.

        Args:
            values: Numbers, texts and bools by key; nested mappings are flattened with ``/``.
                Secrets are redacted.
            role: Another role than the run's own.
            entries: Further entries.
        """
        from otel_bridge.emit.encode.summary import summary_of  # noqa: PLC0415  # only programs that call it pay for it

        if self._recorder is None or self.facts.identity.rank:
            return
        body = {} if values is None else summary_of(values, self.count_drop)
        body |= summary_of(entries, self.count_drop) if entries else {}
        if body:
            self._recorder.event(semconv.EVENT_SUMMARY, self._role_pairs(role), body)

    @counts_unknown
    def alert(
        self,
        title: str | None = None,
        text: str | None = None,
        level: str | None = _DEFAULT_LEVEL,
        *,
        role: str | None = None,
    ) -> None:
        """Record an alert, which trackers show and send on: W&B by mail or Slack, as its settings say.

        Args:
            title: What happened, in a few words; equal titles are one alert in MLflow.
            text: Details. Secrets are redacted.
            level: ``info``, ``warn`` or ``error``, or a tracker's ``AlertLevel``. Another is
                counted, and is ``warn``.
            role: Another role than the run's own.
        """
        if self._recorder is None or self.facts.identity.rank:
            return
        alert = _alert_of(title, text, level)
        if not alert.title or self._alerts >= MAX_ALERTS:
            self.count_drop(
                "alert_limit" if alert.title else "alert_title", 1, alert.title
            )
            return
        self._alerts += 1
        level_name = _LEVELS.get(alert.level.lower())
        if level_name is None:
            self.count_drop("alert_level", 1, alert.level)
        pairs = self._role_pairs(role)
        pairs[semconv.ALERT_TITLE] = alert.title
        pairs[semconv.ALERT_LEVEL] = level_name or _DEFAULT_LEVEL
        step = self._recorder.last_step(role_of(role) or self.role)
        if step is not None:
            pairs[semconv.STEP] = step
        self._recorder.event(semconv.EVENT_ALERT, pairs, alert.text)

    def _role_pairs(self, role: object) -> dict[str, Attribute]:
        """Return the attribute of another role than the run's own; nothing for its own."""
        name = role_of(role)
        if name is None or name == self.role:
            return {}
        return {semconv.ROLE: name}


class _Alert(NamedTuple):
    title: str
    text: str
    level: str


def _alert_of(title: object, text: object, level: object) -> _Alert:
    """Return the texts of an alert.

    Empty ones if the program's own objects raise when they are read.
    """
    try:
        return _Alert(
            _alert_text(title, _MAX_TITLE_CHARS),
            _alert_text(text, _MAX_TEXT_CHARS),
            _DEFAULT_LEVEL
            if level is None
            else key_text(getattr(level, "value", level)),
        )
    except any_error():  # a user's object
        return _Alert("", "", "")


def _alert_text(value: object, limit: int) -> str:
    if value is None:
        return ""
    return redact_and_cut(key_text(value), limit)
