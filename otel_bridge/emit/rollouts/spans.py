"""Facts of a `Rollout` -> attributes of its root span, the same for finished and live ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from otel_bridge import semconv
from otel_bridge.emit.config.snapshot import RolloutOptions
from otel_bridge.emit.conversations.attachments import media_facts
from otel_bridge.emit.conversations.conversation import (
    Content,
    EncodedMessage,
    MessageLimits,
    content_of,
)
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode import span as span_encoding
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import Utf8, utf8_array
from otel_bridge.emit.rollouts.rollout import Rollout, mapping_or
from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.records import trace_id_of
from otel_bridge.values.plain import CLIPPED, Losses, dumps
from otel_bridge.values.scalars import key_text, own_text


class CallContext(NamedTuple):
    """Holds what the rollouts of one call share.

    Attributes:
        role: Role, when it differs from the resource's.
        link: The caller's span, encoded, or empty.
        open_steps: Steps with open live rollouts; ``None``: nothing new.
    """

    run_id: str
    step: int | None
    split: str | None
    role: str | None
    options: RolloutOptions
    link: bytes = b""
    open_steps: Sequence[int] | None = None


def trace_id_bytes(run_id: str, rollout_id: str) -> bytes:
    """Return the trace id, as bytes, of a rollout with the user's own id."""
    return bytes.fromhex(trace_id_of(run_id, rollout_id))


def identity_attributes(call: CallContext, rollout_id: str) -> Pairs:
    """Return the attributes that place a rollout: its id, and ``None`` for step, split and role that it lacks."""
    return [
        (semconv.ROLLOUT_ID, rollout_id),
        (semconv.STEP, call.step),
        (semconv.ROLE, call.role),
        (semconv.SPLIT, call.split),
        (semconv.ROLLOUT_KEY, call.options.key or None),
        (semconv.ROLLOUTS_OPEN_STEPS, call.open_steps),
    ]


def start_attributes(rollout: Rollout, call: CallContext) -> dict[str, Attribute]:
    """Return the attributes of the root that are known when a live rollout begins.

    What cannot be read is left out: the root's end counts it.
    """
    pairs = identity_attributes(call, coerce.name(rollout.id) or "")
    pairs += _scalar_pairs(rollout, Losses())
    return {
        name: value
        for name, value in pairs
        if value is not None and not isinstance(value, Utf8)
    }


def rollout_content(rollout: Rollout, limits: MessageLimits) -> Content:
    """Encode the conversation of a rollout with the media of its metadata.

    Trackers show media where messages are, and not among facts. Code of the user's messages costs
    itself alone.
    """
    media = media_facts(mapping_or(rollout.metadata, "metadata")).values()
    return content_of(rollout.messages, limits, media=list(chain.from_iterable(media)))


