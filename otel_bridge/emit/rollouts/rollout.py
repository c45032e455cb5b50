"""`Rollout`: one finished sample of a policy, as built by the user.

`Rollout` is what users build; `otel_bridge.records.RolloutRecord` is what trackers get.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from otel_bridge.messages.fields import plain
from otel_bridge.messages.reader import is_exchange, is_message
from otel_bridge.messages.shapes import EXCHANGE
from otel_bridge.values.mappings import only, without
from otel_bridge.values.plain import MAX_ENTRIES, mapping_of
from otel_bridge.values.reading import entries_of

_NO_TURNS: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Rollout:
    """Holds one finished rollout: its conversation and its outcome. Only `messages` is required.

    Attributes:
        messages: Conversation in OpenAI's chat shape (GenAI ``parts`` are accepted too); a string
            is one user message.
        reward: A number. A list (one value per token) is summed; a mapping sets `rewards` and their
            sum.
        rewards: Parts of the reward, by name.
        advantage: A number; a list (one value per token) is averaged.
        finish_reason: Reason for which the generation stopped, e.g. ``stop`` or ``length``.
        id: The user's id, unique in the run; 32 hex digits are the trace id itself. ``None``: a
            random trace id.
        step: The consuming step; ``None``: the step of the call, else the role's last.
        split: ``train``, ``eval``, …
        group: The prompt group; one prompt's samples share it.
        sample: Index within the group.
        trajectory_id: The framework's own id of the trajectory.
        prompt_index: Index of the prompt in its batch.
        batch_index: Index of the sample in its batch.
        policy_version: Version of the weights that sampled the rollout.
        dataset: Name of the prompt's dataset.
        dataset_index: Index in that dataset.
        model: Name of the policy, for its spans.
        tools: Facts of tool use: ``calls``, ``timeouts``, ``errors``, ``runtimes``, …
        turns: Facts of each assistant message, in order: ``reward``, ``finish_reason``,
            ``input_tokens``, ``output_tokens``; and of its tokens ``token_ids``, ``logprobs``,
            ``loss_mask``.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answers.
        metadata: Anything else.
        error: Error of the rollout, ``None`` without one.
        start_unix_ns: Start time; ``None``: unknown.
        end_unix_ns: End time; ``None``: now.
    """

    messages: Any = field(default_factory=list[Any])
    reward: float | Sequence[float] | Mapping[str, float] | None = None
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    advantage: float | Sequence[float] | None = None
    finish_reason: str | None = None
    id: str | None = None
    step: int | None = None
    split: str | None = None
    group: str | int | None = None
    sample: int | None = None
    trajectory_id: str | None = None
    prompt_index: int | None = None
    batch_index: int | None = None
    policy_version: int | None = None
    dataset: str | None = None
    dataset_index: int | None = None
    model: str | None = None
    tools: dict[str, Any] = field(default_factory=dict[str, Any])
    turns: Sequence[Mapping[str, Any]] = _NO_TURNS
    input_tokens: int | None = None
    output_tokens: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | BaseException | None = None
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None


FIELDS = frozenset(field.name for field in fields(Rollout))


def rollout_of(values: Mapping[str, Any]) -> Rollout:
    """Make a `Rollout` of a mapping with its field names; other keys become metadata.

    In the place of ``messages`` it may have the lists of them ``prompt`` and ``completion``.

    A field that is ``None`` has its default: rows of tables have every column. What reading
    metadata raises is raised: a finished rollout is then counted as ``rollout_unreadable``, a live
    one is not opened.
    """
    field_values: dict[str, Any] = {}
    extra: dict[Any, Any] = {}
    for key, value in values.items():
        if key not in FIELDS:
            extra[key] = value
        elif value is not None:
            field_values[key] = value
    rollout = Rollout(**field_values)
    if "messages" not in field_values and (exchange := _exchange_in(extra)):
        rollout.messages = exchange
        extra = without(extra, EXCHANGE)
    if extra:
        rollout.metadata = {**mapping_or(rollout.metadata, "metadata"), **extra}
    return rollout


def _exchange_in(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the lists of messages in a row of a trainer, as TRL's; empty without two.

    Lists of anything else, as of token ids, are facts. What reading them raises is raised.
    """
    if not is_exchange(row):
        return {}
    exchange = only(row, EXCHANGE)
    for messages in exchange.values():
        entries = cast("Sequence[object]", plain(messages))
        if not all(map(is_message, entries)):
            return {}
    return exchange


def mapping_or(value: object, name: str) -> dict[Any, Any]:
    """Return the entries of a mapping or of an object with fields; empty for ``None``.

    Any other value becomes the entry *name*. What `mapping_of` raises of the program's own object
    is raised.
    """
    # Nearly every sample of parallel lists, whose facts need no search.
    if value is None:
        return {}
    mapping = mapping_of(value)
    if mapping is None:
        return {name: value}
    return dict(entries_of(mapping, MAX_ENTRIES))


def metadata_of(owner: Any, fields: Container[str]) -> dict[Any, Any]:
    """Return the metadata of a rollout or of a call within it, with what the program set beside the *fields*.

    ``rollout.temperature = 0.7`` is a fact as ``temperature=0.7`` of the call is. Attributes that
    begin with ``_`` are not. Raises as `mapping_or`.
    """
    metadata = mapping_or(owner.metadata, "metadata")
    attributes = cast("dict[str, Any]", vars(owner))
    for name, value in attributes.items():
        if name not in fields and not name.startswith("_"):
            metadata.setdefault(name, value)
    return metadata


def turns_of(value: object) -> Sequence[object]:
    """Return the facts of turns as a list, also of an array, as tables have them; empty for ``None``.

    Anything else is one turn. What the conversion of an array raises is raised.
    """
    # The default, of nearly all rollouts.
    if value is None or value is _NO_TURNS:
        return _NO_TURNS
    turns = plain(value)
    if isinstance(turns, (list, tuple)):
        return cast("Sequence[object]", turns)
    return _NO_TURNS if turns is None else (turns,)
