from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.emit.config.run_request import MAX_NAME_CHARS, usable_name


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        (" sft-7b ", "sft-7b"),
        ("lr\n1e-6\x1b[0m", "lr1e-6[0m"),
        ("a\udcff", "a"),
        (7, "7"),
        (Path("out/sft"), "out/sft"),
        ("n" * MAX_NAME_CHARS, "n" * MAX_NAME_CHARS),
        (" \n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_name_of_a_tracker_or_framework_becomes_one_that_a_run_can_have(
    name: object, usable: str | None
) -> None:
    assert usable_name(name) == usable


def test_two_long_names_remain_two() -> None:
    one = usable_name("n" * 300 + "1")
    two = usable_name("n" * 300 + "2")

    assert one != two
    assert [len(name or "") for name in (one, two)] == [MAX_NAME_CHARS] * 2
