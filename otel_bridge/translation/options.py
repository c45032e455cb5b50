"""What translation gets from outside: waiting times, bounds, selection. It reads no setting itself.

Times are nanoseconds. The defaults are those of the settings of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SECOND_NS = 1_000_000_000


class OtherTraces(Enum):
    """What becomes of traces that are not rollouts."""

    COUNTED = "no exporter shows them"
    SHOWN = "every exporter of traces shows them"
    SHOWN_AND_COUNTED = "some exporters of traces show them"


def counted() -> OtherTraces:
    """Return `OtherTraces.COUNTED`."""
    return OtherTraces.COUNTED


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """Options of one `Translator`; pure values.

    Attributes:
        run_id: The run that this translator is for; empty: the first resource says.
        row_wait_ns: How long a row waits for its missing pieces, and a row behind a gap for the rows before it.
        end_of_stream_wait_ns: How long the end of a forwarded process waits for the rows it reports, when none comes. A
            Collector carries rows and ends over connections of their own, and one that lost its bridge tries again
            after up to two minutes (grpc, connection-backoff.md), whatever the others do.
        trace_grace_ns: How long a rollout waits for spans after its root ended.
        trace_timeout_ns: When a rollout whose root never came is taken as it is.
        step_watermark_ns: How long a step that every worker has reached waits for more rollouts.
        step_timeout_ns: How long a step waits for a worker that is behind and sends nothing, and at most in all.
        liveness_timeout_ns: Silence after which a forwarded or foreign process is considered ended.
        end_grace_ns: How long the run stays open after its last process died without a word.
        max_rollouts: Rollouts kept of a role's step; 0 or less: none.
        max_rollouts_eval: The same for split ``eval``; ``None``: as `max_rollouts`.
        selection: Which rollouts of a step are kept: ``stratified`` or ``first``.
        rollout_key: Key of the traces in trackers; ``{split}`` is replaced.
        owner_role: The role whose end decides the run's status.
        max_open_traces: Traces that may wait for spans at one time.
        max_open_trace_bytes: Bytes that waiting traces may take.
        rollout_bytes: Largest rollout; longer content is clipped and marked.
        message_content: ``full``, ``off`` or ``truncate:N``; applied to foreign producers here.
        hash_metric_texts: Replace texts among the attributes of third-party metrics by hashes: some exporter may have
            less text, and keys are the same for all.
        redact_secrets: Strike secrets out of the spans of foreign producers.
        redact_email: Redact e-mail addresses in their spans and evaluations.
        seen_limit: Foreign points whose identity is remembered, so that a point sent again is dropped.
        max_waiting_bytes: Bytes that incomplete rows and rows behind a gap may take; beyond it the oldest is released.
        cumulative_histograms: Show cumulative histograms of third-party producers as sent, not what each point adds.
        max_keys: Distinct keys of metrics; values of further ones are left out of their rows and counted.
    """

    row_wait_ns: int = 10 * SECOND_NS
    end_of_stream_wait_ns: int = 150 * SECOND_NS
    trace_grace_ns: int = 2 * SECOND_NS
    trace_timeout_ns: int = 600 * SECOND_NS
    step_watermark_ns: int = 30 * SECOND_NS
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
    rollout_bytes: int = 4 << 20
    message_content: str = "full"
    hash_metric_texts: bool = False
    redact_secrets: bool = True
    redact_email: bool = False
    seen_limit: int = 200_000
    max_waiting_bytes: int = 64 << 20
    cumulative_histograms: bool = False
    max_keys: int = 100_000
    run_id: str = ""
