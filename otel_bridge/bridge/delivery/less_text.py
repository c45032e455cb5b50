"""Record -> the same record with less text, for one exporter with a stricter limit than the run.

How much text an exporter gets is set by ``OTEL_BRIDGE_<EXPORTER>_MESSAGE_CONTENT``. The strictest
setting of the bridge's environment and of every process of the run applies: text that one process
kept from a tracker never gets there, whichever process delivers later.

Numbers, names, times and ids stay, so that a tracker shows every rollout, its reward and its spans.
Text is cut inside message parts and string values, never inside JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_bridge import settings
from otel_bridge.content.media import limited_media
from otel_bridge.content.otlp import apply_to_span
from otel_bridge.content.policy import ContentPolicy, Limit, limit_of
from otel_bridge.content.truncation import cut, cut_json
from otel_bridge.errors import ConfigError
from otel_bridge.records import (
    Evaluation,
    Json,
    MediaRecord,
    Message,
    PlainTrace,
    Record,
    RolloutRecord,
    Span,
)
from otel_bridge.translation.decode.spans import read_span

OFF = 0


class ContentLimits:
    """Holds the limits of one run. One thread changes them, any thread reads them.

    Args:
        env: The bridge's environment.
        requested: Value of `requested` in an earlier bridge.
        store: Stores the value of `requested` for a later bridge; may raise.

    Attributes:
        requested: Exporter to the strictest mode that a process of the run set, e.g. ``{"wandb":
            "off"}``.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        requested: Mapping[str, str] | None = None,
        *,
        store: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        self._env = env
        self._store = store
        self.requested: Mapping[str, str] = dict(requested or {})

    def apply(self, modes: Mapping[str, str]) -> None:
        """Apply the modes of a process, by exporter: a stricter mode replaces the one in `requested`.

        Nothing changes when a stricter mode cannot be stored; the error of *store* is raised.
        """
        stricter: dict[str, str] = {}
        for name, mode in modes.items():
            if _is_stricter(mode, self.requested.get(name, "full")):
                stricter[name] = mode
        if stricter:
            requested = {**self.requested, **stricter}
            # Stored first: a bridge killed now must not leave a laxer limit to the next one.
            self._store(requested)
            self.requested = requested

    def of(self, exporter: str) -> Limit:
        """Return the most characters that a text may have for *exporter*; ``None`` for no limit, 0 for no text.

        The stricter of the bridge's setting and of what a process set. 0 for a setting that cannot
        be read: until a person mends it, the exporter is blocked, and text must not leave by
        mistake.
        """
        try:
            mode = settings.content_of(exporter).read(self._env)
        except ConfigError:  # the exporter is blocked, and its state has the reason
            return OFF
        limits = (limit_of(mode), limit_of(self.requested.get(exporter, "full")))
        return min((limit for limit in limits if limit is not None), default=None)


def _is_stricter(mode: str, present_mode: str) -> bool:
    limit = limit_of(mode)
    present_limit = limit_of(present_mode)
    return limit is not None and (present_limit is None or limit < present_limit)


_KEPT = frozenset({"rollout_id", "policy_version"})
"""Metadata entries that are names, not text."""
_FAILED = "error"
_SPAN = "span"


def truncate(record: Record, limit: int) -> Record:
    """Return *record* with at most *limit* characters in each text; 0: without text.

    A kind of record without texts of messages (rows, configs, summaries, alerts) is returned as it
    is. Nothing is counted here: the ledger keeps the whole record, and other exporters get it.
    """
    if isinstance(record, RolloutRecord):
        return _rollout(record, limit)
    if isinstance(record, Evaluation):
        return _truncate_evaluation(record, limit)
    if isinstance(record, PlainTrace):
        spans = [_span(span, limit) for span in record.spans]
        return replace(record, name=_name(record, spans), spans=spans)
    if isinstance(record, MediaRecord):
        return limited_media(record, _policy(limit))
    return record


