"""Turns of one trajectory -> one conversation.

A response and its loss mask -> assistant and tool messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from otel_bridge.emit.messages.reader import messages_of, role_of
from otel_bridge.emit.rollouts.columns import TokenDecoder


@dataclass(frozen=True, slots=True)
class Turn:
    """Reads one entry of the parallel lists.

    Attributes:
        prompt: Text, one message, or many; ``None``: see `prompt_ids`.
        prompt_ids: Token ids of the prompt.
        response: Text, one message, or many; ``None``: see `response_ids`.
        response_ids: Token ids of the response.
        mask: One flag per token of the response: 1 for tokens of the policy, 0 for tokens of a
            tool.
    """

    prompt: Any = None
    prompt_ids: list[Any] | None = None
    response: Any = None
    response_ids: list[Any] | None = None
    mask: Sequence[Any] | None = None


def conversation_of(turns: Sequence[Turn], decoder: TokenDecoder) -> list[object]:
    """Return the messages of *turns*, each once.

    A later turn's prompt usually repeats everything before it, as messages, text or token ids; only
    new content is added.
    """
    messages: list[object] = []
    known_text = ""
    known_ids: list[Any] = []
    for index, turn in enumerate(turns):
        if index:
            prompt = _prompt(turn, messages, known_text, known_ids, decoder)
        else:
            prompt = _first_prompt(turn, decoder)
        # Content between two answers of a policy comes from its environment.
        messages += messages_of(prompt, role="tool" if index else "user")
        messages += responses(turn, decoder)
        if isinstance(turn.prompt, str) and isinstance(turn.response, str):
            known_text = turn.prompt + turn.response
        known_ids = (turn.prompt_ids or []) + (turn.response_ids or [])
    return messages


def _first_prompt(turn: Turn, decoder: TokenDecoder) -> object:
    if turn.prompt is None and turn.prompt_ids:
        return decoder.text(turn.prompt_ids)
    return turn.prompt


def _prompt(
    turn: Turn,
    messages: Sequence[object],
    known_text: str,
    known_ids: list[Any],
    decoder: TokenDecoder,
) -> object:
    """Return the part of a later turn's prompt that is new."""
    prompt = turn.prompt
    if isinstance(prompt, str):
        if known_text:
            return prompt.removeprefix(known_text)
        return prompt
    if prompt is not None:
        entries = messages_of(prompt)
        if _same_start(entries, messages):
            return entries[len(messages) :]
        return entries
    if turn.prompt_ids is None:
        return None
    ids = turn.prompt_ids
    if known_ids and ids[: len(known_ids)] == known_ids:
        ids = ids[len(known_ids) :]
    return decoder.text(ids) if ids else None


def _same_start(entries: Sequence[object], messages: Sequence[object]) -> bool:
    """Return whether *entries* begin with *messages*.

    Roles decide, since answers may have another shape.
    """
    if len(entries) < len(messages):
        return False
    return all(
        role_of(entry) == role_of(former)
        for entry, former in zip(entries, messages, strict=False)
    )


def responses(turn: Turn, decoder: TokenDecoder) -> list[object]:
    """Return the messages of one response."""
    if turn.response is not None:
        return messages_of(turn.response, role="assistant")
    if not turn.response_ids:
        return []
    if not turn.mask:
        return [{"role": "assistant", "content": decoder.text(turn.response_ids)}]
    # With a short mask the remaining tokens count as the policy's.
    generated = [bool(flag) for flag in turn.mask[: len(turn.response_ids)]]
    generated += [True] * (len(turn.response_ids) - len(generated))
    pairs = zip(generated, turn.response_ids, strict=True)
    messages: list[object] = []
    for is_of_policy, run in groupby(pairs, key=lambda pair: pair[0]):
        role = "assistant" if is_of_policy else "tool"
        messages.append(
            {"role": role, "content": decoder.text([token for _, token in run])}
        )
    return messages
