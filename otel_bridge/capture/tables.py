"""Tables of prompts and responses -> rollouts: what each column means, and what becomes of every cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from otel_bridge.capture.media import media_of
from otel_bridge.capture.metric_axes import whole
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.media.values import Html, Markdown, Media, Table, media_in
from otel_bridge.messages.fields import plain
from otel_bridge.messages.reader import is_message
from otel_bridge.values import scalars

_PROMPT_NAME = re.compile(
    r"(?:^|.*[_./ -])(?:prompt|input|question|query|instruction|problem|context)s?(?:_text)?$"
)
_RESPONSE_NAME = re.compile(
    r"(?:^|.*[_./ -])(?:response|completion|output|generation|generated|answer|prediction)s?(?:_text)?$"
)
_TEXT_NAMES = frozenset(
    {"text", "texts", "sample", "samples", "generated_text", "conversation", "messages"}
)
_REWARD_NAME = re.compile(r"(?:^|.*[_./ -])(?:reward|score|return)s?(?:$|[_./ -].*)")
_ADVANTAGE_NAMES = frozenset({"advantage", "advantages"})
_STEP_NAMES = frozenset(
    {"step", "global_step", "training_step", "train_step", "iteration"}
)
_NOT_REWARD = re.compile(
    r"(?:.*[_./ -])?(?:len|lengths?|sizes?|count|tokens?|steps?|epochs?|iter|iteration|index|idx|ids?|uid|rank|seed"
    r"|turns?|version|time|timestamp|seconds|duration)|(?:num|n|len|idx|index)[_./ -].+"
)
"""Sizes, counters, identities and times, whose numbers are not rewards."""
_TRUTH_NAME = re.compile(r"ground|truth|label|target|reference|gold|expected")
_WIDE = re.compile(r"(.+?)[_ ]?(\d+)$")
_REWARD_KEY = re.compile(r"(?:^|/)rewards/(.+)/mean$")
_CLOCKS = frozenset({*_STEP_NAMES, "epoch"})
_SPLIT = re.compile(r"(?:^|/)(train|eval|test|val(?!u))", re.IGNORECASE)
_EVAL_TABLES = frozenset({"sample_completions"})
"""Tables of an evaluation whose key does not say so: open-instruct's."""
_PLAIN = frozenset({str, int, float, bool})
_SHOWN_ONLY = frozenset({"wandb", "trackio", "plotly", "bokeh", "PIL", "matplotlib"})
"""Packages whose objects are shown, and have no text."""
CountCell: TypeAlias = Callable[[str, str], None]
"""Callable with a column and the type of a cell that has no counterpart."""

