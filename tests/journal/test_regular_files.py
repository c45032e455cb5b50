from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from otel_bridge.journal.files import create_regular, cut, open_regular, read_regular, size_of_regular


def planted(tmp_path: Path, what: str) -> Path:
    """Something else than a regular file; opening most of it the plain way waits, or reads another file."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_bytes(b"victim")
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(victim)
    elif what == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("what", ["fifo", "folder", "link", "loop", "device"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND])
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, what: str, flags: int) -> None:
    path = planted(tmp_path, what)

    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path, flags)

    assert (size_of_regular(path), (tmp_path / "victim").read_bytes()) == (None, b"victim")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert (read_regular(path, 5), size_of_regular(path)) == (b"12345", 5)
    with pytest.raises(OSError, match="5 bytes, at most 4 expected"):
        read_regular(path, 4)


@pytest.mark.parametrize("what", ["fifo", "link", "loop"])
def test_a_new_file_takes_the_place_of_what_was_planted_under_its_name(tmp_path: Path, what: str) -> None:
    path = planted(tmp_path, what)

    descriptor = create_regular(path)
    os.write(descriptor, b"new")
    os.close(descriptor)

    assert (path.read_bytes(), stat.S_IMODE(path.lstat().st_mode), path.is_symlink()) == (b"new", 0o600, False)
    assert (tmp_path / "victim").read_bytes() == b"victim"


def test_a_file_is_cut_and_what_a_link_names_is_not(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"12345")
    link.symlink_to(path)

    cut(path, 3)
    with pytest.raises(OSError, match="not a regular file"):
        cut(link, 0)

    assert path.read_bytes() == b"123"
