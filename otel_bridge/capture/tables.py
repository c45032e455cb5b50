"""Tables of prompts and responses -> rollouts: what each column means, and what becomes of every cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

from otel_bridge.capture.media import media_of
from otel_bridge.capture.metric_axes import whole
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.media.values import Html, Markdown, Media, Table, media_in
from otel_bridge.emit.messages.fields import plain
from otel_bridge.emit.messages.reader import is_message
from otel_bridge.emit.values import scalars

_PROMPT = re.compile(
    r"(?:^|.*[_./ -])(?:prompt|input|question|query|instruction|problem|context)s?(?:_text)?$"
)
_RESPONSE = re.compile(
    r"(?:^|.*[_./ -])(?:response|completion|output|generation|generated|answer|prediction)s?(?:_text)?$"
)
_TEXT = frozenset(
    {"text", "texts", "sample", "samples", "generated_text", "conversation", "messages"}
)
_REWARD = re.compile(r"(?:^|.*[_./ -])(?:reward|score|return)s?(?:$|[_./ -].*)")
_ADVANTAGE = frozenset({"advantage", "advantages"})
_STEP = frozenset({"step", "global_step", "training_step", "train_step", "iteration"})
_NOT_REWARD = re.compile(
    r"(?:.*[_./ -])?(?:len|lengths?|sizes?|count|tokens?|steps?|epochs?|iter|iteration|index|idx|ids?|uid|rank|seed"
    r"|turns?|version|time|timestamp|seconds|duration)|(?:num|n|len|idx|index)[_./ -].+"
)
"""Sizes, counters, identities and times, whose numbers are not rewards."""
_TRUTH = re.compile(r"ground|truth|label|target|reference|gold|expected")
_WIDE = re.compile(r"(.+?)[_ ]?(\d+)$")
_REWARD_KEY = re.compile(r"(?:^|/)rewards/(.+)/mean$")
_CLOCKS = frozenset({*_STEP, "epoch"})
_EVAL = ("val", "eval", "test")
_EVAL_TABLES = frozenset({"sample_completions"})
"""Tables of an evaluation whose key does not say so: open-instruct's."""
_PLAIN = frozenset({str, int, float, bool})
_SHOWN_ONLY = frozenset({"wandb", "trackio", "plotly", "bokeh", "PIL", "matplotlib"})
"""Packages whose objects are shown, and have no text."""
CountCell: TypeAlias = Callable[[str, str], None]
"""Callable with a column and the type of a cell that has no counterpart."""


class _Roles(NamedTuple):
    """Names the columns of one sample by meaning: indices, and names of rewards and of further facts."""

    prompt: int | None
    response: int
    rewards: dict[str, int]
    advantage: int | None
    step: int | None
    facts: dict[str, int]


