from __future__ import annotations

import os
from pathlib import Path

from otel_bridge.journal.quota import Quota


def test_every_file_below_the_base_counts_and_links_lead_nowhere(tmp_path: Path) -> None:
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


def test_the_limit_is_half_of_the_disk_that_would_be_free_without_us(tmp_path: Path) -> None:
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