def caller_link() -> bytes:
    """Return an encoded link to the caller's current span; empty when there is none.

    A link, not a parent: a rollout is always a trace of its own, which a bridge collects by its id.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if (
        trace is None
    ):  # no code in this process makes spans: importing the API would find none
        return b""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return b""
    return span_encoding.link(
        context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
    )


ASSISTANT = "assistant"
BAD_FIELD = "rollout_field"
_MAX_FACTS = 256
Pairs: TypeAlias = "list[tuple[str, Attribute | Utf8]]"
"""Attributes in order."""


def _integer_or_name(value: object) -> int | str | None:
    plain = coerce.integer(value)
    if plain is None:
        return coerce.name(value)
    return plain


_SCALARS: Mapping[str, tuple[str, Callable[[object], int | float | str | None]]] = {
    "group": (semconv.GROUP_ID, coerce.name),
    "trajectory_id": (semconv.TRAJECTORY_ID, coerce.name),
    "prompt_index": (semconv.PROMPT_INDEX, coerce.integer),
    "sample": (semconv.SAMPLE_INDEX, coerce.integer),
    "batch_index": (semconv.BATCH_INDEX, coerce.integer),
    "reward": (semconv.REWARD, coerce.number),
    "advantage": (semconv.ADVANTAGE, partial(coerce.number, mean=True)),
    "policy_version": (semconv.POLICY_VERSION, _integer_or_name),
    "dataset": (semconv.DATASET, coerce.name),
    "dataset_index": (semconv.DATASET_INDEX, _integer_or_name),
    "model": (semconv.GEN_AI_REQUEST_MODEL, coerce.name),
    "input_tokens": (semconv.GEN_AI_INPUT_TOKENS, coerce.integer),
    "output_tokens": (semconv.GEN_AI_OUTPUT_TOKENS, coerce.integer),
}
"""Field of a rollout -> attribute and reader."""


def root_attributes(rollout: Rollout, content: Content, limits: MessageLimits) -> Pairs:
    """Return the attributes of the root without its id, step, split and number of spans.

    What cannot be read is counted as ``rollout_field``. Facts have a quarter of the rollout's limit
    each, so that they leave half of it to the messages.
    """
    pairs: Pairs = []
    content_filter = content.content_filter
    pairs += _scalar_pairs(rollout, content_filter.losses)
    is_in_parts = isinstance(rollout.reward, Mapping)
    parts = mapping_or(rollout.reward if is_in_parts else rollout.rewards, "rewards")
    pairs += _numbers(semconv.REWARDS_PREFIX, parts, content_filter)
    reason = coerce.name(rollout.finish_reason)
    if reason is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    budget = limits.rollout_bytes // 4
    tools = mapping_or(rollout.tools, "calls")
    pairs += free_facts(semconv.TOOL_PREFIX, tools, content_filter, budget)
    metadata = mapping_or(rollout.metadata, "metadata")
    for name in media_facts(metadata):
        del metadata[name]
    pairs += free_facts(semconv.METADATA_PREFIX, metadata, content_filter, budget)
    if not content_filter.off:
        pairs += conversation_attributes(content.messages)
    if content_filter.clipped_bytes:
        pairs.append((semconv.CLIPPED, content_filter.clipped_bytes))
    return pairs


def _scalar_pairs(rollout: Rollout, losses: Losses) -> Pairs:
    """Return the attributes of the fields of one value.

    Those that cannot be read are counted as ``rollout_field``.
    """
    pairs: Pairs = []
    for field, (key, read) in _SCALARS.items():
        raw: object = getattr(rollout, field)
        if raw is None:
            continue
        value = read(raw)
        if value is not None:
            pairs.append((key, value))
        elif field != "reward":  # that is counted for all rollouts of a call
            losses.add(BAD_FIELD, 1, field)
    return pairs


def _numbers(
    prefix: str, values: Mapping[Any, Any], content_filter: ContentFilter
) -> Pairs:
    """Return the parts of a reward.

    A part that is not a number, or beyond 256, is counted as ``rollout_reward``.
    """
    pairs: Pairs = []
    for key, value in content_filter.entries(values, "rewards").items():
        number = coerce.number(value)
        if number is None or len(pairs) >= _MAX_FACTS:
            content_filter.losses.add("rollout_reward", 1, key)
        else:
            pairs.append((f"{prefix}{key}", number))
    return pairs


def free_facts(
    prefix: str, values: Mapping[Any, Any], content_filter: ContentFilter, budget: int
) -> Pairs:
    """Encode free facts within *budget* characters; the others are counted as ``clipped``.

    A fact that does not fit ends nothing: later ones count against what is left, and are left out
    as well.

    Args:
        prefix: Beginning of the keys.
        values: The facts.
        content_filter: Filter of the texts.
        budget: Most characters of all facts.
    """
    pairs: Pairs = []
    for key, fact in content_filter.facts(values, "").items():
        size = len(fact) if isinstance(fact, str) else len(dumps(fact))
        budget -= len(key) + size
        if budget < 0 or len(pairs) >= _MAX_FACTS:
            content_filter.clipped_bytes += size
            content_filter.losses.add(CLIPPED, 1, key)
        else:
            pairs.append((f"{prefix}{key}", fact))
    return pairs


def conversation_attributes(messages: Sequence[EncodedMessage]) -> Pairs:
    """Return input (all messages but the last answer) and output (the last answer).

    Both are there even if empty. The place of the answer among the input follows from the index in
    its child.
    """
    rest = list(messages)
    output: list[EncodedMessage] = []
    # Messages after the last answer (a tool's answer in a truncated rollout) belong to the input as
    # well.
    for index in reversed(range(len(messages))):
        if messages[index].role == ASSISTANT:
            output.append(rest.pop(index))
            break
    return [
        (semconv.GEN_AI_INPUT_MESSAGES, json_array(rest)),
        (semconv.GEN_AI_OUTPUT_MESSAGES, json_array(output)),
    ]


def json_array(messages: Iterable[EncodedMessage]) -> Utf8:
    """Join messages to a JSON array."""
    return utf8_array([message.json for message in messages])


def failure(
    error: str | BaseException, content_filter: ContentFilter
) -> tuple[str, str]:
    """Return type and text of an error.

    With policy ``off`` its type in place of the text, which may quote a prompt.
    """
    if isinstance(error, BaseException):
        kind = type(error).__qualname__
    else:
        kind = "Error"
    if content_filter.off:
        return kind, kind
    return kind, content_filter.error(_error_text(error))


def closing_fields(
    pairs: Pairs,
    error: str | BaseException | None,
    end_unix_ns: int,
    content_filter: ContentFilter,
) -> bytes:
    """Encode attributes, and the event and status of an *error*, which a live span gets at its end.

    They are merged into the SDK's encoded span: set as its attributes they would pass the content
    policy twice.
    """
    fields = span_encoding.span_attributes(pairs)
    if error is None:
        return fields
    kind, text = failure(error, content_filter)
    return fields + span_encoding.failure_fields(end_unix_ns, kind, text)


def _error_text(error: str | BaseException) -> str:
    """Return the text of an error; empty when it has none that may be shown, or raises.

    ``str()`` of an exception whose arguments are objects would show their ``repr()``, with
    addresses and secrets.
    """
    try:
        if isinstance(error, BaseException):
            text = own_text(error)
        else:
            text = key_text(error)
    except any_error_but_signals():  # code of the user's own exception
        return ""
    return text or ""


def without_traceback(error: str | BaseException | None) -> str | None:
    """Return the error of a closed span as text, ``None`` without an error.

    Its traceback holds the frame of the block, whose locals hold the span: a cycle that keeps all
    of them alive.
    """
    if error is None or isinstance(error, str):
        return error
    kind = type(error).__qualname__
    text = _error_text(error)
    if text:
        return f"{kind}: {text}"
    return kind