@dataclass(slots=True)
class TableRollouts:
    """Holds rollouts of one step, with or without prompts, as columns of `log_generations`."""

    step: int | None
    columns: dict[str, Any] = field(default_factory=dict[str, Any])

    def __len__(self) -> int:
        return len(self.columns["responses"])


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Reads the rows of a table of prompts and responses; `of` makes one.

    Attributes:
        labels: Names of the columns, all different.
        samples: Columns of each sample in a row: several of a wide table.
    """

    labels: Sequence[str]
    samples: Sequence[_Roles]

    @classmethod
    def of(
        cls,
        columns: Sequence[Any],
        rows: Sequence[Sequence[Any]],
        logged: Iterable[str] = (),
    ) -> RolloutTable | None:
        """Return the reader of a table; ``None`` when it is not one of prompts and responses.

        Such a table has columns of these names, with texts or messages in them: pictures and
        numbers are not rollouts.

        Args:
            columns: Names of the columns.
            rows: All its rows.
            logged: Keys that were logged before; ``rewards/<name>/mean`` names the column of a
                reward function.
        """
        labels = _distinct([str(name) for name in columns])
        names = [label.strip().lower() for label in labels]
        samples = _wide_roles(names, labels)
        if not samples:
            roles = _roles(
                names, labels, range(len(names)), rows, _reward_functions(logged)
            )
            samples = [] if roles is None else [roles]
        whole_rows = [row for row in rows if len(row) == len(names)]
        has_texts = all(
            _holds_texts(roles, row) for row in whole_rows for roles in samples
        )
        if samples and has_texts:
            return cls(labels, samples)
        return None

    def rollouts(
        self, rows: Iterable[Sequence[Any]], count: CountCell, ids: Sequence[str] = ()
    ) -> list[TableRollouts]:
        """Return the rollouts in *rows* by step.

        A row of another length is counted and left out. A step that is not a number is a fact, and
        its rollouts have the step ``None``, which means that of the call. Rows with and without a
        prompt are apart: among others with prompts, `log_generations` makes no rollout of a sample
        without one.

        Args:
            rows: Rows of the table.
            count: Counts cells that cannot be recorded.
            ids: Ids of the rollouts of *rows*, where a row has one sample.
        """
        groups: dict[tuple[int | None, bool], TableRollouts] = {}
        for number, row in enumerate(rows):
            if len(row) != len(self.labels):
                count("", f"row of {len(row)} cells in place of {len(self.labels)}")
                continue
            for roles in self.samples:
                step = None if roles.step is None else whole(row[roles.step])
                is_prompted = roles.prompt is not None and not is_missing(
                    row[roles.prompt]
                )
                group = groups.setdefault((step, is_prompted), TableRollouts(step))
                _add(group.columns, roles, row, count, is_prompted=is_prompted)
                if ids:
                    group.columns.setdefault("ids", []).append(ids[number])
        return list(groups.values())

    def evaluation_of(self, column: str) -> str | None:
        """Return as which evaluation a later cell of *column* completes its rollout.

        ``None`` when it cannot.

        Not for a wide table, whose row has several rollouts; nor for prompt, response and step,
        which an evaluation cannot change. One column of rewards is the reward itself, as in
        `rollouts`; of several, each is named.
        """
        if len(self.samples) > 1 or column not in self.labels:
            return None
        roles = self.samples[0]
        index = self.labels.index(column)
        if index in {roles.prompt, roles.response, roles.step}:
            return None
        if index == roles.advantage:
            return "advantage"
        if list(roles.rewards.values()) == [index]:
            return "reward"
        return column


def _reward_functions(logged: Iterable[str]) -> set[str]:
    """Return the names of the reward functions whose means were logged, in lower case: TRL logs them so."""
    matches = map(_REWARD_KEY.search, logged)
    return {match[1].lower() for match in matches if match is not None}


def _distinct(labels: Sequence[str]) -> list[str]:
    """Return the names of columns, a repeated one with its index.

    wandb and pandas allow equal names, and facts of one name would replace each other.
    """
    return [
        label if label not in labels[:index] else f"{label}_{index}"
        for index, label in enumerate(labels)
    ]


def has_step(columns: Iterable[Any]) -> bool:
    """Return whether a column is the step of its row."""
    return any(str(name).strip().lower() in _STEP for name in columns)


def split_of(key: str, row: Iterable[str] = (), row_before: Iterable[str] = ()) -> str:
    """Return the split of a table.

    Args:
        key: Its key, which may name the split.
        row: Keys logged with it, which name the split where *key* has no prefix: open-instruct logs
            its completions so.
        row_before: Keys of the row logged before, which do so when *row* has none: TRL logs its
            completions so.
    """
    if key.lower().startswith(_EVAL) or key in _EVAL_TABLES:
        return "eval"
    if "/" in key:
        keys = []
    else:
        keys = _without_clocks(row) or _without_clocks(row_before)
    if keys and all(name.lower().startswith(_EVAL) for name in keys):
        return "eval"
    return "train"


def _without_clocks(row: Iterable[str]) -> list[str]:
    return [name for name in row if name.rpartition("/")[2] not in _CLOCKS]


def _roles(
    names: Sequence[str],
    labels: Sequence[str],
    indices: Iterable[int],
    rows: Sequence[Sequence[Any]],
    functions: Collection[str] = (),
) -> _Roles | None:
    """Return the meaning of the columns *indices*.

    ``None`` when no response, or nothing besides it, is found.

    A response alone, such as ``text`` beside a label, may be data of a classifier.

    Args:
        names: Names of all columns in lower case.
        labels: Their names as given.
        indices: The columns to look at.
        rows: Rows, in which a column of numbers may be a reward.
        functions: Names of reward functions.
    """
    meaning: dict[str, int] = {}
    rewards: dict[str, int] = {}
    unnamed: dict[str, int] = {}
    for index in indices:
        role = _role_of(names[index], meaning)
        if role == "reward":
            rewards.setdefault(names[index], index)
        elif role is not None:
            meaning.setdefault(role, index)
        else:
            unnamed.setdefault(names[index], index)
    prompt = meaning.get("prompt")
    if prompt is None and not rewards:
        return None
    # A column of whole texts counts only where no column is the response.
    response = meaning.get("response", meaning.get("text"))
    if response is None:
        return None
    advantage = meaning.get("advantage")
    if advantage is not None:  # one column for each reward function, under any name
        rewards |= _reward_columns(unnamed, rows, functions)
    step = meaning.get("step")
    used = {prompt, response, advantage, step, *rewards.values()}
    facts = {labels[index]: index for index in indices if index not in used}
    return _Roles(prompt, response, rewards, advantage, step, facts)


def _reward_columns(
    columns: Mapping[str, int],
    rows: Sequence[Sequence[Any]],
    functions: Collection[str],
) -> dict[str, int]:
    """Return the columns of reward functions by name: those of known functions, else those of numbers.

    Without names of functions all columns of numbers count, except sizes, counters and the like
    (`_NOT_REWARD`).
    """
    # TRL puts columns of its data set beside those of its reward functions.
    of_functions = {name: index for name, index in columns.items() if name in functions}
    return of_functions or {
        name: index
        for name, index in columns.items()
        if _numbers(rows, index) and not _NOT_REWARD.fullmatch(name)
    }


def _role_of(name: str, meaning: Collection[str]) -> str | None:
    """Return what a column of that name is.

    ``None`` for any other, and for a second prompt or response.

    A column of the truth, such as ``correct_answer_label``, is not the response.
    """
    if name in _ADVANTAGE:
        return "advantage"
    if name in _STEP:
        return "step"
    if _REWARD.match(name):
        return "reward"
    if "prompt" not in meaning and _PROMPT.match(name):
        return "prompt"
    if "response" not in meaning and _RESPONSE.match(name) and not _TRUTH.search(name):
        return "response"
    return "text" if name in _TEXT else None


def _wide_roles(names: Sequence[str], labels: Sequence[str]) -> list[_Roles]:
    """Return the columns of each sample of a wide table.

    Such as ``input_1``, ``output_1``, ``score_1``, ``input_2``, ….

    Columns of no sample are facts of every one.

    Empty where no number has the columns of a sample. Only columns with such a name are rewards.
    """
    numbered: dict[str, list[int]] = {}
    stems = list(names)
    for index, name in enumerate(names):
        match = _WIDE.match(name)
        if match is not None:
            stems[index] = match[1].rstrip("_ ")
            numbered.setdefault(match[2], []).append(index)
    step = next((index for index, name in enumerate(names) if name in _STEP), None)
    samples: list[_Roles] = []
    of_samples = {step}
    for indices in numbered.values():
        roles = _roles(stems, labels, indices, ())
        if roles is not None:
            samples.append(roles._replace(step=step))
            of_samples.update(indices)
    shared = {
        labels[index]: index for index in range(len(names)) if index not in of_samples
    }
    return [roles._replace(facts={**roles.facts, **shared}) for roles in samples]


def _holds_texts(roles: _Roles, row: Sequence[Any]) -> bool:
    """Return whether prompt and response of a row are texts or messages, as far as the row has them."""
    cells = [
        row[index] for index in (roles.prompt, roles.response) if index is not None
    ]
    return all(is_missing(cell) or _is_text(cell) for cell in cells)


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty.

    Empty are ``None``, what a data frame has for it, an empty text or list.
    """
    if isinstance(cell, str | list | tuple | Mapping):
        return not cell
    if scalars.is_missing(cell):
        return True
    is_number = isinstance(cell, float) or (
        hasattr(cell, "dtype") and not getattr(cell, "shape", None)
    )
    return is_number and cell != cell  # noqa: PLR0124  # a NaN equals no other


