"""Parallel lists of training code -> guarded columns: any column may be missing, short, or hold ``None``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from otel_bridge.emit.encode import coerce
from otel_bridge.emit.media.content_key import content_key
from otel_bridge.errors import any_error_but_signals
from otel_bridge.values.mappings import present
from otel_bridge.values.reading import is_text
from otel_bridge.values.scalars import is_array


class Column:
    """Reads one parallel list; a missing entry reads as ``None``.

    Args:
        value: A list, tuple or array; ``None``; or one value for every sample.
    """

    __slots__ = ("_one", "values")

    def __init__(self, value: object) -> None:
        """Take a list as it is, and any other iterable as a list.

        A text, a mapping or a number is one value for all samples. What ``tolist()`` or an iterator
        of the program raises is raised: `Run.log_generations` counts the call.
        """
        self._one: object = None
        self.values: Sequence[object] | None = None
        tolist = getattr(value, "tolist", None)
        if callable(tolist):
            value = tolist()
        if (
            value is None
            or is_text(value)
            or isinstance(value, Mapping)
            or not isinstance(value, Iterable)
        ):
            self._one = value
        else:
            entries = cast("Iterable[object]", value)
            self.values = (
                entries if isinstance(entries, (list, tuple)) else list(entries)
            )

    def at(self, index: int) -> Any:  # whatever the user put there
        """Return the value of sample *index*.

        ``None`` beyond the list: a short list costs no sample, and is counted by its length.
        """
        if self.values is None:
            return self._one
        if 0 <= index < len(self.values):
            return self.values[index]
        return None

    @property
    def given(self) -> bool:
        """Return whether the column has any value."""
        return self.values is not None or self._one is not None

    def __len__(self) -> int:
        if self.values is None:
            return 0
        return len(self.values)


def parted(value: object) -> Column:
    """Return a column of values that may have parts: of one list, or of ``{name: list}``.

    Rewards are numbers, per-token lists, or lists by name; facts of tools are dicts, or lists by
    name. A sample without any part has no value. A mapping without any list is one value for all
    samples.
    """
    if not isinstance(value, Mapping):
        return Column(value)
    entries = cast("Mapping[object, object]", value)
    columns = {str(name): Column(values) for name, values in entries.items()}
    samples = max(map(len, columns.values()), default=0)
    if not samples:  # one value for all samples
        return Column(entries)
    rows: list[dict[str, Any] | None] = []
    for index in range(samples):
        parts = {name: column.at(index) for name, column in columns.items()}
        rows.append(present(parts) or None)
    return Column(rows)


class TokenDecoder:
    """Calls the user's decode function; a failure costs one text, nothing else.

    Args:
        decode: Callable from token ids to text, or ``None``.
        count_drop: Notified of each failure.
    """

    def __init__(
        self, decode: Callable[[Any], Any] | None, count_drop: Callable[[str], None]
    ) -> None:
        self._decode = decode
        self._count_drop = count_drop

    def text(self, token_ids: Sequence[Any]) -> str:
        """Return the text of *token_ids*.

        A placeholder without a function, or where it raises, which is counted as
        ``rollout_decode``. What the function returns is text as such, the first entry of a list
        (``batch_decode``), or ``str()`` of anything else; what that raises is raised.
        """
        if self._decode is None:
            return f"[{len(token_ids)} tokens; pass decode= to see them]"
        try:
            decoded = self._decode(token_ids)
        except any_error_but_signals() as exc:  # the user's code
            self._count_drop("rollout_decode")
            return f"[{len(token_ids)} tokens that could not be decoded: {type(exc).__name__}]"
        if isinstance(decoded, list) and decoded:  # batch_decode
            decoded = cast("list[object]", decoded)[0]
        if isinstance(decoded, str):
            return decoded
        return str(cast("object", decoded))


def token_ids(value: object) -> list[Any] | None:
    """Return a row of token ids as a list; ``None`` when *value* is not such a row, or empty.

    What ``tolist()`` of an array raises is raised: the caller counts the rollout or the call.
    """
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    if isinstance(value, (list, tuple)):
        return list(cast("Sequence[Any]", value)) or None
    return None


def is_blank(prompt: object) -> bool:
    """Return whether a prompt is blank."""
    try:
        return not prompt
    except any_error_but_signals():  # an array has no truth value, but it has entries
        return not token_ids(prompt)


# Assignment of entries of parallel lists to rollouts as turns, and of prompts and groups to
# rollouts.


def folded(trajectory_ids: Column, entries: int) -> list[list[int]]:
    """Return the entries of each rollout.

    Entries of one trajectory id are its turns, others are rollouts of one. Turns need not follow
    one another: step-wise training shuffles them. Rollouts are in the order of their first turns.
    """
    if trajectory_ids.values is None:
        return [[entry] for entry in range(entries)]
    turns: list[list[int]] = []
    turns_by_id: dict[str, list[int]] = {}
    for entry in range(entries):
        name = coerce.name(trajectory_ids.at(entry))
        if name is not None and name in turns_by_id:
            turns_by_id[name].append(entry)
            continue
        turns.append([entry])
        if name is not None:
            turns_by_id[name] = turns[-1]
    return turns


def prompts_of(
    turns: Sequence[Sequence[int]],
    lists: Mapping[str, Column],
    name: str,
    entries: int,
) -> list[list[int]]:
    """Return the indices of each rollout's prompts: that of its first turn, and of later ones that have their own.

    By trajectory id, when the prompts have them: several of one id are those of its turns. One for
    one, when there are as many prompts as entries or rollouts. Else by the number of samples of
    each prompt, else in blocks: rollout ``//`` samples per prompt. Nothing raises: an index beyond
    the prompts becomes that of the last one, and 0 where there are no prompts.

    Args:
        turns: The entries of each rollout.
        lists: The lists of the call.
        name: Name of the list of prompts among them.
        entries: Number of entries.
    """
    total = len(lists[name])
    last = max(total - 1, 0)
    if total == entries:
        indices = [list(turn) for turn in turns]
    else:
        first_ones = list(range(total))
        if total != len(turns):
            first_ones = _by_number(len(turns), total, lists["samples_per_prompt"])
        # What lies beyond the prompts belongs to the last one.
        first_ones += [last] * (len(turns) - len(first_ones))
        indices = [[min(index, last)] for index in first_ones]
    by_trajectory: dict[str, list[int]] = {}
    ids = islice(lists["prompt_trajectory_ids"].values or (), total)
    for prompt, prompt_id in enumerate(map(coerce.name, ids)):
        if prompt_id is not None:
            by_trajectory.setdefault(prompt_id, []).append(prompt)
    if by_trajectory:
        for rollout, turn in enumerate(turns):
            trajectory_id = coerce.name(lists["trajectory_ids"].at(turn[0]))
            indices[rollout] = by_trajectory.get(trajectory_id or "", indices[rollout])
    return indices


def _by_number(rollouts: int, prompts: int, sizes: Column) -> list[int]:
    """Return the index of a prompt for each rollout by the number of both, as far as the prompts go.

    Fewer than *rollouts* when the sizes of the prompts add up to less; the caller assigns the rest.
    A size that is not a number counts as 0, and without any size the rollouts are divided evenly.
    """
    indices: list[int] = []
    for prompt, size in enumerate(sizes.values or ()):
        indices += [prompt] * min(max(coerce.integer(size) or 0, 0), rollouts)
    if indices:
        return indices[:rollouts]
    per_prompt = coerce.integer(sizes.at(0)) if sizes.values is None else None
    block = max(per_prompt or rollouts // max(prompts, 1), 1)
    return [rollout // block for rollout in range(rollouts)]


def group_names(prompts: Sequence[object]) -> list[str]:
    """Return the group of each prompt: equal prompts share one in every process and at every step.

    So the samples of a prompt meet although several workers log them. Different prompts have
    different groups. What ``tolist()`` of a prompt raises is raised: `Run.log_generations` then
    counts the whole call.
    """
    names: dict[object, str] = {}
    groups: list[str] = []
    for prompt in prompts:
        # Lists often repeat one object: it is hashed once. All are alive here, so that ids are
        # unique.
        prompt_key = prompt if type(prompt) is str else id(prompt)
        if prompt_key not in names:
            # The whole prompt: templates give many prompts the same beginning, end and length.
            digest = hashlib.sha1(_content(prompt), usedforsecurity=False)
            names[prompt_key] = digest.hexdigest()[:12]
        groups.append(names[prompt_key])
    return groups


def positions_in_groups(groups: Sequence[str | None]) -> list[int]:
    """Return the index of each rollout within its group, in the order of the batch.

    Those without a group count together.
    """
    counts: dict[str | None, int] = {}
    indices: list[int] = []
    for group in groups:
        index = counts.get(group, 0)
        indices.append(index)
        counts[group] = index + 1
    return indices


def _content(prompt: object) -> bytes:
    """Return what distinguishes a prompt: its text, its token ids, or the key of its content.

    Token ids are the same group as a list, a tuple or an array. Pixels are read by `content_key`,
    which hashes them: as a list they would take seconds.
    """
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "replace")
    is_pixels = is_array(prompt) and len(tuple(prompt.shape)) > 1
    ids = None if is_pixels else token_ids(prompt)
    if ids is not None and set(map(type, ids)) == {int}:
        return repr(ids).encode()
    return content_key(prompt)
