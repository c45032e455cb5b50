"""The size limit of a rollout: its longest texts are cut first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.content.otlp import apply_to_span
from otel_bridge.content.policy import ContentPolicy

_SIZES = (1 << 16, 1 << 14, 1 << 12, 1 << 10, 256, 64)


def shrunk(spans: Sequence[Span], limit_bytes: int) -> tuple[list[Span], int]:
    """Cut a rollout to about *limit_bytes*.

    First long texts, then all content, then its last spans. The root, which is first, always stays:
    it has the reward.

    Returns:
        The spans that remain, and the number of bytes cut. A rollout within the limit is returned
        unchanged, with 0.
    """
    sizes = [span.ByteSize() for span in spans]
    total = sum(sizes)
    if total <= limit_bytes:
        return list(spans), 0
    copies = [Span.FromString(span.SerializeToString()) for span in spans]
    _cut_texts(copies, sizes, limit_bytes)
    room = limit_bytes
    for index, span in enumerate(copies):
        room -= span.ByteSize()
        if room < 0 and index:
            del copies[index:]
            break
    return copies, total - sum(map(Span.ByteSize, copies))


def _cut_texts(spans: Sequence[Span], sizes: Sequence[int], limit_bytes: int) -> None:
    """Cut the texts of *spans*, names too, to ever shorter lengths, until all spans fit.

    At 64 characters it ends all the same: then whole spans go.
    """
    for limit in _SIZES:
        policy = ContentPolicy(limit, secrets=False)  # redacted before
        for span, size in zip(spans, sizes, strict=True):
            # A smaller span has no text above the limit.
            if size > limit:
                apply_to_span(span, policy, everything=True)
        if sum(map(Span.ByteSize, spans)) <= limit_bytes:
            return
