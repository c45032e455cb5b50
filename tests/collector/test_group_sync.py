from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.errors import JournalError
from otel_bridge_collector import group_sync
from otel_bridge_collector.group_sync import GroupSync, SyncedFile


class SlowDisk:
    """Syncs only when it is let; counts."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.count = 0
        self.error: OSError | None = None

    def sync(self, fd: int) -> None:
        os.fstat(fd)
        self.begun.release()
        assert self.let.acquire(timeout=10)
        self.count += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr(group_sync, "_sync", disk.sync)
    yield disk
    for _ in range(100):
        disk.let.release()


def opened(path: Path) -> SyncedFile:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    file = SyncedFile(fd, (path.parent,))
    os.close(fd)
    return file


async def begun(disk: SlowDisk) -> None:
    assert await asyncio.to_thread(disk.begun.acquire, timeout=10)


def test_those_that_come_during_a_sync_share_the_next_one(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async def scene() -> tuple[list[bool], list[bool]]:
        sync, file = GroupSync(), opened(tmp_path / "a")
        first = sync.wait(file)
        await begun(disk)
        others = [sync.wait(file) for _ in range(5)]
        disk.let.release()
        await first
        early = [one.done() for one in others]
        disk.let.release()
        await asyncio.gather(*others)
        sync.retire(file)
        await sync.stop()
        return early, [one.done() for one in others]

    assert asyncio.run(scene()) == ([False] * 5, [True] * 5)
    assert disk.count == 2


def test_files_are_synced_side_by_side_and_one_that_is_retired_is_synced_all_the_same(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async def scene() -> None:
        sync, one, two = GroupSync(), opened(tmp_path / "a"), opened(tmp_path / "b")
        waiting = [sync.wait(one), sync.wait(two)]
        await begun(disk)
        await begun(disk)
        sync.retire(one)
        disk.let.release()
        disk.let.release()
        await asyncio.gather(*waiting)
        sync.retire(two)
        await sync.stop()
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(one.fd)

    asyncio.run(scene())


def test_a_disk_that_refuses_fails_all_that_waited(
    tmp_path: Path, disk: SlowDisk
) -> None:
    disk.error = OSError(5, "Input/output error")
    disk.let.release()

    async def scene() -> None:
        sync, file = GroupSync(), opened(tmp_path / "a")
        with pytest.raises(JournalError, match="nothing was acknowledged"):
            await sync.wait(file)
        sync.retire(file)
        await sync.stop()

    asyncio.run(scene())