# What a column is. One of whole texts has prompt and response in one.
_PROMPTS = "prompts"
_RESPONSES = "responses"
_REWARDS = "rewards"
_ADVANTAGES = "advantages"
_ROW_STEP = "step"
_WHOLE_TEXTS = "texts"
_FACT = ""
_Sample: TypeAlias = "dict[int, str]"
"""Columns of one sample in a row: index to what it is, a parameter of `log_generations` or one of the above."""


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

    Its methods raise what reading a cell of the program raises; the caller counts the table as
    ``rollout_unreadable``.

    Attributes:
        labels: Names of the columns, all different.
        names: The same in lower case, those of a wide table without their numbers: names of rewards.
        samples: Columns of each sample in a row: several of a wide table.
    """

    labels: Sequence[str]
    names: Sequence[str]
    samples: Sequence[_Sample]

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
        names = _distinct([label.strip().lower() for label in labels])
        samples, stems = _wide_samples(names)
        if not samples:
            stems = names
            sample = _sample_of(names, range(len(names)))
            if _ADVANTAGES in sample.values():
                # One column for each reward function, under any name.
                reward_columns = _reward_columns(sample, names, rows, logged)
                sample |= dict.fromkeys(reward_columns, _REWARDS)
            samples = [sample] if sample else []
        whole_rows = [row for row in rows if len(row) == len(names)]
        has_texts = all(
            _holds_texts(sample, row) for row in whole_rows for sample in samples
        )
        if samples and has_texts:
            return cls(labels, stems, samples)
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
            for sample in self.samples:
                step = whole(_cell(sample, _ROW_STEP, row))
                is_prompted = not is_missing(_cell(sample, _PROMPTS, row))
                group = groups.setdefault((step, is_prompted), TableRollouts(step))
                self._add(group.columns, sample, row, count)
                if not is_prompted:
                    group.columns.pop(_PROMPTS, None)
                if ids:
                    group.columns.setdefault("ids", []).append(ids[number])
        return list(groups.values())

    def _add(
        self,
        columns: dict[str, Any],
        sample: _Sample,
        row: Sequence[Any],
        count: CountCell,
    ) -> None:
        """Append one sample to the lists of `log_generations`.

        A cell that cannot be what its column is counts as a fact of the sample. Each list gets one
        entry, ``None`` where the cell is empty or not a number: the lists are parallel. With one
        reward column its value is the reward; of several each is a part.
        """
        values: dict[str, Any] = {}
        rewards: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        for index, kind in sample.items():
            cell: Any = None if is_missing(row[index]) else row[index]
            if not _can_be(kind, cell):
                facts[self.labels[index]] = cell
                cell = None
            if kind == _REWARDS:
                rewards[self.names[index]] = cell
            elif kind not in {_FACT, _ROW_STEP}:
                values[kind] = cell
        if len(rewards) == 1:
            values[_REWARDS] = next(iter(rewards.values()))
        elif rewards:
            _append_to(columns.setdefault(_REWARDS, {}), rewards)
        values["metadata"] = _facts_of(facts, count) or None
        _append_to(columns, values)

    def evaluation_of(self, column: str) -> str | None:
        """Return as which evaluation a later cell of *column* completes its rollout.

        ``None`` when it cannot.

        Not for a wide table, whose row has several rollouts; nor for prompt, response and step,
        which an evaluation cannot change. One column of rewards is the reward itself, as in
        `rollouts`; of several, each is named.
        """
        if len(self.samples) > 1 or column not in self.labels:
            return None
        sample = self.samples[0]
        kind = sample[self.labels.index(column)]
        if kind in {_PROMPTS, _RESPONSES, _ROW_STEP}:
            return None
        if kind == _ADVANTAGES:
            return "advantage"
        if kind == _REWARDS and list(sample.values()).count(_REWARDS) == 1:
            return "reward"
        return column


def _distinct(labels: Sequence[str]) -> list[str]:
    """Return the names of columns, a repeated one with its index.

    wandb and pandas allow equal names, and facts of one name would replace each other.
    """
    return [
        label if label not in labels[:index] else f"{label}_{index}"
        for index, label in enumerate(labels)
    ]


def has_step(columns: Iterable[Any]) -> bool:
    """Return whether a column is the step of its row.

    Without one, equal rows of two steps are two samples (`SeenTables`).
    """
    return any(str(name).strip().lower() in _STEP_NAMES for name in columns)


def names_evaluation(key: str) -> bool:
    """Return whether a key of rows, tables or traces names an evaluation: the one reader of such names.

    The first of its parts that begins with ``train``, ``eval``, ``test`` or ``val`` decides, in any
    case: SkyRL logs ``trajectories/eval``. ``value`` is not one of them.
    """
    match = _SPLIT.search(key)
    return match is not None and match[1].lower() != "train"


def split_of(key: str, row: Iterable[str] = (), row_before: Iterable[str] = ()) -> str:
    """Return the split of a table.

    Args:
        key: Its key, which may name the split.
        row: Keys logged with it, which name the split where *key* has no prefix: open-instruct logs
            its completions so.
        row_before: Keys of the row logged before, which do so when *row* has none: TRL logs its
            completions so.
    """
    if names_evaluation(key) or key in _EVAL_TABLES:
        return "eval"
    if "/" in key:
        keys = []
    else:
        keys = _without_clocks(row) or _without_clocks(row_before)
    if keys and all(map(names_evaluation, keys)):
        return "eval"
    return "train"


def _without_clocks(row: Iterable[str]) -> list[str]:
    """Return the names without steps and epochs.

    Programs log those under one name in training and evaluation, so that they name no split.
    """
    return [name for name in row if name.rpartition("/")[2] not in _CLOCKS]


def _sample_of(names: Sequence[str], indices: Iterable[int]) -> _Sample:
    """Return what each of the columns *indices* is.

    Empty when no response, or nothing besides it, is found: a response alone, such as ``text``
    beside a label, may be data of a classifier.

    Args:
        names: Names of all columns in lower case.
        indices: The columns to look at.
    """
    sample: _Sample = {}
    for index in indices:
        kind = _kind_of(names[index])
        # Of several columns of a kind, except rewards, the first counts.
        is_repeated = kind != _REWARDS and kind in sample.values()
        sample[index] = _FACT if is_repeated else kind
    for index, kind in sample.items():
        # A column of whole texts counts only where no column is the response.
        if kind == _WHOLE_TEXTS:
            is_response = _RESPONSES not in sample.values()
            sample[index] = _RESPONSES if is_response else _FACT
    kinds = set(sample.values())
    if _RESPONSES in kinds and (_PROMPTS in kinds or _REWARDS in kinds):
        return sample
    return {}


def _reward_columns(
    sample: _Sample,
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    logged: Iterable[str],
) -> list[int]:
    """Return the columns of reward functions among the facts: those of known functions, else those of numbers.

    TRL logs the mean of each function by name. Without such names all columns of numbers count,
    except sizes, counters and the like (`_NOT_REWARD`). Empty when no column is left.
    """
    matches = map(_REWARD_KEY.search, logged)
    functions = {match[1].lower() for match in matches if match is not None}
    facts = [index for index, kind in sample.items() if kind == _FACT]
    # TRL puts columns of its data set beside those of its reward functions.
    of_functions = [index for index in facts if names[index] in functions]
    return of_functions or [
        index
        for index in facts
        if _has_numbers(rows, index) and not _NOT_REWARD.fullmatch(names[index])
    ]


def _kind_of(name: str) -> str:
    """Return what the column *name*, in lower case, is; `_FACT` for any other name.

    A column of the expected answer, such as ``correct_answer_label``, is not the response.
    """
    if name in _ADVANTAGE_NAMES:
        return _ADVANTAGES
    if name in _STEP_NAMES:
        return _ROW_STEP
    if _REWARD_NAME.match(name):
        return _REWARDS
    if _PROMPT_NAME.match(name):
        return _PROMPTS
    if _RESPONSE_NAME.match(name) and not _TRUTH_NAME.search(name):
        return _RESPONSES
    return _WHOLE_TEXTS if name in _TEXT_NAMES else _FACT


def _wide_samples(names: Sequence[str]) -> tuple[list[_Sample], list[str]]:
    """Return the columns of each sample of a wide table, and the names of all columns without numbers.

    Such as ``input_1``, ``output_1``, ``score_1``, ``input_2``, …. Columns of no sample are facts,
    or the step, of every one.

    Without samples if no number has the columns of one. Rewards are recognised by their names only.
    """
    numbered: dict[str, list[int]] = {}
    stems = list(names)
    for index, name in enumerate(names):
        match = _WIDE.match(name)
        if match is not None:
            stems[index] = match[1].rstrip("_ ")
            numbered.setdefault(match[2], []).append(index)
    samples = [_sample_of(stems, indices) for indices in numbered.values()]
    samples = [sample for sample in samples if sample]
    shared: _Sample = dict.fromkeys(range(len(names)), _FACT)
    step = next(
        (index for index, name in enumerate(names) if name in _STEP_NAMES), None
    )
    if step is not None:
        shared[step] = _ROW_STEP
    for sample in samples:
        for index in sample:
            shared.pop(index)
    return [{**sample, **shared} for sample in samples], stems


def _cell(sample: _Sample, kind: str, row: Sequence[Any]) -> Any:
    """Return the first cell of a kind; ``None`` where the sample has no such column."""
    for index, column_kind in sample.items():
        if column_kind == kind:
            return row[index]
    return None


def _can_be(kind: str, cell: Any) -> bool:
    """Return whether *cell* can be what its column is; if not, it is a fact of its sample."""
    if kind in {_REWARDS, _ADVANTAGES}:
        return coerce.number(cell) is not None
    if kind == _ROW_STEP:
        return whole(cell) is not None
    return kind != _FACT


def _holds_texts(sample: _Sample, row: Sequence[Any]) -> bool:
    """Return whether prompt and response of a row are texts or messages, as far as the row has them.

    An empty cell decides nothing: programs log rows before their answers are there.
    """
    cells = [_cell(sample, kind, row) for kind in (_PROMPTS, _RESPONSES)]
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
    """Return whether a cell is a text or messages.

    An empty list is text; a mapping or list in another form than messages is not.
    """
    cell = plain(cell)
    if isinstance(cell, list | tuple):
        entries = cast("Sequence[Any]", cell)
        return all(isinstance(entry, str) or is_message(entry) for entry in entries)
    return isinstance(cell, str) or is_message(cell)


def _has_numbers(rows: Sequence[Sequence[Any]], index: int) -> bool:
    """Return whether a column has numbers only, and at least one: it may be a reward.

    Strings of digits do not count: a reward function returns numbers.
    """
    cells: list[Any] = [row[index] for row in rows if row[index] is not None]
    return bool(cells) and all(hasattr(cell, "__float__") for cell in cells)


def _append_to(columns: dict[str, Any], sample: Mapping[str, Any]) -> None:
    """Append the values of one sample, each to the list of its name."""
    for name, value in sample.items():
        columns.setdefault(name, []).append(value)


def _facts_of(facts: Mapping[str, Any], count: CountCell) -> dict[str, Any]:
    """Return those of *facts* that are not empty.

    Those that only a tracker's page can show are counted. HTML and Markdown are kept as their text,
    which every tracker shows.
    """
    cells: dict[str, Any] = {}
    for name, cell in facts.items():
        if cell is None:
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
