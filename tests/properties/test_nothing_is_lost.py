"""When `drops` is empty, everything that a program handed over is in the exporter; else what is not is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from otel_bridge.emit.run import Run
from support.values.drawn_values import MISSING, Marks, Node, drawn, flat, mappings, nested, row_values
from support.values.recorded_run import RunRecorder

EXAMPLES = settings(
    max_examples=8,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunRecorder]:
    recorder = RunRecorder(tmp_path_factory.mktemp("runs"))
    with recorder.prepared():
        yield recorder


def check(runs: RunRecorder, nodes: list[Node], record: Callable[[Run, Any], None], *names: str) -> None:
    """Record each of *nodes* in one run: each mark is in ``file``, or was counted with a key above it."""
    marks = Marks()
    values = [drawn(node, marks) for node in nodes]
    found = runs.recorded(lambda run: [record(run, value.value) for value in values])
    lost = [value.uncounted(found.text, found.dropped_keys, names) for value in values]
    shown = f"{found.drops}, {found.first_keys}\n{found.text}"
    assert not any(lost), f"{lost} are lost; {shown}"
    assert found.first_keys.keys() == found.drops.keys(), shown
    assert "internal_error" not in found.drops, shown


def several(values: st.SearchStrategy[Node]) -> st.SearchStrategy[list[Node]]:
    return st.lists(mappings(values, ("dict",)), min_size=1, max_size=10)


FACTS = nested().filter(lambda node: node.kind not in MISSING)
"""A fact that is missing is not a fact."""


NESTED: dict[str, Callable[[Run, Any], None]] = {
    "config": lambda run, value: run.log_config(value),
    "metadata": lambda run, value: run.log_rollouts([{"messages": "hi", "metadata": value}]),
    "tools": lambda run, value: run.log_rollouts([{"messages": "hi", "tools": value}]),
}


@pytest.mark.parametrize("entry", NESTED)
@EXAMPLES
@given(nodes=several(FACTS))
def test_every_nested_leaf_is_found_or_counted(runs: RunRecorder, entry: str, nodes: list[Node]) -> None:
    check(runs, nodes, NESTED[entry])


@EXAMPLES
@given(nodes=several(flat()))
def test_every_value_of_a_summary_is_found_or_counted(runs: RunRecorder, nodes: list[Node]) -> None:
    check(runs, nodes, lambda run, value: run.summary(value))


@EXAMPLES
@given(nodes=several(row_values()))
def test_every_value_of_a_row_is_found_or_counted(runs: RunRecorder, nodes: list[Node]) -> None:
    check(runs, nodes, lambda run, value: run.log(value))
