from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_bridge.emit.config.resource import revision_of, source_of

GIT = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **GIT},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "deep" / "er").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return folder


def test_the_commit_is_that_of_git_loose_packed_detached_and_in_a_worktree(
    repository: Path, tmp_path: Path
) -> None:
    head = git(repository, "rev-parse", "HEAD")
    loose = revision_of(repository / "deep" / "er")
    git(repository, "pack-refs", "--all")
    packed = revision_of(repository)
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    worktree = revision_of(tmp_path / "tree")
    git(repository, "checkout", "-q", "--detach")

    assert [loose, packed, worktree, revision_of(repository)] == [head] * 4


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"ref: refs/heads/none",
        b"not a commit",
        b"\xff\xfe",
        b"ref: ../../etc/passwd",
    ],
)
def test_a_repository_that_cannot_be_read_has_no_commit(
    tmp_path: Path, head: bytes
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_bytes(head)

    assert revision_of(tmp_path) is None


def test_host_script_user_and_commit_are_reported(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["deep/train.py", "--lr", "1"])

    assert source_of({"USER": "ada"}, repository) == {
        "host.name": os.uname().nodename,
        "process.command": "deep/train.py",
        "process.owner": "ada",
        "vcs.ref.head.revision": git(repository, "rev-parse", "HEAD"),
    }
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert source_of({}, tmp_path / "elsewhere") == {"host.name": os.uname().nodename}
