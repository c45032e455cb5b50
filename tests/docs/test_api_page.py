"""The page of the Python API has every public name, what public calls return, and every argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import otel_bridge
from otel_bridge import capture as capture_package
from otel_bridge.capture.hook import capture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
RETURNED: Final = (otel_bridge.LiveRollout, otel_bridge.ChatSpan, otel_bridge.ToolSpan)
FOR_EMISSION: Final = {
    "after_fork", "append", "call_before_end", "count_after_end", "count_drop", "end_part",
    "has_ended", "last_step", "live_tracer", "next_event_seq", "next_step", "recorder",
    "rollout_options",
}  # fmt: skip
"""Members that only other modules of otel-bridge use."""


def entries() -> dict[str, str]:
    """The entries of the page, without the path of their modules, and the options of each."""
    found = re.findall(
        r"^::: (?:\w+\.)*(\w+)\n((?:    .*\n)*)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    return dict(found)


def calls() -> Iterator[tuple[str, Callable[..., object]]]:
    """The public functions, and the public methods of classes that a program gets hold of."""
    for name in otel_bridge.__all__:
        value: Any = capture if name == "capture" else getattr(otel_bridge, name)
        if inspect.isfunction(value):
            yield name, value
    for kind in (otel_bridge.Run, otel_bridge.Table, *RETURNED):
        for name, value in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in FOR_EMISSION:
                yield f"{kind.__name__}.{name}", value


def test_every_public_name_has_an_entry() -> None:
    assert sorted(set(otel_bridge.__all__) - set(entries())) == []


def test_every_class_that_a_public_call_returns_has_an_entry() -> None:
    returned = {
        word
        for _, call in calls()
        for word in re.findall(
            r"[A-Z]\w+", str(inspect.signature(call).return_annotation)
        )
        if word not in {"AbstractContextManager", "Generator", "None"}
    }

    assert returned >= {"Run", "LiveRollout", "ChatSpan", "ToolSpan"}
    assert sorted(returned - set(entries())) == []


@pytest.mark.parametrize(
    "kind", [otel_bridge.Run, *RETURNED], ids=lambda kind: kind.__name__
)
def test_the_entry_of_a_class_names_every_member_that_a_program_may_use(
    kind: type[object],
) -> None:
    (listed,) = re.findall(r"members: \[(.*)\]", entries()[kind.__name__])
    members = inspect.getmembers(
        kind, lambda value: inspect.isfunction(value) or isinstance(value, property)
    )

    assert sorted(
        {name for name, _ in members if not name.startswith("_")} - FOR_EMISSION
    ) == sorted(listed.split(", "))


@pytest.mark.parametrize(
    ("name", "call"), [pytest.param(*one, id=one[0]) for one in calls()]
)
def test_every_argument_of_a_public_call_is_explained_or_the_method_is_named(
    name: str, call: Callable[..., object]
) -> None:
    text = inspect.getdoc(call) or ""
    arguments = [
        one for one in inspect.signature(call).parameters if one not in {"self", "_"}
    ]

    missing = [
        one
        for one in arguments
        if not re.search(rf"^ +{one}: ", text.partition("Args:")[2], re.MULTILINE)
    ]
    assert missing == [] or f"see `Run.{name}`" in text


@pytest.mark.parametrize(
    "span",
    [
        otel_bridge.ChatSpan(None, "policy", {}),
        otel_bridge.ToolSpan(None, "calculator", {}),
    ],
)
def test_every_field_of_an_open_span_is_explained(
    span: otel_bridge.ChatSpan | otel_bridge.ToolSpan,
) -> None:
    explained = re.findall(
        r"^ +(\w+): ",
        (inspect.getdoc(span) or "").partition("Attributes:")[2],
        re.MULTILINE,
    )

    assert sorted(explained) == sorted(
        name for name in vars(span) if not name.startswith("_")
    )


def test_the_function_of_the_page_is_the_one_that_programs_call() -> None:
    assert inspect.signature(capture) == inspect.signature(
        type(capture_package).__call__.__get__(capture_package)
    )
