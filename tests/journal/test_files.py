"""Regular files: what is not one is refused; what stands still is read once, within limits."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from otel_bridge.journal import files
from otel_bridge.journal.files import (
    Stamp,
    StampedCache,
    create_regular,
    cut,
    open_regular,
    read_regular,
    size_of_regular,
    stamp_of,
)


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
@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND]
)
def test_what_is_not_a_regular_file_is_refused_at_once(
    tmp_path: Path, what: str, flags: int
) -> None:
    path = planted(tmp_path, what)

    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path, flags)

    assert (size_of_regular(path), (tmp_path / "victim").read_bytes()) == (
        None,
        b"victim",
    )


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert (read_regular(path, 5), size_of_regular(path)) == (b"12345", 5)
    with pytest.raises(OSError, match="5 bytes, at most 4 expected"):
        read_regular(path, 4)


@pytest.mark.parametrize("what", ["fifo", "link", "loop"])
def test_a_new_file_takes_the_place_of_what_was_planted_under_its_name(
    tmp_path: Path, what: str
) -> None:
    path = planted(tmp_path, what)

    descriptor = create_regular(path)
    os.write(descriptor, b"new")
    os.close(descriptor)

    assert (
        path.read_bytes(),
        stat.S_IMODE(path.lstat().st_mode),
        path.is_symlink(),
    ) == (
        b"new",
        0o600,
        False,
    )
    assert (tmp_path / "victim").read_bytes() == b"victim"


def test_a_file_is_cut_and_what_a_link_names_is_not(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"12345")
    link.symlink_to(path)

    cut(path, 3)
    with pytest.raises(OSError, match="not a regular file"):
        cut(link, 0)

    assert path.read_bytes() == b"123"


_LONG_AGO_NS = 1_700_000_000 * 10**9


def _file(path: Path, text: str, mtime_ns: int = _LONG_AGO_NS) -> Stamp | None:
    path.write_text(text)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return stamp_of(path)


def test_a_value_is_read_again_only_when_its_file_has_another_stamp(
    tmp_path: Path,
) -> None:
    path, cache = tmp_path / "one", StampedCache[str, str]()
    stamps = [
        _file(path, "a"),
        stamp_of(path),
        _file(path, "b", _LONG_AGO_NS + 1),
        _file(path, "cc", _LONG_AGO_NS + 1),
    ]
    reads = iter(("first", "second", "third"))

    found = [cache.get("one", (stamp,), lambda: next(reads)) for stamp in stamps]

    assert found == ["first", "first", "second", "third"]


def test_a_file_replaced_by_one_of_the_same_time_and_size_is_another_one(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "one", tmp_path / "other"
    before = _file(path, "a")
    _file(other, "b")
    other.replace(path)

    assert before != stamp_of(path)


def test_a_file_that_has_just_changed_is_not_kept_as_it_may_change_within_one_tick(
    tmp_path: Path,
) -> None:
    cache, far_ahead_ns = StampedCache[str, int](), 1 << 62
    stamp = _file(tmp_path / "one", "a", far_ahead_ns)
    reads = iter((1, 2))

    found = [cache.get("one", (stamp,), lambda: next(reads)) for _ in range(2)]

    assert found == [1, 2]


def test_of_too_many_values_the_least_recently_used_ones_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "_MAX_VALUES", 4)
    cache, stamp, read = StampedCache[int, int](), Stamp(1, 1, 1), list[int]()

    def reads(key: int) -> int:
        read.append(key)
        return key

    for key in (1, 2, 3, 4, 1, 5, 1, 2):
        cache.get(key, (stamp,), lambda key=key: reads(key))  # type: ignore[misc]

    assert read == [1, 2, 3, 4, 5, 2]


def test_a_signal_handler_reads_a_value_while_another_one_is_looked_up() -> None:
    cache, stamps = StampedCache[object, str](), (Stamp(1, 1, 1),)

    class Key:
        def __hash__(self) -> int:
            assert cache.get("of the handler", stamps, lambda: "a") == "a"
            return 1

    assert cache.get(Key(), stamps, lambda: "b") == "b"


def test_a_missing_file_has_no_stamp(tmp_path: Path) -> None:
    assert stamp_of(tmp_path / "none") is None
