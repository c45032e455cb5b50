"""Turns of one trajectory -> one conversation; a response and its loss mask -> assistant and tool messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from otel_bridge.emit.encode import coerce
from otel_bridge.emit.rollouts.chat_messages import raw_messages
from otel_bridge.emit.rollouts.columns import TokenDecoder


@dataclass(frozen=True, slots=True)
class Turn:
    """What one entry of the parallel lists says.

    Attributes:
        prompt: Text, one message, or many; ``None``: see `prompt_ids`.
        prompt_ids: Token ids of the prompt.
        response: Text, one message, or many; ``None``: see `response_ids`.
        response_ids: Token ids of the response.
        mask: One a token of the response: 1 where the policy spoke, 0 where a tool did.
    """

    prompt: Any = None
    prompt_ids: list[Any] | None = None
    response: Any = None
    response_ids: list[Any] | None = None
    mask: Sequence[Any] | None = None


def conversation_of(turns: Sequence[Turn], decoder: TokenDecoder) -> list[object]:
    """Return the messages of *turns*, each said once.

    A later turn's prompt usually repeats all before it, as messages, text or token ids: only what is new is taken.
    """
    messages: list[object] = []
    said_text = ""
    said_ids: list[Any] = []
    for index, turn in enumerate(turns):
        prompt = _prompt(turn, messages, said_text, said_ids, decoder) if index else _first_prompt(turn, decoder)
        # What comes between two answers of a policy is what its environment said.
        messages += raw_messages(prompt, role="tool" if index else "user")
        messages += responses(turn, decoder)
        if isinstance(turn.prompt, str) and isinstance(turn.response, str):
            said_text = turn.prompt + turn.response
        said_ids = (turn.prompt_ids or []) + (turn.response_ids or [])
    return messages


def _first_prompt(turn: Turn, decoder: TokenDecoder) -> object:
    if turn.prompt is None and turn.prompt_ids:
        return decoder.text(turn.prompt_ids)
    return turn.prompt


def _prompt(turn: Turn, said: Sequence[object], said_text: str, said_ids: list[Any], decoder: TokenDecoder) -> object:
    """Return what a later turn's prompt adds to what was said."""
    prompt = turn.prompt
    if isinstance(prompt, str):
        return prompt.removeprefix(said_text) if said_text else prompt
    if prompt is not None:
        entries = raw_messages(prompt)
        return entries[len(said) :] if _same_start(entries, said) else entries
    if turn.prompt_ids is None:
        return None
    ids = turn.prompt_ids
    if said_ids and ids[: len(said_ids)] == said_ids:
        ids = ids[len(said_ids) :]
    return decoder.text(ids) if ids else None


def _same_start(entries: Sequence[object], said: Sequence[object]) -> bool:
    """Return whether *entries* begin with what was said; answers may be given in another shape, so roles decide."""
    if len(entries) < len(said):
        return False
    return all(_role(entry) == _role(known) for entry, known in zip(entries, said, strict=False))


def _role(message: object) -> object:
    return coerce.mapping(message).get("role")


def responses(turn: Turn, decoder: TokenDecoder) -> list[object]:
    """Return the messages of one response."""
    if turn.response is not None:
        return raw_messages(turn.response, role="assistant")
    if not turn.response_ids:
        return []
    if not turn.mask:
        return [{"role": "assistant", "content": decoder.text(turn.response_ids)}]
    # A mask that is short leaves the rest to the policy.
    generated = [bool(flag) for flag in turn.mask[: len(turn.response_ids)]]
    generated += [True] * (len(turn.response_ids) - len(generated))
    pairs = zip(generated, turn.response_ids, strict=True)
    return [
        {"role": "assistant" if policy else "tool", "content": decoder.text([token for _, token in run])}
        for policy, run in groupby(pairs, key=lambda pair: pair[0])
    ]
