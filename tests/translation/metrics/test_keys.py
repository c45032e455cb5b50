from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.translation.decode.rows import full_key
from otel_bridge.translation.metrics.keys import MAX_AXES, StepAxes, attribute_suffix
from otel_bridge.translation.processes.process import Process
from support.otlp.memory_state import MemoryState


@pytest.mark.parametrize(
    ("role", "key", "rank", "expected"),
    [
        ("trainer", "loss", 0, "trainer/loss"),
        ("trainer", "trainer/loss", 0, "trainer/loss"),
        (None, "loss", 0, "loss"),
        ("trainer", "step", 0, "trainer/step_value"),
        (None, "step", 0, "step_value"),
        ("trainer", "loss", 2, "trainer/loss/rank2"),
        ("trainer", "step", 2, "trainer/step/rank2"),
    ],
)
def test_keys_are_put_under_their_role_and_never_over_its_axis(
    role: str | None, key: str, rank: int, expected: str
) -> None:
    assert full_key(role, key, rank=rank) == expected


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, ""),
        ({"method": "GET", "code": 200}, "/code:200 method:GET"),
        ({"ok": True, "share": 0.5}, "/ok:true share:0.5"),
        ({"url": "/v1/chat"}, "/url:_v1_chat-efa13d"),
        ({"name": ""}, "/name:-cec7ea"),
    ],
)
def test_attributes_become_a_readable_part_of_the_key(
    attributes: dict[str, object], expected: str
) -> None:
    assert attribute_suffix(attributes) == expected


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.text(max_size=80) | st.integers() | st.floats(),
        max_size=6,
    )
)
def test_any_attributes_become_a_part_that_every_tracker_takes(
    attributes: dict[str, object],
) -> None:
    suffix = attribute_suffix(attributes)

    assert re.fullmatch(r"(/[\w.\-: ]+)?", suffix, re.ASCII)
    assert len(suffix) <= 120


def test_two_attributes_that_would_look_the_same_stay_two_keys() -> None:
    assert attribute_suffix({"url": "a/b"}) != attribute_suffix({"url": "a b"})
    assert attribute_suffix({"text": "x" * 500 + "1"}) != attribute_suffix(
        {"text": "x" * 500 + "2"}
    )


def test_axes_and_keys_are_restored_from_the_state() -> None:
    state = MemoryState()
    axes = StepAxes(state, 100)
    axes.register(["trainer/loss"], "trainer/step")
    axes.attempt(Process("i0", "process", "trainer"), "trainer/step", 4)
    axes.advance("trainer/step", 4)
    axes.attempt(Process("i1", "process", "trainer"), "trainer/step", 4)
    axes.flush()

    restored = StepAxes(state, 100)

    assert restored.steps() == {"trainer/step": 4}
    assert state.snapshot() == {
        "axis/trainer/step": 4,
        "furthest/trainer/step": 4,
        "attempt/trainer/step": 2,
        "led/trainer/step": 2,
        "key/trainer/loss": "trainer/step",
    }
    assert restored.attempt(Process("i2", "process", "trainer"), "trainer/step", 4) == 3


def test_axes_and_keys_are_bounded() -> None:
    state = MemoryState()
    axes = StepAxes(state, 10)

    for number in range(MAX_AXES + 50):
        axes.register([f"key{number}"], "step")
        steps = axes.advance(f"role{number}/step", number)

    assert len(axes.steps()) == MAX_AXES
    assert (len(steps), steps[f"role{MAX_AXES + 49}/step"]) == (
        MAX_AXES + 1,
        MAX_AXES + 49,
    )
    assert len(state.items("key/")) == 10


def test_keys_beyond_the_limit_of_a_run_are_left_out_counted_and_the_first_is_named() -> (
    None
):
    state = MemoryState()
    axes = StepAxes(state, max_keys=3)

    admitted = [
        axes.admit({"a": 1.0, "b": 2.0}, "step"),
        axes.admit({"c": 3.0, "d": 4.0, "e": 5.0}, None),
        axes.admit({"a": 6.0, "c": 7.0, "f": 8.0}, "step"),
    ]

    assert admitted == [{"a": 1.0, "b": 2.0}, {"c": 3.0}, {"a": 6.0, "c": 7.0}]
    assert state.snapshot() == {
        "key/a": "step",
        "key/b": "step",
        "drop/too_many_keys": 3,
        "dropkey/too_many_keys": "d",
    }