def _policy(limit: int) -> ContentPolicy:
    """Return the policy of *limit* alone: the texts were redacted before."""
    return ContentPolicy(limit, secrets=False)


def _rollout(rollout: RolloutRecord, limit: int) -> RolloutRecord:
    """Return *rollout* with shorter texts.

    `clipped_bytes` grows by the characters that its messages lost, so that a tracker can show that
    something is missing. With limit 0 nothing is added: the messages are absent as a person chose.
    """
    messages: list[Message] = []
    if limit:
        messages = [
            cast("Message", cut_json(message, limit)) for message in rollout.messages
        ]
    spans = [_span(span, limit) for span in rollout.spans]
    error = _error(rollout.error, limit)
    clipped = 0
    if limit:
        clipped = max(_size([*rollout.messages]) - _size([*messages]), 0)
    elif error and spans:
        error = (
            spans[0].error or _FAILED
        )  # the kind of the error, which is not text of the user
    remarks: dict[str, tuple[str | None, str | None]] = {}
    for name, (label, explanation) in rollout.remarks.items():
        remarks[name] = _remark(label, explanation, limit)
    return replace(
        rollout,
        messages=messages,
        spans=spans,
        tools=_facts(rollout.tools, limit),
        metadata=_facts(rollout.metadata, limit),
        remarks=remarks,
        error=error,
        clipped_bytes=rollout.clipped_bytes + clipped,
    )


def _truncate_evaluation(value: Evaluation, limit: int) -> Evaluation:
    label, explanation = _remark(value.label, value.explanation, limit)
    return replace(value, label=label, explanation=explanation)


def _remark(
    label: str | None, explanation: str | None, limit: int
) -> tuple[str | None, str | None]:
    """Return label and explanation within the limit; with limit 0 an empty label and no explanation."""
    if limit:
        return _cut(label, limit), _cut(explanation, limit)
    # An evaluation needs a number or a label.
    return None if label is None else "", None


def _span(span: Span, limit: int) -> Span:
    """Return *span* with shorter texts, from its OTLP bytes, so that both forms agree.

    A span without them, or with bytes that cannot be decoded, keeps its times and ids only: what
    cannot be read cannot be limited, so none of its text may leave.
    """
    try:
        otlp = None
        if span.otlp:
            otlp = trace_pb2.Span.FromString(span.otlp)
    except DecodeError:
        otlp = None
    if otlp is None:
        return replace(
            span,
            name=_limited_name(span.name, limit),
            attributes={},
            input=None,
            output=None,
            error=_error(span.error, limit),
            otlp=b"",
        )
    apply_to_span(otlp, _policy(limit))
    return read_span(otlp).record()


def _limited_name(name: str, limit: int) -> str:
    """Return a span's name with the words that the limit permits."""
    bare = trace_pb2.Span(name=name)
    # As a span, because the words that a name may keep are decided there.
    apply_to_span(bare, _policy(limit))
    return bare.name


def _name(trace: PlainTrace, spans: list[Span]) -> str:
    """Return the name of a trace, taken from one of its spans."""
    pairs = zip(trace.spans, spans, strict=True)
    return next(
        (limited.name for whole, limited in pairs if whole.name == trace.name), _SPAN
    )


def _facts(facts: Mapping[str, Json], limit: int) -> dict[str, Json]:
    """Return *facts* with shortened texts.

    With limit 0, keep the numbers and the entries that name the rollout.
    """
    if limit:
        return {key: cut_json(value, limit) for key, value in facts.items()}
    return {
        key: value
        for key, value in facts.items()
        if isinstance(value, (bool, int, float)) or key in _KEPT
    }


def _error(error: str | None, limit: int) -> str | None:
    """Return the error within the limit; with limit 0 the word ``error``, so that the failure stays visible."""
    if error is None:
        return None
    if limit:
        return cut(error, limit)
    return _FAILED


def _cut(text: str | None, limit: int) -> str | None:
    if text is None:
        return None
    return cut(text, limit)


def _size(value: Json) -> int:
    """Return the number of characters in all texts of *value*."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return 0
