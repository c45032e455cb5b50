"""What holds for every test: which process runs it in parallel, and in which order; fixtures of several rooms."""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import hypothesis
import pytest

# A deadline is an assertion on time, which a busy machine breaks.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

_LONGEST: Final[Mapping[str, int]] = {
    "test_demo": 9,
    "test_killed_bridges": 8,
    "test_killed_services": 8,
    "test_bridge_life": 7,
    "test_chain": 7,
    "test_kafka": 7,
    "test_resumed": 6,
    "test_joined_by_id": 6,
    "test_roles_by_hand": 6,
    "test_tracker_ids": 5,
    "test_trackers": 5,
    "test_blocks": 5,
    "test_flush_and_end": 4,
    "test_shared_mode": 4,
    "test_genai_content": 4,
    "test_nothing_is_lost": 4,
}
"""Modules, or their single tests, that take longest, by rank. They begin first, so that none runs alone at the end."""


_KILLED_AGAIN: Final = [
    f"{suite}::test_a_killed_writer_loses_nothing_and_doubles_nothing"
    for suite in ("TestServer", "TestOfflineWandb", "TestTrackioServer")
]
"""Tests of a second place where a tracker keeps runs; that of the first place is in `make test`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """A share of the long tests is what `.ci/run` runs; another commit has another share."""
    parser.addoption(
        "--share", default="1/1", help="1/3, 2/3, 3/3: this share of the long tests"
    )


def pytest_configure() -> None:
    """Undo what the shell did to a job in the background: its children would ignore SIGINT, and some tests send it.

    The shell finds the commands of this environment, so that messages name them without their folder.
    """
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def environment_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment in a folder with a space, not activated: it has a python and a trackio."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "trackio"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Order the tests, slow ones first, and group those that share a fixture; ``--dist loadgroup`` follows it.

    A slow test is scheduled by itself, unless a fixture of its module or class serves several tests. Fast tests stay
    with their module.
    """
    for item in items:
        if item.name.startswith(
            "test_the_recorded_job_is_shown_as_it_was_after_bridges_were_killed"
        ) or any(item.nodeid.endswith(again) for again in _KILLED_AGAIN):
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.slow)
        module = item.nodeid.partition("::")[0]
        if item.get_closest_marker("slow") is None or _shares_fixture(item):
            item.add_marker(pytest.mark.xdist_group(module.replace("/", ".")))
    items.sort(key=_rank, reverse=True)  # stable: the order of a module stays
    left_out = [item for item in items if not _in_share(item, config)]
    config.hook.pytest_deselected(items=left_out)
    for item in left_out:
        items.remove(item)


def _in_share(item: pytest.Item, config: pytest.Config) -> bool:
    """By the test's name, so that its parameters stay together and a new test moves no other one."""
    number, _, count = config.getoption("--share").partition("/")
    name, _, _ = item.nodeid.partition("[")
    share = zlib.crc32(name.encode()) % int(count) + 1
    return item.get_closest_marker("long") is None or share == int(number)


def _shares_fixture(item: pytest.Item) -> bool:
    found: Mapping[str, list[object]] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009  # no public name
    return any(
        getattr(one, "scope", "") in {"module", "class", "package"}
        and getattr(one, "baseid", "")
        for definitions in found.values()
        for one in definitions
    )


def _rank(item: pytest.Item) -> int:
    is_slow = item.get_closest_marker("slow") is not None
    return _LONGEST.get(item.path.stem, 0) + is_slow
