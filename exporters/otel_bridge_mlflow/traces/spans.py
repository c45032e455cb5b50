"""Rollout -> the OTLP spans that MLflow shows well. Pure.

The root gets MLflow's own attributes: inputs and outputs in OpenAI's chat format (chat view,
readable previews), type, trace name, tags, and the group as session. Its GenAI messages are
removed, because MLflow would keep them twice. Children stay unchanged; MLflow reads the GenAI
conventions itself (mlflow/tracing/otel/translation/genai_semconv.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_bridge import semconv
from otel_bridge.otlp.json_text import utf8, with_leaves
from otel_bridge.records import TRAIN, Json, Message, RolloutRecord, Span
from otel_bridge.values.mappings import present

SESSION = "mlflow.trace.session"
"""Metadata of a trace by which MLflow shows the traces of one group together."""
_MAX_METADATA_CHARS = 250
"""MAX_CHARS_IN_TRACE_INFO_METADATA of mlflow/tracing/constant.py; a longer session fails the whole
request."""
TAG_PREFIX = "mlflow.traceTag."
TRACE_NAME = "mlflow.traceName"
"""The tag that MLflow shows as the name of a trace."""
_TWICE = frozenset({semconv.GEN_AI_INPUT_MESSAGES, semconv.GEN_AI_OUTPUT_MESSAGES})


@dataclass(frozen=True, slots=True)
class TraceContent:
    """Holds what MLflow gets of one trace at once.

    Attributes:
        id: MLflow's id of the trace.
        spans: Its spans, at least one.
        session: Group of its rollout, if it has one.
        rewards: Rewards of its rollout, as MLflow's assessments.
    """

    id: str
    spans: Sequence[trace_pb2.Span]
    session: str | None = None
    rewards: Sequence[Any] = ()


def trace_id_of(rollout_id: str) -> str:
    """Return MLflow's id of the trace with this OTel id."""
    return f"tr-{rollout_id}"


def spans_of(rollout: RolloutRecord, tag_length: int) -> list[trace_pb2.Span]:
    """Return the spans of *rollout*, its root first.

    Args:
        rollout: With or without a root: a missing root is created, because MLflow links and tags by
            roots.
        tag_length: Longest value of a tag.
    """
    messages = messages_of(rollout.id, rollout.spans)
    if not messages or messages[0].parent_span_id:
        messages.insert(0, _made_up_root(rollout, messages))
    root = messages[0]
    if rollout.messages:
        attributes = list(root.attributes)
        del root.attributes[:]
        for pair in attributes:
            if pair.key not in _TWICE:
                root.attributes.append(pair)
    for key, value in _root_attributes(rollout).items():
        root.attributes.append(_text(key, value))
    for tag, value in tags_of(rollout).items():
        # MLflow refuses a trace with a longer tag, so the value is cut here.
        root.attributes.append(_text(f"{TAG_PREFIX}{tag}", value[:tag_length]))
    return messages


def tags_of(rollout: RolloutRecord) -> dict[str, str]:
    """Return the fields of *rollout* that are searched most often, by names that MLflow accepts.

    A tag costs MLflow a select and an insert, a thirtieth of a whole trace. So the split is a tag
    only when it is not ``train``, and the parts of the reward share one tag (their assessments are
    searched by number). Other fields are attributes of the root (``span.attributes.rl.split LIKE
    '%train%'`` finds them). The role is in the trace's name and the group is its session, which
    cost nothing.
    """
    fields: dict[str, Json] = {
        "step": rollout.step,
        "split": rollout.split if rollout.split != TRAIN else None,
        "reward": rollout.reward,
        "rewards": _json({**rollout.rewards}) if rollout.rewards else None,
        "incomplete": rollout.incomplete or None,
        "clipped_bytes": rollout.clipped_bytes or None,
    }
    tags: dict[str, str] = {}
    for key, value in present(fields).items():
        tags[key] = clean_text(str(value))
    return tags


def name_of(rollout: RolloutRecord) -> str:
    """Return the name of the trace of *rollout*."""
    return clean_text(rollout.key)[:_MAX_METADATA_CHARS]


def session_of(rollout: RolloutRecord) -> str | None:
    """Return the session of the trace of *rollout*: its group, if it has one."""
    if not rollout.group:
        return None
    return clean_text(rollout.group)[:_MAX_METADATA_CHARS]


