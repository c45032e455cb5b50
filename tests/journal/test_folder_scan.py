"""The sizes of a run folder."""

from __future__ import annotations

from pathlib import Path

from otel_bridge.journal.files import stamp_of
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.folder_scan import FolderScan, scan_folder
from otel_bridge.journal.quota import Quota


def _folder(base: Path) -> RunFolder:
    folder = RunFolder(base, "r1")
    folder.create()
    folder.segment_path("p1", 1).write_bytes(b"s" * 100)
    (folder.segments_dir / "notes").write_bytes(b"n" * 7)
    (folder.segments_dir / "deeper").mkdir()
    (folder.segments_dir / "deeper" / "file").write_bytes(b"d" * 11)
    (folder.path / "wandb" / "run").mkdir(parents=True)
    (folder.path / "wandb" / "run" / "log").write_bytes(b"w" * 1000)
    for suffix, size in (("", 50), ("-wal", 20), ("-shm", 3)):
        Path(f"{folder.ledger_path}{suffix}").write_bytes(b"l" * size)
    folder.report_path.write_bytes(b"{}")
    return folder


def test_every_file_counts_once_and_segments_and_ledger_by_themselves(
    tmp_path: Path,
) -> None:
    folder = _folder(tmp_path)

    found = scan_folder(folder)

    assert found == FolderScan(
        total_bytes=Quota(folder.path, 0).used_bytes(),
        ledger_bytes=73,
        segments=folder.segments(),
        report=stamp_of(folder.report_path),
        ledger=(
            stamp_of(folder.ledger_path),
            stamp_of(Path(f"{folder.ledger_path}-wal")),
        ),
    )
    assert (
        found.segment_bytes,
        [segment.size_bytes for segment in found.segments],
    ) == (100, [100])


def test_a_folder_that_is_gone_is_empty(tmp_path: Path) -> None:
    assert scan_folder(RunFolder(tmp_path, "none")) == FolderScan(
        0, 0, [], None, (None, None)
    )


def test_a_link_at_the_name_of_the_segments_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "p1-000001.seg").write_bytes(b"x" * 500)
    folder = RunFolder(tmp_path / "base", "r1")
    folder.path.mkdir(parents=True)
    folder.segments_dir.symlink_to(tmp_path / "elsewhere")

    assert (scan_folder(folder).segments, scan_folder(folder).total_bytes < 500) == (
        [],
        True,
    )