def _is_text(cell: Any) -> bool:
    """An empty list is text; a mapping or list in another form than messages is not."""
    cell = plain(cell)
    if isinstance(cell, list | tuple):
        entries = cast("Sequence[Any]", cell)
        return all(isinstance(entry, str) or is_message(entry) for entry in entries)
    return isinstance(cell, str) or is_message(cell)


def _numbers(rows: Sequence[Sequence[Any]], index: int) -> bool:
    """Return whether a column has numbers only, and at least one: it may be a reward."""
    cells: list[Any] = [row[index] for row in rows if row[index] is not None]
    return bool(cells) and all(hasattr(cell, "__float__") for cell in cells)


def _add(
    columns: dict[str, Any],
    roles: _Roles,
    row: Sequence[Any],
    count: CountCell,
    *,
    is_prompted: bool,
) -> None:
    """Append one sample to the lists of `log_generations`.

    What its columns do not mean is a fact of it.

    Each list gets one entry, ``None`` where the cell is empty or not a number: the lists of
    `log_generations` are parallel. With one reward column its value is the reward; of several each
    is a part.
    """
    facts = dict(roles.facts)
    response = row[roles.response]
    sample: dict[str, Any] = {"responses": None if is_missing(response) else response}
    if is_prompted and roles.prompt is not None:
        sample["prompts"] = row[roles.prompt]
    if roles.advantage is not None:
        sample["advantages"] = _number(row, "advantage", roles.advantage, facts)
    if roles.step is not None and whole(row[roles.step]) is None:
        facts["step"] = roles.step
    rewards = {
        name: _number(row, name, index, facts) for name, index in roles.rewards.items()
    }
    if len(rewards) == 1:
        sample["rewards"] = next(iter(rewards.values()))
    elif rewards:
        _append_to(columns.setdefault("rewards", {}), rewards)
    sample["metadata"] = _facts_of(row, facts, count) or None
    _append_to(columns, sample)