def clean_text(text: str) -> str:
    """Return *text* without characters that databases refuse: NUL (PostgreSQL) and lone surrogates (all)."""
    # Hot path: most texts need no change, and the test is far cheaper than a copy.
    if text.isascii() and "\0" not in text:
        return text
    return utf8(text.replace("\0", "�"))


def _root_attributes(rollout: RolloutRecord) -> dict[str, str]:
    """Return MLflow's own attributes of a root span as texts.

    Inputs and outputs only where there are any.
    """
    attributes = {
        "mlflow.spanType": "AGENT",
        f"{TAG_PREFIX}{TRACE_NAME}": name_of(rollout),
    }
    session = session_of(rollout)
    if session is not None:
        attributes["session.id"] = session
    messages, answer = _conversation(rollout)
    if messages:
        attributes["mlflow.spanInputs"] = _json({"messages": messages})
    if answer is not None:
        choice: dict[str, Json] = {
            "index": 0,
            "message": answer,
            "finish_reason": rollout.finish_reason,
        }
        attributes["mlflow.spanOutputs"] = _json({"choices": [choice]})
    return attributes


def _conversation(rollout: RolloutRecord) -> tuple[list[Json], Message | None]:
    """Split the messages into input and answer.

    Without an answer at the end, all messages are input.
    """
    messages: list[Json] = list(rollout.messages)
    last = rollout.messages[-1] if rollout.messages else None
    if last is None or last.get("role") != "assistant":
        return messages, None
    return messages[:-1], last


def messages_of(trace_id: str, spans: Sequence[Span]) -> list[trace_pb2.Span]:
    """Return *spans* as OTLP, in the trace *trace_id*: 32 hex digits."""
    return [_message_of(trace_id, span) for span in spans]


def _message_of(trace_id: str, span: Span) -> trace_pb2.Span:
    """Return *span* as OTLP, in the trace *trace_id*: 32 hex digits.

    Without the producer's bytes (an exporter that gets less text has none) it is made of the
    record. All ids are hex digits, because the translation made them of OTLP's bytes.
    """
    message = trace_pb2.Span()
    # The producer's own bytes, so that links, events and attributes that no record has stay.
    if span.otlp:
        message.ParseFromString(span.otlp)
    else:
        message.name = span.name
        message.parent_span_id = bytes.fromhex(span.parent_id or "")
        message.start_time_unix_nano = span.start_unix_ns
        message.end_time_unix_nano = span.end_unix_ns
        for key, value in span.attributes.items():
            message.attributes.append(_text(key, _plain(value)))
        if span.input is not None:
            message.attributes.append(_text("mlflow.spanInputs", _json(span.input)))
        if span.output is not None:
            message.attributes.append(_text("mlflow.spanOutputs", _json(span.output)))
        if span.error is not None:
            message.status.code = trace_pb2.Status.STATUS_CODE_ERROR
            message.status.message = clean_text(span.error)
    # Set in both cases: rollouts that shared one trace have ids of their own (decision 0018).
    message.trace_id = bytes.fromhex(trace_id)
    message.span_id = bytes.fromhex(span.id)
    return message


def _made_up_root(
    rollout: RolloutRecord, messages: list[trace_pb2.Span]
) -> trace_pb2.Span:
    """Return a root in place of the missing one; the real root replaces it if it arrives later."""
    root_id = bytes.fromhex(rollout.id[:16])
    span_ids = {message.span_id for message in messages}
    for message in messages:
        if message.parent_span_id not in span_ids:
            # The id that the children name as parent, so that they hang below this root.
            root_id = message.parent_span_id
            break
    root = trace_pb2.Span(
        trace_id=bytes.fromhex(rollout.id),
        span_id=root_id,
        name=semconv.ROLLOUT_SPAN,
        start_time_unix_nano=rollout.start_unix_ns,
        end_time_unix_nano=rollout.end_unix_ns,
    )
    if rollout.error:
        root.status.code = trace_pb2.Status.STATUS_CODE_ERROR
        root.status.message = clean_text(rollout.error)
    return root


def _text(key: str, value: str) -> common_pb2.KeyValue:
    return common_pb2.KeyValue(
        key=clean_text(key), value=common_pb2.AnyValue(string_value=value)
    )


def _plain(value: Json) -> str:
    if isinstance(value, str):
        return clean_text(value)
    return _json(value)


def _json(value: Json) -> str:
    return json.dumps(with_leaves(value, _cleaned), ensure_ascii=False)


def _cleaned(value: Json) -> Json:
    """Return a clean text, and a number that is not finite as text, as JSON requires."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
