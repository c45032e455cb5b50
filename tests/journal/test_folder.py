"""Run folders: made, found, refused; those that another user made."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_bridge.errors import FormatVersionError, JournalError
from otel_bridge.journal import folder as folder_module
from otel_bridge.journal.base_dir import why_not_ours
from otel_bridge.journal.files import create_regular
from otel_bridge.journal.folder import LockHolder, RunFolder, put_file, run_folders
from otel_bridge.journal.machine import this_host
from otel_bridge.journal.segment import SegmentWriter
from support.otlp.journal_samples import header, python, run_folder
from support.trainers.command_runs import environment, otel_bridge


def test_a_run_folder_has_its_parts_and_its_base_ignores_itself(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "work" / ".otel-bridge", "r1")

    folder.create()
    folder.create()

    parts = sorted(
        str(path.relative_to(folder.base)) for path in folder.base.rglob("*")
    )
    assert parts == [
        ".gitignore",
        "r1",
        "r1/control",
        "r1/folder.json",
        "r1/processes",
        "r1/segments",
    ]
    assert (folder.base / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE(folder.base.stat().st_mode) == 0o700
    assert folder.exists()


def test_a_folder_that_somebody_chose_is_not_ignored_nor_closed(tmp_path: Path) -> None:
    base = tmp_path / "data"
    base.mkdir(mode=0o755)

    RunFolder(base, "r1").create()

    assert [path.name for path in base.iterdir()] == ["r1"]
    assert stat.S_IMODE(base.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "run_id",
    [
        "r1",
        "../../etc",
        "..",
        ".hidden",
        "a/b\0c",
        "",
        "ü" * 300,
        "x" * 300,
        "A b:c",
        "\udcff",
    ],
)
def test_any_run_id_stays_below_the_base_and_is_found_again(
    tmp_path: Path, run_id: str
) -> None:
    folder = RunFolder(tmp_path, run_id)

    folder.create()
    (found,) = run_folders(tmp_path)

    assert folder.path.parent == tmp_path
    assert folder.path.name not in {"", ".", ".."}
    assert found.path == folder.path
    assert found.run_id == run_id


def test_two_run_ids_never_share_a_folder() -> None:
    ids = [
        "a/b",
        "a%2Fb",
        "a_b",
        "x" * 300,
        "x" * 301,
        "",
        "%~",
        ".a",
        "%2Ea",
        "serve.lock",
        "serve%2Elock",
        ".lock",
    ]

    assert len({RunFolder(Path("/b"), run_id).path for run_id in ids}) == len(ids)


def test_no_run_takes_the_name_of_a_service_s_lock(tmp_path: Path) -> None:
    (tmp_path / "serve.lock").touch()

    folder = RunFolder(tmp_path, "serve.lock")
    folder.create()

    assert [found.run_id for found in run_folders(tmp_path)] == ["serve.lock"]


def test_run_folders_are_those_with_segments(tmp_path: Path) -> None:
    for run_id in ("r2", "r1"):
        RunFolder(tmp_path, run_id).create()
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()

    assert [folder.run_id for folder in run_folders(tmp_path)] == ["r1", "r2"]
    assert run_folders(tmp_path / "none") == []


def test_segments_are_listed_by_process_and_number_and_nothing_else_is(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    for instance, number in [("b2", 0), ("a1", 10), ("a1", 2), ("with-dash", 1)]:
        SegmentWriter(folder.segments_dir, header(instance_id=instance, number=number))
    for name in (".a1-000003.tmp", "notes.txt", "a1.seg", "a1-x.seg"):
        (folder.segments_dir / name).touch()

    listed = folder.segments()

    assert [(file.instance_id, file.number) for file in listed] == [
        ("a1", 2),
        ("a1", 10),
        ("b2", 0),
        ("with-dash", 1),
    ]
    assert listed[0].size_bytes == listed[0].path.stat().st_size > 0
    assert listed[0].mtime_ns == listed[0].path.stat().st_mtime_ns
    assert RunFolder(tmp_path, "none").segments() == []


def test_names_of_segments_without_content_are_listed_in_utf_8(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run-1")
    folder.create()
    os.mkdir(os.fsencode(folder.segments_dir) + b"/\xff-000000.seg")
    (folder.segments_dir / "b-000000.seg").write_bytes(b"")
    (folder.segments_dir / "c-000000.seg").write_bytes(b"content")
    (folder.segments_dir / ".d-000000.tmp").write_bytes(b"")

    listing = folder.listed_segments()

    assert [file.instance_id for file in listing.files] == ["b", "c"]
    assert sorted(listing.without_content) == ["?-000000.seg", "b-000000.seg"]


@pytest.mark.parametrize("run_id", ["run-1", "a/b", "x" * 300])
def test_a_folder_under_the_name_of_another_run_is_refused_and_its_own_name_is_said(
    tmp_path: Path, run_id: str
) -> None:
    folder = RunFolder(tmp_path / "runs", run_id)
    folder.create()
    folder.check_format()
    moved = RunFolder.at(folder.path.rename(folder.base / "backup"))

    with pytest.raises(
        FormatVersionError,
        match=f"holds the run .*rename the folder to {folder.path.name}",
    ):
        moved.check_format()


def test_a_folder_made_by_a_newer_version_is_refused_at_once_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path, "r1")
    folder.path.mkdir()
    folder.format_path.write_text('{"format": 2, "run_id": "r1"}')

    with pytest.raises(
        FormatVersionError,
        match="has format 2, this version knows up to 1; upgrade otel-bridge",
    ):
        folder.create()

    assert list(folder.path.iterdir()) == [folder.format_path]


def test_a_garbled_folder_file_does_not_close_the_folder(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    folder.format_path.write_bytes(b"\xff{")

    folder.create()
    folder.check_format()

    assert [found.run_id for found in run_folders(folder.base)] == ["r1"]


def test_a_base_that_is_a_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        JournalError,
        match=r"cannot be used as a run folder: .*set OTEL_BRIDGE_DIR to a writable folder",
    ):
        RunFolder(tmp_path / "file", "r1").create()


READ_ONLY = """
import os, sys
from pathlib import Path
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
if os.getuid() == 0:
    os.setuid(65534)
