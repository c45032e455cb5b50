"""Damage in a segment costs what it hits: intact rows are delivered, the rest is counted, and drain exits with 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_bridge.journal.folder import RunFolder
from support.trainers.command_runs import (
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    values,
)

ROWS = 600
TRAIN = f"""
    import otel_bridge
    with otel_bridge.init("maths", "ppo", role="trainer", exporters="file") as run:
        for step in range({ROWS}):
            run.log({{"loss": float(step)}}, step=step)
"""
Damage = Callable[[bytes], bytes]


def flipped(data: bytes, offset: int) -> bytes:
    """Return *data* with one bit changed."""
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def held(tmp_path: Path, segment_bytes: int) -> RunFolder:
    env = environment(
        tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_SEGMENT_BYTES=str(segment_bytes)
    )
    done = call(["python", program(tmp_path, "train.py", TRAIN)], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    return only_folder(tmp_path / ".otel-bridge")


@pytest.mark.parametrize(
    "segment_bytes", [20_000, pytest.param(80_000_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: flipped(data, 60),
        lambda data: flipped(data, 0),
        lambda data: bytes(200) + data[200:],
    ],
    ids=["a bit of the header", "its magic number", "a hole"],
)
def test_rows_behind_a_damaged_header_are_delivered(
    tmp_path: Path, damage: Damage, segment_bytes: int
) -> None:
    folder = held(tmp_path, segment_bytes)
    first = folder.segments()[0].path
    first.write_bytes(damage(first.read_bytes()))

    done = otel_bridge(
        "drain", cwd=tmp_path, env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    )

    rows = values(folder)
    loss = (
        rows.get("trainer/loss") or rows["loss"]
    )  # the role of a process is in its headers alone
    assert [value for _, value in loss] == [float(step) for step in range(ROWS)]
    assert (done.returncode, report_of(folder.base).drops) == (1, {"segment_gaps": 1})
    assert "1 damaged stretches of its segments could not be read" in done.stdout


@pytest.mark.parametrize("segment_bytes", [20_000, 80_000_000])
def test_a_damaged_row_is_counted_also_the_last_one_of_its_segment(
    tmp_path: Path, segment_bytes: int
) -> None:
    folder = held(tmp_path, segment_bytes)
    first = folder.segments()[0].path
    data = first.read_bytes()
    first.write_bytes(flipped(flipped(data, len(data) // 2), len(data) - 3))

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    report = report_of(folder.base)
    rolled = (
        segment_bytes < 80_000_000
    )  # the last frame of the only segment holds no row
    assert (done.returncode, report.drops, report.missing_rows) == (
        1,
        {"segment_gaps": 2},
        1 + rolled,
    )
    assert len(values(folder)["trainer/loss"]) == ROWS - 1 - rolled


@pytest.mark.parametrize("content", [b"hello world\n" * 100, bytes(5_000)])
def test_a_file_without_any_frame_is_counted_and_drain_ends(
    tmp_path: Path, content: bytes
) -> None:
    folder = held(tmp_path, 80_000_000)
    folder.segments()[0].path.write_bytes(content)

    done = otel_bridge(
        "drain", cwd=tmp_path, env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    )

    assert (done.returncode, report_of(folder.base).drops) == (1, {"segment_gaps": 1})


def test_a_row_whose_write_a_kill_cut_off_was_never_logged(tmp_path: Path) -> None:
    folder = held(tmp_path, 80_000_000)
    first = folder.segments()[0].path
    first.write_bytes(first.read_bytes()[:-5])

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    assert (done.returncode, report_of(folder.base).drops) == (0, {}), done.stdout
    assert len(values(folder)["trainer/loss"]) == ROWS
