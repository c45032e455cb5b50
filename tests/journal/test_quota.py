from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_bridge.journal import quota as module
from otel_bridge.journal.quota import Quota


def test_every_file_below_the_base_counts_and_links_lead_nowhere(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    (base / "r1" / "segments").mkdir(parents=True)
    (base / "r1" / "segments" / "a").write_bytes(bytes(1000))
    (base / "b").write_bytes(bytes(23))
    (tmp_path / "outside").write_bytes(bytes(5000))
    (base / "link").symlink_to(tmp_path)

    used = Quota(base, 1).used_bytes()

    assert used == 1023 + (base / "link").lstat().st_size


def test_a_base_is_full_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))

    assert (Quota(tmp_path, 1001).full(), Quota(tmp_path, 1000).full()) == (False, True)


def test_the_limit_is_half_of_the_disk_that_would_be_free_without_us(
    tmp_path: Path,
) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize

    limit = Quota(tmp_path, 1 << 62).limit_bytes(1 << 30)

    assert abs(limit - (free + (1 << 30)) // 2) < 1 << 30
    assert Quota(tmp_path / "none", 77).limit_bytes(0) == 77


def test_the_answer_is_kept_for_a_moment(tmp_path: Path) -> None:
    quota = Quota(tmp_path, 1000)
    before = quota.full()

    (tmp_path / "a").write_bytes(bytes(1000))

    assert (before, quota.full(), Quota(tmp_path, 1000).full()) == (False, False, True)


@pytest.mark.parametrize(("max_bytes", "seconds"), [(5000, 1.5), (8 << 30, 10.5)])
def test_it_is_counted_each_second_near_the_limit_and_seldom_far_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int, seconds: float
) -> None:
    now, counted, quota = [1000.0], list[Quota](), Quota(tmp_path, max_bytes)

    def used_bytes(self: Quota) -> int:
        counted.append(self)
        return 1000

    def limit_bytes(_self: Quota, _used_bytes: int) -> int:
        return max_bytes

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Quota, "used_bytes", used_bytes)
    monkeypatch.setattr(Quota, "limit_bytes", limit_bytes)

    seen: list[int] = []
    for at in (0.0, 0.9 * seconds / 1.5, seconds):
        now[0] = 1000.0 + at
        quota.full()
        seen.append(len(counted))

    assert seen == [1, 1, 2]


def test_what_its_owner_appends_counts_at_once_and_what_was_deleted_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, used, quota = [1000.0], [4000], Quota(tmp_path, 5000)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Quota, "used_bytes", lambda _: used[0])
    monkeypatch.setattr(Quota, "limit_bytes", lambda _self, _used: 5000)

    first = quota.full()
    took = [quota.took(500), quota.took(499), quota.took(1)]
    used[0] = 2000
    deleted, took_again = quota.full(), quota.took(3000)
    used[0] = 5000
    full = [quota.full(), quota.is_due()]
    now[0] += 1.1

    assert (first, took, deleted, took_again) == (
        False,
        [False, False, True],
        False,
        True,
    )
    assert (full, quota.is_due()) == ([True, False], True)
