"""How a bridge works: settings of its environment, and what the command that runs it decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge import settings
from otel_bridge.bridge.exporters import ExporterEnvironment, Load
from otel_bridge.exporter import load as load_exporter
from otel_bridge.translation.options import TranslationOptions


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """Options of every run folder that one process serves.

    Attributes:
        places: Where exporters deliver.
        exporters: Signal to exporters, as given by ``--exporters``; ``None``: the segments decide.
        discard: Exporters that never get what they have not got (``drain --discard``).
        translation: Options of translation; the run's id is added.
        local: No endpoint gathers the job.
        launcher: The bridge is ``otel-bridge run``.
        closing: Nothing comes after the last living process (``drain``): what waits is released at once.
        takeover: Ask another bridge of the folder to hand over, and kill it when it does not.
        handover_s: How long a bridge that is asked to hand over may take before it is killed.
        exclusive: The folder lies on a shared file system.
        lazy: While every exporter of a run fails, its segments are not read far ahead (a service under load).
        idle_s: A run that had nothing to do for so long closes its writers, threads and ledger until something comes;
            ``None``: it keeps them.
        max_open_runs: Runs at work at one time; ``None``: as many as the limit of open files allows.
        stall_s: Silence of the thread that reads run folders after which it counts as stalled.
    """

    places: ExporterEnvironment
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
    handover_s: float = 10.0
    exclusive: bool = False
    idle_s: float | None = None
    lazy: bool = False
    max_open_runs: int | None = None
    stall_s: float = settings.STALL_S.default

    @classmethod
    def read(cls, env: Mapping[str, str], cwd: Path, *, load: Load = load_exporter) -> BridgeOptions:
        """Return the options that *env* asks for, those of the plain bridge else.

        Raises:
            ConfigError: A variable cannot be used.
        """
        return cls(
            places=ExporterEnvironment(env, cwd, load),
            translation=_translation(env),
            poll_s=settings.POLL_S.read(env),
            retry_after_exit_s=settings.RETRY_AFTER_EXIT_S.read(env),
            max_bytes=settings.MAX_BYTES.read(env),
            max_open_runs=settings.MAX_OPEN_RUNS.read(env),
            stall_s=settings.STALL_S.read(env),
        )

    def of_run(self, run_id: str) -> TranslationOptions:
        """Return the options of translation for one run."""
        return dataclasses.replace(self.translation, run_id=run_id)


def _translation(env: Mapping[str, str]) -> TranslationOptions:
    return TranslationOptions(
        row_wait_ns=_ns(settings.ROW_WAIT_S.read(env)),
        end_of_stream_wait_ns=_ns(settings.END_OF_STREAM_WAIT_S.read(env)),
        trace_grace_ns=_ns(settings.TRACE_GRACE_S.read(env)),
        trace_timeout_ns=_ns(settings.TRACE_TIMEOUT_S.read(env)),
        step_watermark_ns=_ns(settings.STEP_WATERMARK_S.read(env)),
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
        rollout_bytes=settings.ROLLOUT_BYTES.read(env),
        message_content=settings.content_mode(env),
        hash_metric_texts=settings.truncate_for_some(env),
        redact_secrets="secrets" in settings.REDACT.read(env),
        redact_email="email" in settings.REDACT.read(env),
    )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
