"""Folders, ledgers and segments of a newer version: refused, kept, and said."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

import pytest

from otel_bridge.journal.folder import LEDGER_FORMAT
from otel_bridge.journal.segment import SegmentWriter, read_segment
from support.trainers.e2e_jobs import (
    LOGS,
    bridges,
    command,
    ended,
    environment,
    no_bridge_left,
    only_folder,
    rows,
    run,
    script,
    until,
)

pytestmark = pytest.mark.slow


def test_a_folder_of_a_newer_version_is_an_error_at_init_and_a_line_of_every_command(
    tmp_path: Path,
) -> None:
    code, base = script(tmp_path / "train.py", LOGS), tmp_path / "runs"
    run(code, environment(base, OTEL_BRIDGE_OFFLINE="1"))
    folder = only_folder(base)
    folder.format_path.write_text('{"format": 99}')

    done = run(code, environment(base))
    drained = command("drain", base, env=environment(base), cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"otel_bridge.errors.ConfigError: {folder.path} has format 99, this version knows up to 1; upgrade otel-bridge"
    )
    assert drained.returncode == 1
    assert "upgrade otel-bridge" in drained.stdout + drained.stderr
    assert bridges(base) == []


@pytest.mark.long
@pytest.mark.parametrize("version", [99, 1])
def test_a_ledger_of_another_version_keeps_the_rows_and_says_what_to_do(
    tmp_path: Path, version: int
) -> None:
    remedy = "deliver the run with the version"
    code, base = script(tmp_path / "train.py", LOGS), tmp_path / "runs"
    env = {**environment(base), "OTEL_BRIDGE_QUIET": "0"}
    with no_bridge_left(tmp_path):
        run(code, env)
        until(lambda: ended(base) and not bridges(base))
        with contextlib.closing(
            sqlite3.connect(only_folder(base).ledger_path)
        ) as ledger:
            ledger.execute(f"PRAGMA user_version = {version}")

        done = run(code, env)
        drained = command("drain", base, env=env, cwd=tmp_path)
        with contextlib.closing(
            sqlite3.connect(only_folder(base).ledger_path)
        ) as ledger:
            ledger.execute(f"PRAGMA user_version = {LEDGER_FORMAT}")
        again = command("drain", base, env=env, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert (
        f"deliver them with: otel-bridge drain {base}" in done.stderr.splitlines()[-1]
    )
    assert (drained.returncode, again.returncode) == (1, 0)
    assert remedy in drained.stdout
    assert any(
        "not delivered" in line and remedy in line
        for line in done.stderr.splitlines()[:5]
    )
    assert rows(base) == [*range(20), *range(20)]


def test_a_segment_of_a_newer_version_is_left_as_it_is_and_keeps_no_other_from_being_read(
    tmp_path: Path,
) -> None:
    code, base = script(tmp_path / "train.py", LOGS), tmp_path / "runs"
    with no_bridge_left(tmp_path):
        run(code, environment(base, OTEL_BRIDGE_OFFLINE="1"))
        folder = only_folder(base)
        (segment,) = folder.segments()
        header, _ = read_segment(segment.path, 0, limit_bytes=1, final=False)
        assert header is not None
        newer = dataclasses.replace(header, instance_id="0123456789abcdef", format=99)
        writer = SegmentWriter(folder.segments_dir, newer)
        writer.close()

        drained = command("drain", base, env=environment(base), cwd=tmp_path)

    assert rows(base) == list(range(20))
    assert [one.instance_id for one in folder.segments()] == ["0123456789abcdef"]
    assert drained.returncode == 1
    assert (
        "a newer version wrote the segments of 0123456789abcdef; upgrade otel-bridge"
        in drained.stdout
    )
