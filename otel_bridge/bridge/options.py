"""Defines how a bridge works: settings of its environment, and options of the command that runs it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge import settings
from otel_bridge.bridge.exporter_environment import ExporterEnvironment, Load
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.exporter import load as load_exporter
from otel_bridge.translation.options import TranslationOptions


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """Holds the options of every run folder that one process serves: a plain value, with a field for each option.

    Attributes:
        exporter_env: Environment in which exporters deliver.
        exporters: Signal to exporters, as given by ``--exporters``; ``None``: the segments decide.
        discard: Exporters that never get the records that they lack (``drain --discard``).
        translation: Options of translation; the run's id is added.
        local: Whether no endpoint collects the job.
        launcher: Whether the bridge is ``otel-bridge run``.
        closing: Whether nothing comes after the last living process (``drain``), so that waiting
            data is released at once.
        takeover: Whether to request the folder from another bridge, and to kill it when it does
            not.
        exclusive: Whether to lock the ledger for this process alone, because another machine served
            the folder last.
        lazy: Whether segments are not read far ahead while every exporter of a run fails (a service
            under load).
        idle_s: Seconds without work after which a run closes its writers, threads and ledger until
            something arrives; ``None`` to keep them open.
        max_open_runs: Most active runs at a time; ``None`` for as many as the limit of open files
            allows.
        timeline_bytes: Most bytes of a run's timeline.
        stall_s: Silence of the thread that reads run folders after which it counts as stalled.
        webhook: Whether alerts are also posted to the webhook.
    """

    exporter_env: ExporterEnvironment
    exporters: Mapping[str, tuple[str, ...]] | None = None
    discard: tuple[str, ...] = ()
    translation: TranslationOptions = field(default_factory=TranslationOptions)
    poll_s: float = settings.POLL_S.default
    retry_after_exit_s: float = settings.RETRY_AFTER_EXIT_S.default
    max_bytes: int = settings.MAX_BYTES.default
    local: bool = True
    launcher: bool = False
    closing: bool = False
    takeover: bool = False
    exclusive: bool = False
    idle_s: float | None = None
    lazy: bool = False
    max_open_runs: int | None = None
    timeline_bytes: int = settings.TIMELINE_BYTES.default
    stall_s: float = settings.STALL_S.default
    webhook: bool = False

    @classmethod
    def read(
        cls, env: Mapping[str, str], cwd: Path, *, load: Load = load_exporter
    ) -> BridgeOptions:
        """Return the options that *env* sets; the others are those of the plain bridge.

        All are read at the start, so that a wrong one ends the command and not a run.

        Raises:
            ConfigError: A variable cannot be used.
        """
        return cls(
            exporter_env=ExporterEnvironment(env, cwd, load),
            translation=_translation(env),
            poll_s=settings.POLL_S.read(env),
            retry_after_exit_s=settings.RETRY_AFTER_EXIT_S.read(env),
            max_bytes=settings.MAX_BYTES.read(env),
            max_open_runs=settings.MAX_OPEN_RUNS.read(env),
            stall_s=settings.STALL_S.read(env),
            timeline_bytes=settings.TIMELINE_BYTES.read(env),
            webhook=bool(settings.ALERT_WEBHOOK.read(env)),
        )

    def of_run(self, run_id: str) -> TranslationOptions:
        """Return the options of translation for one run."""
        return dataclasses.replace(self.translation, run_id=run_id)


def _translation(env: Mapping[str, str]) -> TranslationOptions:
    """Return the options of translation that *env* sets.

    Raises `ConfigError` for one that cannot be used.
    """
    return TranslationOptions(
        alert_rules=settings.ALERTS.read(env),
        featured=settings.FEATURED.read(env),
        watching_since_ns=time.time_ns(),
        row_wait_ns=_ns(settings.ROW_WAIT_S.read(env)),
        end_of_stream_wait_ns=_ns(settings.END_OF_STREAM_WAIT_S.read(env)),
        trace_grace_ns=_ns(settings.TRACE_GRACE_S.read(env)),
        trace_timeout_ns=_ns(settings.TRACE_TIMEOUT_S.read(env)),
        step_watermark_ns=_ns(settings.STEP_WATERMARK_S.read(env)),
        step_startup_ns=_ns(settings.STEP_STARTUP_S.read(env)),
        step_timeout_ns=_ns(settings.STEP_TIMEOUT_S.read(env)),
        liveness_timeout_ns=_ns(settings.LIVENESS_TIMEOUT_S.read(env)),
        end_grace_ns=_ns(settings.END_GRACE_S.read(env)),
        cumulative_histograms=settings.CUMULATIVE_HISTOGRAMS.read(env),
        max_rollouts=settings.MAX_ROLLOUTS_PER_STEP.read(env),
        max_rollouts_eval=settings.MAX_ROLLOUTS_PER_STEP_EVAL.read(env),
        selection=settings.ROLLOUT_SELECTION.read(env),
        rollout_key=settings.ROLLOUT_KEY.read(env),
        owner_role=settings.OWNER_ROLE.read(env),
        max_keys=settings.MAX_KEYS.read(env),
        max_open_traces=settings.MAX_OPEN_TRACES.read(env),
        max_open_trace_bytes=settings.MAX_OPEN_TRACE_BYTES.read(env),
        token_bytes=settings.TOKEN_BYTES.read(env),
        rollout_bytes=settings.ROLLOUT_BYTES.read(env),
        content=ContentPolicy.read(env),
        hash_metric_texts=settings.truncate_for_some(env),
    )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
