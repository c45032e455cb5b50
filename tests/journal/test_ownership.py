"""A folder that another user made, as root and as a user; the tests that change users need root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_bridge.errors import JournalError
from otel_bridge.journal.base_dir import why_not_ours
from otel_bridge.journal.folder import RunFolder
from support.trainers.command_runs import environment, otel_bridge

NOBODY, SOMEBODY = 65534, 54321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="plants folders of other users")


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


def test_a_service_refuses_the_folder_that_another_user_laid_into_a_shared_one(tmp_path: Path, place: Path) -> None:
    folder_of(place / "tmp", 0, 0o1777)
    planted, victim = folder_of(place / "tmp" / "otel-bridge-17", NOBODY, 0o777), tmp_path / "victim"
    victim.write_text("precious")
    (planted / "serve.lock").symlink_to(victim)

    done = otel_bridge(
        "serve", "--dir", str(planted), "--http", "off", "--grpc", "off", cwd=tmp_path, env=environment(tmp_path)
    )

    assert (done.returncode, victim.read_text()) == (1, "precious")
    assert f"{planted} belongs to nobody (uid {NOBODY})" in done.stderr
    assert "mktemp -d" in done.stderr


def test_a_link_in_the_folder_of_a_service_is_not_written_through(tmp_path: Path) -> None:
    base, victim = folder_of(tmp_path / "runs", 0), tmp_path / "victim"
    victim.write_text("precious")
    (base / "serve.lock").symlink_to(victim)

    done = otel_bridge(
        "serve", "--dir", str(base), "--http", "off", "--grpc", "off", cwd=tmp_path, env=environment(tmp_path)
    )

    assert (done.returncode, victim.read_text()) == (1, "precious")
    assert "not a regular file" in done.stderr


@pytest.mark.parametrize("inside", [Path(), Path("deeper/base")])
def test_root_uses_a_folder_of_any_user_but_not_one_laid_into_a_shared_one(place: Path, inside: Path) -> None:
    folder_of(place / "tmp", 0, 0o1777)
    mounted, planted = folder_of(place / "mounted", SOMEBODY), folder_of(place / "tmp" / "x", SOMEBODY)
    for one in (mounted, planted):
        (one / inside).mkdir(parents=True, exist_ok=True)

    assert why_not_ours(mounted / inside) == ""
    assert why_not_ours(planted / inside).startswith(f"{planted} belongs to uid {SOMEBODY}")


def test_a_user_uses_what_is_theirs_or_root_s_and_nothing_else(place: Path) -> None:
    folder_of(place / "tmp", 0, 0o1777)
    own, roots = folder_of(place / "own", SOMEBODY), folder_of(place / "volume", 0, 0o777)
    team, sticky = folder_of(place / "team", NOBODY, 0o777), folder_of(place / "tmp" / "own", SOMEBODY)

    with as_user(SOMEBODY):
        said = [why_not_ours(one) for one in (own, roots, team, sticky, place / "not there")]

    assert [bool(one) for one in said] == [False, False, True, False, False]
    assert f"{team} belongs to nobody (uid {NOBODY})" in said[2]
    assert f"this process is uid {SOMEBODY}" in said[2]
    assert list(team.iterdir()) == []


def test_a_run_folder_that_another_user_made_or_linked_is_refused(place: Path, tmp_path: Path) -> None:
    base = folder_of(place / "volume", 0, 0o1777)
    folder_of(base / "theirs", NOBODY, 0o777)
    (base / "link").symlink_to(tmp_path)

    with pytest.raises(JournalError, match=r"theirs belongs to nobody \(uid 65534\)"):
        RunFolder(base, "theirs").create()
    with pytest.raises(JournalError, match="link is a symbolic link, expected a folder"):
        RunFolder(base, "link").create()

    assert (list((base / "theirs").iterdir()), list(tmp_path.iterdir())) == ([], [])


def test_a_base_folder_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "disk")

    RunFolder(tmp_path / "base", "run").create()

    assert (tmp_path / "disk" / "run" / "segments").is_dir()
