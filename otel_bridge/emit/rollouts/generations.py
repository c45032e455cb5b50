"""Parallel lists of samples -> rollouts: every list guarded, only the kept samples decoded and built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.emit.encode import coerce
from otel_bridge.emit.rollouts import batch
from otel_bridge.emit.rollouts.columns import (
    Column,
    TokenDecoder,
    folded,
    group_names,
    is_blank,
    parted,
    positions_in_groups,
    prompts_of,
    token_ids,
)
from otel_bridge.emit.rollouts.events import SampledRollout
from otel_bridge.emit.rollouts.rollout import Rollout, mapping_or
from otel_bridge.messages.reader import first_role, messages_of

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

_PARTED_LISTS = ("rewards", "tool_facts")
_PLAIN_LISTS = (
    "advantages", "finish_reasons", "groups", "trajectory_ids", "policy_versions", "datasets", "dataset_indices",
    "loss_masks", "metadata", "states", "ids", "errors", "logprobs",
)  # fmt: skip
_A_SAMPLE = (*_PARTED_LISTS, *_PLAIN_LISTS)
"""Lists that must be as long as the responses."""
_LISTS = (
    "prompts", "responses", "prompt_token_ids", "response_token_ids", "prompt_trajectory_ids", "samples_per_prompt",
    *_PLAIN_LISTS,
)  # fmt: skip
_SAMPLED_BY = {
    "reward": "rewards", "error": "errors", "finish_reason": "finish_reasons", "policy_version": "policy_versions",
    "dataset": "datasets",
}  # fmt: skip
"""Fields of the last turn by which a rollout is sampled, to the list of each."""
COLUMNS = frozenset(
    {*_LISTS, *_PARTED_LISTS, "decode", "model", "step", "split", "role"}
)


def log_generations(run: EmitRun, /, **columns: Any) -> None:
    """Sample, decode, build and append rollouts.

    Unknown names are counted as ``rollout_unknown_column``. Without samples, or when all prompts
    are empty, nothing is recorded. Tokens are recorded of all samples, also of those that are
    sampled out: their statistics are over all.

    Args:
        run: The run.
        columns: The lists by name, with names of `COLUMNS`; see `Generations`.
    """
    unknown = columns.keys() - COLUMNS
    if unknown:
        run.count_drop("rollout_unknown_column", len(unknown), min(unknown))
    generations = Generations(run, columns)
    sampled = generations.sampled()
    if not sampled:
        return
    defaults = batch.defaults_of(
        run, columns.get("step"), columns.get("split"), columns.get("role")
    )
    batch.emit(run, defaults, sampled, generations.build)
    if columns.get("logprobs") is not None:
        tokens = generations.tokens(sampled)
        batch.annotate_rollouts(run, tokens, defaults, columns.get("decode"))


class Generations:
    """Reads samples as parallel lists. Entries of one trajectory id are turns of one rollout; see `prompts_of`.

    Args:
        run: The run, which counts unusable entries.
        arguments: ``prompts`` (texts, messages or lists of messages), ``responses`` (the same),
            ``prompt_token_ids``, ``response_token_ids``, ``rewards`` (numbers, per-token lists, or
            ``{name: list}``), ``advantages``, ``finish_reasons``, ``groups``, ``trajectory_ids``,
            ``prompt_trajectory_ids``, ``samples_per_prompt`` (a number, or one a prompt),
            ``policy_versions``, ``datasets``, ``dataset_indices``, ``tool_facts`` (dicts, or a dict
            of lists), ``loss_masks``, ``logprobs``, ``decode``, ``metadata`` (one dict, or one a
            sample), ``states``, ``ids``, ``errors``, ``model``.
    """

    def __init__(self, run: EmitRun, arguments: Mapping[str, Any]) -> None:
        """Read the lists, and assign entries to rollouts and rollouts to prompts.

        Prompts that no response belongs to are counted as ``rollout_no_response``, lists of another
        length than the responses as `_count` says. What an iterator of the program raises is
        raised: `Run.log_generations` then counts the whole call as ``internal_error``.
        """
        self._run = run
        self._model = coerce.name(arguments.get("model"))
        self._decoder = TokenDecoder(arguments.get("decode"), run.count_drop)
        self._lists = {name: Column(arguments.get(name)) for name in _LISTS}
        for name in _PARTED_LISTS:
            self._lists[name] = parted(arguments.get(name))
        for name in ("prompts", "responses"):
            texts: object = arguments.get(name)
            if isinstance(texts, (str, Mapping)):
                self._lists[name] = Column([cast("object", texts)])
        self._has_prompts = (
            self._lists["prompts"].given or self._lists["prompt_token_ids"].given
        )
        self._entries = self._count()
        self._turns = folded(self._lists["trajectory_ids"], self._entries)
        self._prompts_of = prompts_of(
            self._turns, self._lists, "prompts", self._entries
        )
        self._ids_of = prompts_of(
            self._turns, self._lists, "prompt_token_ids", self._entries
        )
        answered = set(chain.from_iterable(self._prompts_of))
        unanswered = len(self._lists["prompts"]) - len(answered)
        if unanswered > 0:
            run.count_drop("rollout_no_response", unanswered)
        self._groups = self._all_groups()
        self._positions = positions_in_groups(self._groups)

    def _count(self) -> int:
        """Return the number of entries, that of the longer list of responses.

        0 when the list of prompts is given but empty. Then the responses are counted as
        ``rollout_empty_prompt``. Values that the other lists lack, or have beyond the responses,
        are counted as ``rollout_short_list`` and ``rollout_long_list``.
        """
        prompts = self._lists["prompts"]
        ids = self._lists["prompt_token_ids"]
        entries = max(
            len(self._lists["responses"]), len(self._lists["response_token_ids"])
        )
        if prompts.values is not None and not len(prompts) and not len(ids):
            if entries:
                self._run.count_drop("rollout_empty_prompt", entries)
            return 0
        missing = 0
        surplus = 0
        for name in _A_SAMPLE:
            size = len(self._lists[name])
            missing += max(entries - size, 0) if size else 0
            surplus += max(size - entries, 0)
        if missing:
            self._run.count_drop("rollout_short_list", missing)
        if surplus:
            self._run.count_drop("rollout_long_list", surplus)
        return entries

    def _all_groups(self) -> list[str | None]:
        """Return the group of each rollout: as given, else that of its prompt.

        ``None`` without prompts.
        """
        of_prompt = [*group_names(self._lists["prompts"].values or ()), None]
        names = self._lists["groups"]
        groups: list[str | None] = []
        for prompts, turn in zip(self._prompts_of, self._turns, strict=True):
            group = coerce.name(names.at(turn[0])) if names.given else None
            groups.append(group or of_prompt[prompts[0]])
        return groups

    # --- facts for sampling -----------------------------------------------------------------------
    def sampled(self) -> list[SampledRollout]:
        """Return the facts for sampling.

        Samples with an empty prompt are left out and counted as ``rollout_empty_prompt``. Outcomes
        are those of the last turn, which ends the trajectory; the id is that of the first. What an
        array of a prompt raises is raised: `Run.log_generations` then counts the whole call.
        """
        sampled: list[SampledRollout] = []
        columns = {
            field: self._lists[name]
            for field, name in _SAMPLED_BY.items()
            if self._lists[name].given
        }
        ids = self._lists["ids"]
        trajectory_ids = self._lists["trajectory_ids"]
        all_prompted = self._all_prompted()
        for rollout, entries in enumerate(self._turns):
            if not (all_prompted or self._is_prompted(rollout)):
                continue
            first = entries[0]
            group = self._groups[rollout]
            fields: dict[str, Any] = {
                field: column.at(entries[-1]) for field, column in columns.items()
            }
            fields["group"] = group
            fields["id"] = ids.at(first)
            # What stands for the id: the trajectory's, else the position in the group.
            name = coerce.name(trajectory_ids.at(first))
            name = name or f"{group}/{self._positions[rollout]}"
            sampled.append(batch.sampled_rollout(self._run, rollout, fields, name))
        if len(sampled) < len(self._turns):
            self._run.count_drop(
                "rollout_empty_prompt", len(self._turns) - len(sampled)
            )
        return sampled

    def _all_prompted(self) -> bool:
        """Return whether no prompt of the call is empty, or it has none: then no rollout need be asked."""
        if not self._has_prompts:
            return True
        prompts = self._lists["prompts"].values
        # Token ids alone.
        if not prompts:
            return False
        return not any(prompt is None or is_blank(prompt) for prompt in prompts)

    def _is_prompted(self, rollout: int) -> bool:
        """Return whether *rollout* has a prompt that is not empty, as text or as token ids."""
        prompt = self._at("prompts", self._prompts_of[rollout][0])
        if prompt is not None:
            return not is_blank(prompt)
        return bool(token_ids(self._at("prompt_token_ids", self._ids_of[rollout][0])))

    def tokens(self, rollouts: Iterable[SampledRollout]) -> list[dict[str, Any]]:
        """Return the id of each rollout with its turns, as fields of a rollout."""
        fields: list[dict[str, Any]] = []
        for rollout in rollouts:
            turns = [self._turn(entry) for entry in self._turns[rollout.call_index]]
            fields.append({"id": rollout.id, "turns": turns})
        return fields

    def _turn(self, entry: int) -> dict[str, Any]:
        """Return the facts and tokens of a turn; missing lists give ``None``."""
        return {
            "reward": self._at("rewards", entry),
            "finish_reason": self._at("finish_reasons", entry),
            "token_ids": self._at("response_token_ids", entry),
            "logprobs": self._at("logprobs", entry),
            "loss_mask": self._at("loss_masks", entry),
        }

    def _at(self, name: str, entry: int) -> Any:  # whatever the user put there
        return self._lists[name].at(entry)

    # --- building ---------------------------------------------------------------------------------
    def build(self, rollout: int) -> Rollout:
        """Build one rollout: the only place where tokens are decoded.

        Facts are those of the last turn, ids and positions those of the first. A state is kept in
        the metadata unless the metadata have one. What the program's own objects raise is raised:
        the caller counts this rollout as ``rollout_unreadable``.
        """
        entries = self._turns[rollout]
        first = entries[0]
        last = entries[-1]
        metadata = mapping_or(self._at("metadata", last), "metadata")
        if (state := self._at("states", last)) is not None:
            metadata.setdefault("state", state)
        if len(self._lists["prompts"]):
            index = self._prompts_of[rollout][0]
        else:
            index = self._ids_of[rollout][0]
        return Rollout(
            messages=self._conversation(rollout),
            reward=self._at("rewards", last),
            advantage=self._at("advantages", last),
            finish_reason=self._at("finish_reasons", last),
            id=coerce.name(self._at("ids", first)),
            group=self._groups[rollout],
            sample=None if self._groups[rollout] is None else self._positions[rollout],
            trajectory_id=coerce.name(self._at("trajectory_ids", first)),
            prompt_index=index if self._has_prompts else None,
            batch_index=first,
            policy_version=self._at("policy_versions", last),
            dataset=coerce.name(self._at("datasets", last)),
            dataset_index=self._at("dataset_indices", last),
            model=self._model,
            tools=mapping_or(self._at("tool_facts", last), "calls"),
            # One turn has no facts of its own.
            turns=[self._turn(entry) for entry in entries] if len(entries) > 1 else [],
            metadata=metadata,
            error=self._at("errors", last),
        )

    def _conversation(self, rollout: int) -> list[object]:
        """Return the messages of the turns of *rollout*, each once.

        A later turn's prompt usually repeats everything before it, as messages, text or token ids;
        only new content is added. A prompt that does not repeat it (a summary, say) is added whole.
        """
        messages: list[object] = []
        known_text = ""
        known_ids: list[Any] = []
        for turn, entry in enumerate(self._turns[rollout]):
            prompt = self._prompt_in("prompts", self._prompts_of[rollout], turn)
            ids = self._prompt_in("prompt_token_ids", self._ids_of[rollout], turn)
            prompt_ids = token_ids(ids) or []
            prompt_part: object
            if prompt is None:
                new_ids = _beyond(prompt_ids, known_ids)
                prompt_part = self._decoder.text(new_ids) if new_ids else None
            else:
                prompt_part = _new_part(prompt, messages, known_text)
            # Content between two answers of a policy comes from its environment.
            messages += messages_of(prompt_part, role="tool" if turn else "user")
            response = self._at("responses", entry)
            response_ids = token_ids(self._at("response_token_ids", entry)) or []
            if response is not None:
                messages += messages_of(response, role="assistant")
            elif response_ids:
                messages += self._decoded(response_ids, self._at("loss_masks", entry))
            if isinstance(prompt, str) and isinstance(response, str):
                known_text = prompt + response
            known_ids = prompt_ids + response_ids
        return messages

    def _prompt_in(
        self, name: str, prompts: Sequence[int], turn: int
    ) -> Any:  # whatever the user put there
        """Return the prompt of a turn.

        ``None`` for a later one that has none of its own in *prompts*.
        """
        return self._at(name, prompts[turn]) if turn < len(prompts) else None

    def _decoded(self, response_ids: Sequence[Any], loss_mask: object) -> list[object]:
        """Return the messages of a response: the policy's, and a tool's where the mask leaves tokens out.

        With a short mask, or without one, the remaining tokens count as the policy's.
        """
        mask = chain(token_ids(loss_mask) or (), repeat(True))
        pairs = zip(response_ids, mask, strict=False)
        messages: list[object] = []
        for is_of_policy, run in groupby(pairs, key=lambda pair: bool(pair[1])):
            role = "assistant" if is_of_policy else "tool"
            text = self._decoder.text([token for token, _ in run])
            messages.append({"role": role, "content": text})
        return messages


def _beyond(ids: list[Any], known_ids: list[Any]) -> list[Any]:
    """Return the tokens of a prompt that follow those of the turns before.

    All of them where it begins otherwise.
    """
    if ids[: len(known_ids)] == known_ids:
        return ids[len(known_ids) :]
    return ids


def _new_part(prompt: object, messages: Sequence[object], known_text: str) -> object:
    """Return the part of a prompt that the turns before it do not have.

    All of it where it begins otherwise.
    """
    if isinstance(prompt, str):
        return prompt.removeprefix(known_text)
    entries = messages_of(prompt)
    if _same_start(entries, messages):
        return entries[len(messages) :]
    return entries


def _same_start(entries: Sequence[object], messages: Sequence[object]) -> bool:
    """Return whether *entries* begin with *messages*.

    Roles alone decide: an answer comes back in another shape than it was given, and with a
    tokenizer's changes.
    """
    roles = [first_role(message) for message in messages]
    return [first_role(entry) for entry in entries[: len(roles)]] == roles
