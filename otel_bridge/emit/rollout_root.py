"""The facts of one `Rollout` -> attributes of its root span. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

from otel_bridge import semconv
from otel_bridge.emit import facts
from otel_bridge.emit.content import Cutter
from otel_bridge.emit.conversation import Content, Limits
from otel_bridge.emit.fast_messages import EncodedMessage
from otel_bridge.emit.rollout import Rollout, mapping_or
from otel_bridge.emit.span_encoding import Utf8, utf8_array
from otel_bridge.emit.wire import Attribute

ASSISTANT: Final = "assistant"
_MAX_FACTS: Final = 256
Pairs: TypeAlias = "list[tuple[str, Attribute | Utf8]]"
"""Attributes in order."""


def _integer_or_name(value: object) -> int | str | None:
    plain = facts.integer(value)
    return facts.name(value) if plain is None else plain


_SCALARS: Final[Mapping[str, tuple[str, Callable[[object], int | float | str | None]]]] = {
    "group": (semconv.GROUP_ID, facts.name),
    "trajectory_id": (semconv.TRAJECTORY_ID, facts.name),
    "prompt_index": (semconv.PROMPT_INDEX, facts.integer),
    "sample": (semconv.SAMPLE_INDEX, facts.integer),
    "batch_index": (semconv.BATCH_INDEX, facts.integer),
    "reward": (semconv.REWARD, facts.number),
    "advantage": (semconv.ADVANTAGE, partial(facts.number, mean=True)),
    "policy_version": (semconv.POLICY_VERSION, _integer_or_name),
    "dataset": (semconv.DATASET, facts.name),
    "dataset_index": (semconv.DATASET_INDEX, _integer_or_name),
    "model": (semconv.GEN_AI_REQUEST_MODEL, facts.name),
    "input_tokens": (semconv.GEN_AI_INPUT_TOKENS, facts.integer),
    "output_tokens": (semconv.GEN_AI_OUTPUT_TOKENS, facts.integer),
}
"""Field of a rollout -> attribute, and how it is read."""
_values_of: Final[Callable[[Rollout], tuple[object, ...]]] = attrgetter(*_SCALARS)


def root_attributes(rollout: Rollout, content: Content, limits: Limits) -> Pairs:
    """Return the attributes of the root, less its id, step, split and number of spans."""
    pairs: Pairs = []
    for (key, read), given in zip(_SCALARS.values(), _values_of(rollout), strict=True):
        if given is not None and (value := read(given)) is not None:
            pairs.append((key, value))
    parts: object = rollout.reward if isinstance(rollout.reward, Mapping) else rollout.rewards
    if parts:
        pairs += _numbers(semconv.REWARDS_PREFIX, parts)
    if rollout.finish_reason is not None and (reason := facts.name(rollout.finish_reason)) is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    budget = limits.rollout_bytes // 4
    if rollout.tools:
        pairs += free_facts(semconv.TOOL_PREFIX, mapping_or(rollout.tools, "calls"), content.cutter, budget)
    if rollout.metadata:
        pairs += free_facts(semconv.METADATA_PREFIX, mapping_or(rollout.metadata, "metadata"), content.cutter, budget)
    if not content.cutter.off:
        pairs += conversation_attributes(content.messages)
    if content.cutter.clipped_bytes:
        pairs.append((semconv.CLIPPED, content.cutter.clipped_bytes))
    return pairs


def _numbers(prefix: str, values: object) -> Pairs:
    if not isinstance(values, Mapping):
        return []
    items = list(cast("Mapping[object, object]", values).items())[:_MAX_FACTS]
    return [(f"{prefix}{key}", number) for key, value in items if (number := facts.number(value)) is not None]


def free_facts(prefix: str, values: Mapping[str, Any], cutter: Cutter, budget: int) -> Pairs:
    """Encode free facts; without content only their numbers stay."""
    pairs: Pairs = []
    for key, given in values.items():
        value = cutter.json(given, key)
        if value is None or (cutter.off and not isinstance(value, (bool, int, float))):
            continue
        budget -= len(key) + _size(value)
        if budget < 0 or len(pairs) >= _MAX_FACTS:
            cutter.clipped_bytes += _size(value)
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _size(item) for key, item in cast("Mapping[str, object]", value).items())
    return sum(map(_size, cast("list[object]", value))) if isinstance(value, list) else 8


def conversation_attributes(messages: Sequence[EncodedMessage]) -> Pairs:
    """Return input, all before the last answer, and output, that answer."""
    last = max((index for index, message in enumerate(messages) if message.role == ASSISTANT), default=None)
    if last is None:
        return [(semconv.GEN_AI_INPUT_MESSAGES, json_array(messages)), (semconv.GEN_AI_OUTPUT_MESSAGES, utf8_array(()))]
    # What stands behind the last answer (a tool's answer to a rollout that was cut) belongs to the input as well.
    rest = [*messages[:last], *messages[last + 1 :]]
    return [
        (semconv.GEN_AI_INPUT_MESSAGES, json_array(rest)),
        (semconv.GEN_AI_OUTPUT_MESSAGES, json_array(messages[last : last + 1])),
    ]


def json_array(messages: Iterable[EncodedMessage]) -> Utf8:
    """Join messages to a JSON array."""
    return utf8_array([message.json for message in messages])


def failure(error: str | BaseException, cutter: Cutter) -> tuple[str, str]:
    """Return type and text of an error; without content only its type."""
    if isinstance(error, BaseException):
        kind = type(error).__qualname__
        try:
            text = str(error)
        except Exception:  # noqa: BLE001  # code of the user's own exception
            text = ""
    else:
        kind, text = "Error", str(error)
    return kind, (kind if cutter.off else cutter.error(text))
