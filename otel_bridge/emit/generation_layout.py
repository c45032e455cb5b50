"""Which entries of parallel lists are turns of one rollout, which prompt and which group a rollout has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from otel_bridge.emit import facts
from otel_bridge.emit.generation_columns import Column

_EDGE: Final = 512


def folded(trajectory_ids: Column, entries: int) -> list[list[int]]:
    """Return the entries of each rollout: those of one trajectory id are its turns; without an id each is a rollout."""
    if trajectory_ids.values is None:
        return [[entry] for entry in range(entries)]
    turns: list[list[int]] = []
    known: dict[str, list[int]] = {}
    for entry in range(entries):
        name = facts.name(trajectory_ids.at(entry))
        if name is not None and name in known:
            known[name].append(entry)
            continue
        turns.append([entry])
        if name is not None:
            known[name] = turns[-1]
    return turns


class Layout:
    """From a rollout to its prompt.

    By trajectory id when those of the prompts are known; one for one when there are as many prompts as entries or as
    rollouts; else by the number of samples of each prompt; else in blocks, rollout ``//`` samples per prompt, clamped.

    Args:
        turns: The entries of each rollout.
        entries: How many there are.
        trajectory_ids: Of the entries.
        prompt_trajectory_ids: Of the prompts.
        samples_per_prompt: A number, one a prompt, or ``None``.
    """

    def __init__(
        self,
        turns: Sequence[Sequence[int]],
        entries: int,
        *,
        trajectory_ids: Column,
        prompt_trajectory_ids: Column,
        samples_per_prompt: object,
    ) -> None:
        self._turns = turns
        self._entries = entries
        self._trajectory_ids = trajectory_ids
        names = [facts.name(value) for value in prompt_trajectory_ids.values or ()]
        self._by_id = {name: index for index, name in enumerate(names) if name is not None}
        sizes = Column(samples_per_prompt)
        self._per_prompt = facts.integer(sizes.at(0)) if sizes.values is None else None
        counts = [max(facts.integer(size) or 0, 0) for size in sizes.values or ()]
        self._fan_out = [prompt for prompt, number in enumerate(counts) for _ in range(min(number, len(turns)))]

    def prompts(self, total: int) -> list[int]:
        """Return the index of each rollout's prompt among *total*."""
        last = max(total - 1, 0)
        if total == self._entries:
            places = [turn[0] for turn in self._turns]
        elif total == len(self._turns):
            places = list(range(total))
        elif self._fan_out:
            shown = self._fan_out[: len(self._turns)]
            places = [min(prompt, last) for prompt in shown] + [last] * (len(self._turns) - len(shown))
        else:
            size = max(self._per_prompt or len(self._turns) // max(total, 1), 1)
            places = [min(rollout // size, last) for rollout in range(len(self._turns))]
        if not self._by_id:
            return places
        named = [self._by_id.get(facts.name(self._trajectory_ids.at(turn[0])) or "") for turn in self._turns]
        return [place if by_id is None else min(by_id, last) for place, by_id in zip(places, named, strict=True)]


class PromptGroups:
    """Names for prompts: the same in every process and at every step, and for equal prompts."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}

    def name(self, prompt: object) -> str:
        """Return the group of *prompt*."""
        known = prompt if type(prompt) is str else id(prompt)
        name = self._names.get(known)
        if name is None:
            start, end = _edges(prompt)
            digest = hashlib.md5(f"{start}\0{end}".encode("utf-8", "replace"), usedforsecurity=False)
            name = self._names[known] = digest.hexdigest()[:12]
        return name


def places_in_groups(groups: Sequence[str | None]) -> list[int]:
    """Return the index of each rollout within its group."""
    counts: dict[str | None, int] = {}
    places: list[int] = []
    for group in groups:
        place = counts.get(group, 0)
        places.append(place)
        counts[group] = place + 1
    return places


def _edges(prompt: Any) -> tuple[str, str]:  # whatever the user put there
    """Return beginning and end of a prompt: enough to tell prompts apart, and cheap for long ones."""
    if isinstance(prompt, str):
        return prompt[:_EDGE], f"{prompt[-_EDGE:]}{len(prompt)}"
    if isinstance(prompt, Mapping):
        return _edges(str(facts.mapping(cast("object", prompt)).get("content")))
    if isinstance(prompt, (list, tuple)) and prompt:
        entries = cast("Sequence[Any]", prompt)
        texts = [str(entry) for entry in entries[:16]] if not isinstance(entries[0], (str, Mapping)) else []
        return "".join(texts) or _edges(entries[0])[0], _edges(entries[-1])[1]
    return str(cast("object", prompt))[:_EDGE], ""