def _append_to(columns: dict[str, Any], sample: Mapping[str, Any]) -> None:
    for name, value in sample.items():
        columns.setdefault(name, []).append(value)


def _number(row: Sequence[Any], name: str, index: int, facts: dict[str, int]) -> Any:
    """Return a cell that can be read as a number.

    Any other is a fact under its name, and gives ``None``.
    """
    cell = row[index]
    if coerce.number(cell) is not None:
        return cell
    facts[name] = index
    return None


def _facts_of(
    row: Sequence[Any], facts: Mapping[str, int], count: CountCell
) -> dict[str, Any]:
    """Return the cells of *facts* that are not empty.

    Those that only a tracker's page can show are counted.

    HTML and Markdown are kept as their text, which every tracker shows.
    """
    cells: dict[str, Any] = {}
    for name, index in facts.items():
        cell = row[index]
        if is_missing(cell):
            continue
        media = None if type(cell) in _PLAIN else media_of(cell)
        page_only = _page_only(cell, media)
        if page_only is not None:
            count(name, page_only)
        elif isinstance(media, Html | Markdown):
            cells[name] = str(media.value)
        else:
            cells[name] = cell if media is None else media
    return cells


def _page_only(cell: Any, media: Media | list[Media] | None) -> str | None:
    """Return the type of a cell that only a tracker's page can show, such as a plot; ``None`` for any other.

    A table in a cell counts as such: a rollout holds texts and media, not tables.
    """
    entries: Sequence[Any] = cell if type(cell) in {list, tuple} else (cell,)
    is_table = any(isinstance(medium, Table) for medium in media_in(media) or ())
    for entry in entries:
        kind = cast("type[object]", type(entry))
        package = kind.__module__.partition(".")[0]
        if is_table or (media is None and package in _SHOWN_ONLY):
            return f"{package}.{kind.__name__}"
    return None
