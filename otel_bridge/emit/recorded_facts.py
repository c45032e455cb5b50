"""Holds the names of a run, and records its facts beside rows and rollouts: configs, summaries, alerts.

Nothing raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from otel_bridge import semconv
from otel_bridge.emit.arguments import counts_unknown, role_of
from otel_bridge.emit.config.child_env import variables_for_others
from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.emit.config.snapshot import RunStart
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.recording.recorder import Recorder
from otel_bridge.records import DEFAULT_LEVEL, level_named
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge.values.scalars import any_text

if TYPE_CHECKING:
    from typing_extensions import Self

# The bridge accepts as many of a run.
MAX_ALERTS = 1_000
"""Most alerts of one process in one run."""
_MAX_TITLE_CHARS = 256
_MAX_TEXT_CHARS = 10_000


class RecordedFacts:
    """Records the facts of a run.

    Args:
        facts: How the run was begun.
        recorder: Appends the records; ``None`` when nothing is recorded.
    """

    def __init__(self, facts: RunStart, recorder: Recorder | None) -> None:
        self.facts = facts
        self._recorder = recorder
        self._alerts = 0

    def __repr__(self) -> str:
        return f"<otel_bridge.Run {self.project}/{self.name} id={self.id} role={self.role}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the run itself, because frameworks copy the objects that hold it."""
        return self

    def __reduce__(self) -> NoReturn:
        # A pickle that joins the run would hold `env()` and so the token, which must not be in a
        # checkpoint.
        raise TypeError(
            "a run cannot be pickled; another process joins it by otel_bridge.init() with the variables of run.env()"
        )

    @property
    def id(self) -> str:
        """Return the run id, the same in every process and after a restart."""
        return self.facts.identity.id

    @property
    def name(self) -> str:
        """Return the display name."""
        return self.facts.identity.name

    @property
    def project(self) -> str:
        """Return the project (MLflow: experiment)."""
        return self.facts.identity.project

    @property
    def role(self) -> str | None:
        """Return the role of this process."""
        return self.facts.identity.role

    def env(self, role: str | None = None) -> dict[str, str]:
        """Return the environment variables that let a worker on another machine join this run.

        Pass them e.g. to Ray's ``runtime_env``. With an endpoint they contain its address and
        token: do not print them. Before ``init()`` there are none but that of *role*.

        Args:
            role: Role of the worker; ``None``: the worker names its role itself.
        """
        variables = dict(self.facts.child_environment)
        if variables:
            variables |= variables_for_others(self.facts.env, self.facts.choice.names)
        role_name = role_of(role)
        if role_name is not None:
            variables["OTEL_BRIDGE_ROLE"] = role_name
        return variables

    # --- facts of a run -------------------------------------------------------------------------

    def count_drop(self, reason: str, n: int = 1, key: str = "") -> None:
        """Count *n* drops by *reason*, of which *key* is the first.

        Drops are printed at most once a minute.
        """
        if self._recorder is not None:
            self._recorder.count_drop(reason, n, key)

    @counts_unknown
    def log_config(self, /, config: object = None, **entries: object) -> None:
        """Record hyperparameters: a nested mapping, dataclass or namespace. Secrets are redacted.

        Keywords are entries: ``log_config(lr=1e-6)``. Only rank 0 records them. A config without
        fields is counted as ``config_not_a_mapping``, what is beyond its limits as ``clipped``.

        Args:
            config: The hyperparameters. Later calls add entries to those of earlier calls, or
                replace them.
            entries: Further entries, which replace those of *config*.
        """
        if self._recorder is None or self.facts.identity.rank:
            return
        if config is not None or not entries:
            body = config_of(config, self.count_drop)
            if body:
                self._recorder.event(semconv.EVENT_CONFIG, {}, body)
        # Last, since a keyword is what the call says beside a config of the program.
        if entries:
            self.log_config(entries)

    @counts_unknown
    def summary(
        self,
        /,
        values: Mapping[str, object] | None = None,
        *,
        role: str | None = None,
        **entries: object,
    ) -> None:
        """Record last values (a best score, a verdict), which trackers show beside the curves.

        Keywords are entries: ``summary(best=0.9)``. The latest value of a key holds. Only rank 0
        records them. Other values than numbers, texts and bools are counted as ``summary_value``,
        anything but a mapping as ``not_a_mapping``.

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
            pairs = {semconv.ROLE: self._other_role(role)}
            self._recorder.event(semconv.EVENT_SUMMARY, pairs, body)

    @counts_unknown
    def alert(
        self,
        title: str | None = None,
        text: str | None = None,
        level: str | None = DEFAULT_LEVEL,
        *,
        role: str | None = None,
    ) -> None:
        """Record an alert, which trackers show and send on.

        W&B by mail or Slack, as its settings say. Only rank 0 records it. One without a title is
        counted as ``alert_title``, one beyond 1,000 of this process as ``alert_limit``.

        Args:
            title: What happened, in a few words; equal titles are one alert in MLflow.
            text: Details. Secrets are redacted.
            level: ``info``, ``warn`` or ``error``, or a tracker's ``AlertLevel``. Another is
                counted as ``alert_level``, and is ``warn``.
            role: Another role than the run's own.
        """
        if self._recorder is None or self.facts.identity.rank:
            return
        title_text = _alert_text(title, _MAX_TITLE_CHARS)
        if not title_text or self._alerts >= MAX_ALERTS:
            self.count_drop(
                "alert_limit" if title_text else "alert_title", 1, title_text
            )
            return
        self._alerts += 1
        if level is None:
            level = DEFAULT_LEVEL
        given_level = any_text(getattr(level, "value", level))
        level_name = level_named(given_level)
        if level_name is None:
            self.count_drop("alert_level", 1, given_level)
        pairs: dict[str, Attribute] = {
            semconv.ROLE: self._other_role(role),
            semconv.ALERT_TITLE: title_text,
            semconv.ALERT_LEVEL: level_name or DEFAULT_LEVEL,
            semconv.STEP: self._recorder.last_step(role_of(role) or self.role),
        }
        self._recorder.event(
            semconv.EVENT_ALERT, pairs, _alert_text(text, _MAX_TEXT_CHARS)
        )

    def _other_role(self, role: object) -> str | None:
        """Return another role than the run's own.

        ``None`` for its own, and for what is not a role.
        """
        name = role_of(role)
        return None if name == self.role else name


def _alert_text(value: object, limit: int) -> str:
    """Return a text of any value, cut and without secrets; empty for ``None``."""
    if value is None:
        return ""
    return redact_and_cut(any_text(value), limit)