try:
    RunFolder(Path(sys.argv[1]), "r1").create()
except JournalError as error:
    print(error)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, as pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="otel-bridge-test-"))
    path.chmod(0o755)
    yield path
    for inner in path.rglob("*"):
        inner.chmod(0o755)
    shutil.rmtree(path)


@pytest.mark.parametrize("made", [False, True])
def test_a_read_only_folder_says_what_to_do(open_folder: Path, made: bool) -> None:
    base = open_folder / "base"
    if made:
        RunFolder(base, "r1").create()
    for path in [*open_folder.rglob("*"), open_folder]:
        path.chmod(0o555)

    with python(READ_ONLY, base) as process:
        said = process.communicate()[0]
    open_folder.chmod(0o755)

    assert "set OTEL_BRIDGE_DIR to a writable folder" in said


def test_the_lock_says_who_holds_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    nobody = folder.holder()
    lock = folder.lock()
    lock.acquire()

    folder.write_heartbeat(lock, 123)
    while_held = folder.holder()
    lock.release()

    host = this_host()
    assert nobody is None
    assert (
        while_held
        == folder.holder()
        == LockHolder(os.getpid(), host.name, host.boot_id, 123)
    )


def test_two_processes_of_one_pid_may_write_a_file_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder.json"

    def created_meanwhile(unfinished: Path) -> int:
        monkeypatch.setattr(folder_module, "create_regular", create_regular)
        descriptor = create_regular(unfinished)
        put_file(path, b"other")
        return descriptor

    monkeypatch.setattr(folder_module, "create_regular", created_meanwhile)

    put_file(path, b"own")

    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"own", ["folder.json"])


def test_a_file_put_in_place_replaces_the_old_one_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    put_file(tmp_path / "x", b"old")

    put_file(tmp_path / "x", b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        put_file(tmp_path / "folder", b"never")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x"]
    assert (
        (tmp_path / "x").read_bytes(),
        stat.S_IMODE((tmp_path / "x").stat().st_mode),
    ) == (
        b"new",
        0o600,
    )


def test_a_folder_whose_long_name_cannot_be_read_back_is_found_all_the_same(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path, "x" * 300)
    folder.create()
    folder.format_path.unlink()

    (found,) = run_folders(tmp_path)

    assert (found.path, found.base) == (folder.path, tmp_path)


NOBODY, SOMEBODY = 65534, 54321
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="plants folders of other users"
)


