"""A tracker's abilities, asked of its calls and fields, and its errors that a later try cannot mend."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from otel_bridge.capabilities import Capabilities, accepts, incompatibility
from otel_bridge.errors import BlockedError, RetryableError

INSTALL = "pip install 'tracker>=2'"


class Storage:
    @staticmethod
    def write(rows: list[int], *, ids: list[str] | None = None) -> None: ...

    @staticmethod
    def write_in(bucket: str, rows: list[int], **other: object) -> None: ...


def capabilities() -> Capabilities:
    return Capabilities("Tracker 1.0", INSTALL)


def test_a_call_that_takes_the_arguments_is_enough() -> None:
    found = capabilities()

    found.require(Storage, "write", "rows", "ids")

    assert found.degraded == ()


@pytest.mark.parametrize(
    ("call", "arguments", "reason"),
    [
        ("read", (), "Tracker 1.0 has no Storage.read"),
        ("write", ("rows", "run_id"), "Tracker 1.0 has another Storage.write: got an unexpected keyword"),
        ("write_in", ("rows",), "Tracker 1.0 has another Storage.write_in: missing a required argument: 'bucket'"),
    ],
)  # fmt: skip
def test_a_required_call_that_is_missing_is_named_with_what_to_install(
    call: str, arguments: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(BlockedError) as raised:
        capabilities().require(Storage, call, *arguments)

    assert str(raised.value).startswith(reason)
    assert raised.value.help == INSTALL


def test_a_call_with_another_required_argument_still_has_the_ability_that_is_asked_for() -> (
    None
):
    assert accepts(Storage, "write_in", "rows")
    assert not accepts(Storage, "write", "run_id")


def test_an_ability_that_can_be_done_without_is_one_sentence() -> None:
    found = capabilities()

    spans = [
        found.prefer(accepts(Storage, "write", "spans"), "Tracker 1.0 shows no spans")
        for _ in range(2)
    ]
    ids = found.prefer(accepts(Storage, "write", "ids"), "Tracker 1.0 keeps no ids")

    assert (spans, ids, found.degraded) == (
        [False, False],
        True,
        ("Tracker 1.0 shows no spans",),
    )


def raised_by(program: str) -> Exception:
    names: dict[str, object] = {
        "storage": Storage(),
        "Storage": Storage,
        "module": ModuleType("tracker"),
        "some": SimpleNamespace(),
    }
    try:
        exec(program, names)
    except Exception as exc:  # noqa: BLE001  # whichever it is
        return exc
    raise AssertionError(f"{program!r} raised nothing")


@pytest.mark.parametrize(
    "program",
    [
        "import tracker_that_nobody_has",
        "from os import call_of_tomorrow",
        "module.call_of_tomorrow",
        "Storage.call_of_tomorrow",
        "storage.call_of_tomorrow()",
        "Storage.write([], space=1)",
        "Storage.write()",
        "Storage.write([], 1, 2)",
        "from opentelemetry.proto.common.v1.common_pb2 import KeyValue; KeyValue().field_of_tomorrow = True",
        "from opentelemetry.proto.common.v1.common_pb2 import KeyValue; KeyValue(field_of_tomorrow=True)",
    ],
)
def test_a_name_or_an_argument_that_the_tracker_lacks_is_blocked_with_help(
    program: str,
) -> None:
    exc = raised_by(program)

    found = incompatibility(exc, "Tracker 1.0", INSTALL)

    assert found is not None
    assert str(found).startswith("Tracker 1.0 ")
    assert str(exc) in str(found)
    assert found.help == INSTALL


@pytest.mark.parametrize(
    "exc",
    [
        raised_by("None.connection"),
        raised_by("{}.rows"),
        raised_by("len(1)"),
        raised_by("int('x')"),
        AttributeError("the tracker's own words"),
        RetryableError("down"),
        OSError("refused"),
    ],
    ids=str,
)
def test_an_error_of_one_call_is_not_taken_as_one_of_the_version(
    exc: Exception,
) -> None:
    assert incompatibility(exc, "Tracker 1.0", INSTALL) is None


def test_a_dependency_that_the_tracker_itself_cannot_use_has_its_own_help() -> None:
    exc = raised_by("from os import CallOfYesterday")

    found = incompatibility(
        exc, "Tracker 1.0", INSTALL, hints={"CallOfYesterday": "pip install 'os<2'"}
    )

    assert found is not None
    assert found.help == "pip install 'os<2'"
