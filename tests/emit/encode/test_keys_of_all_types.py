"""Keys of every type are one text in rows, configs and summaries, or counted; shared collections are bounded."""

from __future__ import annotations

import enum
from typing import Any, cast

import numpy as np
import pytest

from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.emit.encode.coerce import number
from otel_bridge.emit.encode.summary import summary_of
from otel_bridge.emit.encode.values import flatten
from otel_bridge.translation.metrics.configs import TOO_LARGE, Configs
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent


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
        (list[int], "list[int]"),        (Thing(), f"<{__name__}.Thing>"),
    ],
)  # fmt: skip
def test_a_key_of_any_type_is_the_same_text_everywhere(entry: str, key: object, text: str) -> None:
    drops: list[object] = []
    assert ENTRIES[entry]({key: 1}, lambda *drop: drops.append(drop)) == {text: 1}
    assert drops == []


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(("first", "second"), [(1, "1"), (True, "True"), (None, "None"), (b"ab", "ab")])
def test_of_two_keys_that_become_equal_one_is_counted(entry: str, first: object, second: object) -> None:
    drops: list[object] = []
    values = ENTRIES[entry]({first: 1, second: 2}, lambda *drop: drops.append(drop))
    assert values == {str(second): 2}
    assert drops == [("same_key", 1, second)]


def test_an_empty_key_of_a_config_is_counted() -> None:
    drops: list[object] = []
    assert config_of({"": 5, "a": 1}, lambda *drop: drops.append(drop)) == {"a": 1}
    assert drops == [("empty_key", 1, "")]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", [list, dict])
def test_collections_that_repeat_one_another_are_clipped_and_counted(entry: str, kind: type) -> None:
    value: object = 1.0
    for _ in range(10):
        value = [value] * 10 if kind is list else {f"k{index}": value for index in range(10)}
    drops: list[object] = []
    ENTRIES[entry]({"a": value}, lambda *drop: drops.append(drop))
    assert drops
    assert number(value) is None


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