@pytest.fixture
def place() -> Generator[Path]:
    """A folder that every user may enter, as every folder above it."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def folder_of(path: Path, owner: int, mode: int = 0o755) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


@contextmanager
def as_user(uid: int) -> Generator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_service_refuses_the_folder_that_another_user_laid_into_a_shared_one(
    tmp_path: Path, place: Path
) -> None:
    folder_of(place / "tmp", 0, 0o1777)
    planted, victim = (
        folder_of(place / "tmp" / "otel-bridge-17", NOBODY, 0o777),
        tmp_path / "victim",
    )
    victim.write_text("precious")
    (planted / "serve.lock").symlink_to(victim)

    done = otel_bridge(
        "serve",
        "--dir",
        str(planted),
        "--http",
        "off",
        "--grpc",
        "off",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, victim.read_text()) == (1, "precious")
    assert f"{planted} belongs to nobody (uid {NOBODY})" in done.stderr
    assert "mktemp -d" in done.stderr


def test_a_link_in_the_folder_of_a_service_is_not_written_through(
    tmp_path: Path,
) -> None:
    base, victim = folder_of(tmp_path / "runs", 0), tmp_path / "victim"
    victim.write_text("precious")
    (base / "serve.lock").symlink_to(victim)

    done = otel_bridge(
        "serve",
        "--dir",
        str(base),
        "--http",
        "off",
        "--grpc",
        "off",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, victim.read_text()) == (1, "precious")
    assert "not a regular file" in done.stderr


@pytest.mark.parametrize("mode", [0o1777, 0o777])
@pytest.mark.parametrize("inside", [Path(), Path("deeper/base")])
def test_root_uses_a_folder_of_any_user_but_not_one_laid_into_a_shared_one(
    place: Path, inside: Path, mode: int
) -> None:
    folder_of(place / "tmp", 0, mode)
    mounted, planted = (
        folder_of(place / "mounted", SOMEBODY),
        folder_of(place / "tmp" / "x", SOMEBODY),
    )
    for one in (mounted, planted):
        (one / inside).mkdir(parents=True, exist_ok=True)

    assert why_not_ours(mounted / inside) == ""
    assert why_not_ours(planted / inside).startswith(
        f"{planted} belongs to uid {SOMEBODY}"
    )


def test_a_user_uses_what_is_theirs_or_root_s_and_nothing_else(place: Path) -> None:
    folder_of(place / "tmp", 0, 0o1777)
    own, roots = (
        folder_of(place / "own", SOMEBODY),
        folder_of(place / "volume", 0, 0o777),
    )
    team, sticky = (
        folder_of(place / "team", NOBODY, 0o777),
        folder_of(place / "tmp" / "own", SOMEBODY),
    )

    with as_user(SOMEBODY):
        said = [
            why_not_ours(one) for one in (own, roots, team, sticky, place / "not there")
        ]

    assert [bool(one) for one in said] == [False, False, True, False, False]
    assert f"{team} belongs to nobody (uid {NOBODY})" in said[2]
    assert f"this process is uid {SOMEBODY}" in said[2]
    assert list(team.iterdir()) == []


def test_a_run_folder_that_another_user_made_or_linked_is_refused(
    place: Path, tmp_path: Path
) -> None:
    base = folder_of(place / "volume", 0, 0o1777)
    folder_of(base / "theirs", NOBODY, 0o777)
    (base / "link").symlink_to(tmp_path)

    with pytest.raises(JournalError, match=r"theirs belongs to nobody \(uid 65534\)"):
        RunFolder(base, "theirs").create()
    with pytest.raises(
        JournalError, match="link is a symbolic link, expected a folder"
    ):
        RunFolder(base, "link").create()

    assert (list((base / "theirs").iterdir()), list(tmp_path.iterdir())) == ([], [])


def test_a_link_to_itself_hides_no_link_to_the_folder_of_another_run(
    tmp_path: Path,
) -> None:
    victim, folder = RunFolder(tmp_path, "victim"), RunFolder(tmp_path, "run")
    victim.create()
    folder.create()
    (folder.path / "theirs").symlink_to(victim.segments_dir)
    # Many, so that one is listed before the other link in any order of a file system.
    for number in range(50):
        (folder.path / f"itself{number}").symlink_to(f"itself{number}")

    with pytest.raises(JournalError, match="theirs is a symbolic link to a folder"):
        folder.check_owner()


@pytest.mark.parametrize("name", ["segments", "processes", "control", "file", "wandb"])
def test_a_run_folder_with_a_link_to_the_folder_of_another_run_is_refused(
    tmp_path: Path, name: str
) -> None:
    victim, folder = RunFolder(tmp_path, "victim"), RunFolder(tmp_path, "run")
    victim.create()
    folder.create()
    if (folder.path / name).exists():
        (folder.path / name).rmdir()
    (folder.path / name).symlink_to(victim.segments_dir)

    with pytest.raises(
        JournalError,
        match=f"{name} is a symbolic link to a folder, expected a folder; remove it",
    ):
        folder.check_owner()


def test_a_base_folder_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "disk")

    RunFolder(tmp_path / "base", "run").create()

    assert (tmp_path / "disk" / "run" / "segments").is_dir()


def test_a_ledger_of_another_version_is_a_problem_and_a_damaged_one_is_for_the_bridge(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    assert folder.ledger_problem() == ""
    with contextlib.closing(sqlite3.connect(folder.ledger_path)) as ledger:
        ledger.execute("PRAGMA user_version = 99")
    assert "ledger of format 99" in folder.ledger_problem()

    folder.ledger_path.write_bytes(b"\xff" * 4096)

    assert folder.ledger_problem() == ""
