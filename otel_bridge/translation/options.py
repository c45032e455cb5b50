"""Options of translation: waiting times, bounds, selection. Translation reads no setting itself.

Times are nanoseconds. The defaults equal those of the settings with the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from otel_bridge.alert_rules import NO_RULES, AlertRule
from otel_bridge.content.policy import DEFAULT_POLICY, ContentPolicy

SECOND_NS = 1_000_000_000


class OtherTraces(Enum):
    """Selects the treatment of traces that are not rollouts."""

    COUNTED = "no exporter shows them"
    SHOWN = "every exporter of traces shows them"
    SHOWN_AND_COUNTED = "some exporters of traces show them"


def counted() -> OtherTraces:
    """Return `OtherTraces.COUNTED`."""
    return OtherTraces.COUNTED


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """Holds options of one `Translator`; pure values.

    Attributes:
        run_id: The run of this translator; empty: the first resource names the run.
        row_wait_ns: Longest wait of a row for its missing fragments, and of a row behind a gap for
            earlier rows.
        end_of_stream_wait_ns: Longest wait at the end of a forwarded process for the rows that its
            end reports, while no row arrives. A Collector sends rows and ends over separate
            connections. A connection that lost its bridge retries after up to two minutes (grpc,
            connection-backoff.md), whatever the others do.
        trace_grace_ns: Longest wait of a rollout for spans after its root ended.
        trace_timeout_ns: Time after which a rollout without a root is translated as it is.
        step_watermark_ns: Longest wait for more rollouts of a step that every worker has reached.
        step_startup_ns: Time after the start of a role's newest process in which further workers
            may start.
        step_timeout_ns: Longest wait of a step for a worker that is behind and sends nothing, and
            longest wait in all.
        liveness_timeout_ns: Silence after which a forwarded or third-party process is considered
            ended.
        end_grace_ns: Time for which the run stays open after its last process died without an end
            event.
        max_rollouts: Most rollouts kept of a role's step; 0 or less: none.
        max_rollouts_eval: Most rollouts kept for split ``eval``; ``None``: as `max_rollouts`.
        selection: Rule that selects the rollouts of a step: ``stratified`` or ``first``.
        rollout_key: Key of the traces in trackers; ``{split}`` is replaced.
        owner_role: The role whose end decides the run's status.
        max_open_traces: Most traces that may wait for spans at one time.
        max_open_trace_bytes: Most bytes that waiting traces may take.
        token_bytes: Most bytes of streams of tokens that wait, for their other half or for what
            trackers show.
        rollout_bytes: Size limit of a rollout; longer content is truncated and marked.
        content: Content policy, which translation applies to third-party producers.
        hash_metric_texts: Whether texts among the attributes of third-party metrics become hashes.
            Keys are the same for all exporters, and an exporter may be allowed less text.
        seen_limit: Number of third-party points whose identity is remembered, so that a redelivered
            point is dropped.
        max_waiting_bytes: Most bytes of incomplete rows and rows behind a gap; beyond it the oldest
            row is released.
        cumulative_histograms: Whether cumulative histograms of third-party producers are shown as
            sent, instead of the increment of each point.
        alert_rules: Rules that raise alerts.
        featured: Keys that are shown first; empty: a default, in `status` only.
        watching_since_ns: Unix ns when this bridge began; a role is overdue only at a later time.
        max_keys: Most distinct keys of metrics; values of further keys are left out of their rows
            and counted.
    """

    row_wait_ns: int = 10 * SECOND_NS
    end_of_stream_wait_ns: int = 150 * SECOND_NS
    trace_grace_ns: int = 2 * SECOND_NS
    trace_timeout_ns: int = 600 * SECOND_NS
    step_watermark_ns: int = 30 * SECOND_NS
    step_startup_ns: int = 5 * SECOND_NS
    step_timeout_ns: int = 1_800 * SECOND_NS
    liveness_timeout_ns: int = 600 * SECOND_NS
    end_grace_ns: int = 30 * SECOND_NS
    max_rollouts: int = 16
    max_rollouts_eval: int | None = None
    selection: str = "stratified"
    rollout_key: str = "rollouts"
    owner_role: str = "trainer"
    max_open_traces: int = 20_000
    max_open_trace_bytes: int = 1 << 30
    token_bytes: int = 64 << 20
    rollout_bytes: int = 4 << 20
    content: ContentPolicy = DEFAULT_POLICY
    hash_metric_texts: bool = False
    seen_limit: int = 200_000
    max_waiting_bytes: int = 64 << 20
    cumulative_histograms: bool = False
    max_keys: int = 100_000
    alert_rules: tuple[AlertRule, ...] = NO_RULES
    featured: tuple[str, ...] = ()
    watching_since_ns: int = 0
    run_id: str = ""
