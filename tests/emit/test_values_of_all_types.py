"""Keys and values of every type are one text or number in every call, or counted; nested values are bounded."""

from __future__ import annotations

import enum
import time
from collections import UserString
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.emit.encode.coerce import name
from otel_bridge.emit.encode.summary import summary_of
from otel_bridge.emit.encode.values import flatten
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.translation.metrics.configs import TOO_LARGE, Configs
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.values.plain import CountKeyedDrop
from support.trainers.emit_rollout_doubles import MemoryRun, log_rollouts


class Place(enum.Enum):
    INNER = 1


class Thing:
    pass


class _State(dict[str, Any]):
    def set(self, key: str, value: object) -> None:
        self[key] = value


ENTRIES: dict[str, Any] = {"rows": flatten, "config": config_of, "summary": summary_of}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (np.int64(0), "0"), (np.uint8(7), "7"), (np.float32(0.5), "0.5"), (np.bool_(True), "True"),
        (np.datetime64("2024-01-01"), "2024-01-01"), (frozenset({1}), "frozenset({1})"), (range(3), "range(0, 3)"),
        (b"ab", "ab"), (Place.INNER, "INNER"), ((1, 2), "(1, 2)"), (None, "None"),
        (list[int], "list[int]"), (UserString("ab"), "ab"), (Thing(), f"<{__name__}.Thing>"),
    ],
)  # fmt: skip
def test_a_key_of_any_type_is_the_same_text_everywhere(
    entry: str, key: object, text: str
) -> None:
    drops: list[object] = []
    assert ENTRIES[entry]({key: 1}, lambda *drop: drops.append(drop)) == {text: 1}
    assert drops == []


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("first", "second"), [(1, "1"), (True, "True"), (None, "None"), (b"ab", "ab")]
)
def test_of_two_keys_that_become_equal_one_is_counted(
    entry: str, first: object, second: object
) -> None:
    drops: list[object] = []
    values = ENTRIES[entry]({first: 1, second: 2}, lambda *drop: drops.append(drop))
    assert values == {str(second): 2}
    assert drops == [("same_key", 1, second)]


def test_a_column_of_a_table_is_read_whole() -> None:
    numbers = [*range(30), None]  # pyarrow's own text leaves out those in the middle
    column = pa.array(numbers)
    drops: list[str] = []

    config = config_of(
        {
            "array": column,
            "parts": pa.chunked_array([numbers]),
            "table": pa.table({"a": column}),
        },
        lambda reason, _number, _key: drops.append(reason),
    )

    assert config == {"array": numbers, "parts": numbers, "table": {"a": numbers}}
    assert drops == []


@pytest.mark.parametrize(
    ("twice", "key"),
    [
        (pd.Series([1, 2], index=["a", "a"]), "twice.a"),
        (pd.DataFrame({"v": [1, 2]}, index=["a", "a"]), "twice.v.a"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "twice.a"),
    ],
    ids=["index", "index of a frame", "columns"],
)
def test_a_label_that_comes_twice_is_counted(twice: object, key: str) -> None:
    drops: list[tuple[str, int, str]] = []

    config_of({"twice": twice}, lambda *drop: drops.append(drop))

    assert drops == [("same_key", 1, key)]


def test_an_empty_key_of_a_config_is_counted() -> None:
    drops: list[object] = []
    assert config_of({"": 5, "a": 1}, lambda *drop: drops.append(drop)) == {"a": 1}
    assert drops == [("empty_key", 1, "")]


def _fact(value: object, drop: CountKeyedDrop) -> object:
    content_filter = ContentFilter(ContentPolicy(), 100_000)
    facts = content_filter.facts(value, "facts")
    content_filter.losses.report(drop)
    return facts


def _rollout(**fields: Any) -> Callable[[object, CountKeyedDrop], object]:
    """Return an entry that records a rollout with the value in the place of ``...``."""

    def entry(value: object, drop: CountKeyedDrop) -> object:
        run = MemoryRun()
        filled = {
            name: value if field is ... else field for name, field in fields.items()
        }
        log_rollouts(run, [Rollout(**{"messages": "hi", **filled})])
        for reason, number_of_drops in run.drops.items():
            drop(reason, number_of_drops, "")
        return None

    return entry


def _arguments(value: object, drop: CountKeyedDrop) -> object:
    call = {"function": {"name": "f", "arguments": value}}
    return _rollout(messages=[{"role": "assistant", "tool_calls": [call]}])(value, drop)


_BOUNDED: dict[str, Callable[[object, CountKeyedDrop], object]] = {
    **ENTRIES, "facts": _fact, "metadata": _rollout(metadata=...), "tools": _rollout(tools=...),
    "reward": _rollout(reward=...), "rewards": _rollout(rewards=...), "advantage": _rollout(advantage=...),
    "arguments": _arguments,
}  # fmt: skip


@pytest.mark.parametrize("entry", _BOUNDED)
@pytest.mark.parametrize(
    ("kind", "width", "levels"),
    [(list, 10, 10), (dict, 10, 10), (list, 2, 34), (dict, 2, 34)],
)
def test_collections_that_repeat_one_another_are_clipped_and_counted(
    entry: str, kind: type, width: int, levels: int
) -> None:
    value: object = 1.0
    for _ in range(levels):
        value = (
            [value] * width
            if kind is list
            else {f"k{index}": value for index in range(width)}
        )
    drops: list[object] = []
    start_s = time.process_time()
    _BOUNDED[entry]({"a": value}, lambda *drop: drops.append(drop))
    assert drops
    # 50 ms on a quiet machine; without the bound the call takes minutes.
    assert time.process_time() - start_s < 20


@pytest.mark.parametrize(
    "field", ["id", "group", "model", "finish_reason", "error", "dataset"]
)
def test_a_name_that_is_a_nest_of_lists_is_bounded(field: str) -> None:
    value: object = 1.0
    for _ in range(10):
        value = [value] * 10
    run = MemoryRun()
    start_s = time.process_time()
    log_rollouts(run, [Rollout(messages="hi", **{field: cast("Any", value)})])
    assert len(run.roots) == 1
    assert time.process_time() - start_s < 20


def test_long_names_that_differ_at_their_end_remain_two() -> None:
    first = name(["x" * 2000, 1])
    second = name(["x" * 2000, 2])
    assert first is not None
    assert len(first) == 1024
    assert first != second


def test_maps_that_replace_others_keep_the_bound_of_leaves_and_count_the_rest() -> None:
    state = _State()
    configs = Configs(cast("Any", state))
    for seq in range(3):
        maps = {f"{seq}-{index}": {"x": index} for index in range(15_000)}
        configs.merge(ValuesEvent(Origin(seq, "a", seq), None, maps, replaces=True))
    leaves = state.get("config-leaf/")
    assert isinstance(leaves, dict)
    assert len(leaves) <= 20_000
    assert state[f"drop/{TOO_LARGE}"] == 10_000 + 15_000 + 15_000
