"""A service whose disk is full, a real one: a small file system of its own, where the tests may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bridge_doubles import report_when, until
from command_runs import environment, otel_bridge
from gated_tracker import gated_lines, install
from otlp_samples import RUN, metrics_request, row, who
from service_process import Service, exporter_is, service
from service_senders import post

from otel_bridge.journal.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SIZE_BYTES = 24 << 20
KEYS = 400


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    options = f"size={SIZE_BYTES},mode=0700,uid={os.getuid()}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no `mount` on this machine")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


class Client:
    """Sends rows, one a request, and knows which were answered for."""

    def __init__(self, running: Service) -> None:
        self._running = running
        self.taken: list[int] = []
        self._next = 1

    def send(self) -> tuple[int, dict[str, str]]:
        """Send the next row, or once more the one that was not taken."""
        values = {f"k{number}": float(self._next) for number in range(KEYS)}
        status, headers, _ = post(self._running.http, metrics_request((who(), [row(self._next, values)])))
        if status == 200:
            self.taken.append(self._next)
            self._next += 1
        return status, headers


def fill(file: Path) -> None:
    """Take all the space that is left."""
    with suppress(OSError), file.open("ab", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass


@pytest.mark.parametrize("read_before", [True, False], ids=["at work", "not begun"])
def test_a_full_disk_is_a_503_until_there_is_room_and_no_row_that_was_answered_for_is_lost(
    tmp_path: Path, disk: Path, read_before: bool
) -> None:
    runs, ballast = disk / "runs", disk / "ballast"
    env = environment(tmp_path, OTEL_BRIDGE_DRAIN_TIMEOUT_S="60", **install(tmp_path))
    with service(tmp_path, env, "--exporters", "gated", "--dir", str(runs)) as running:
        client = Client(running)
        for _ in range(50):
            assert client.send()[0] == 200
        if read_before:
            report_when(RunFolder(runs, RUN), exporter_is("retrying", "gated"))
        fill(ballast)
        refused = [client.send() for _ in range(3)]
        told = otel_bridge("status", str(runs), cwd=tmp_path, env=env).stdout
        ballast.unlink()
        (tmp_path / "gate").touch()
        for _ in range(20):
            until(lambda: client.send()[0] == 200)
        code, said = running.end()

    assert [(status, headers["retry-after"]) for status, headers in refused] == [(503, "1")] * 3
    assert "No space left on device" in said
    assert "held by gated" in told or (not read_before and "no bridge has read it yet" in told)
    assert (code, [line for line in gated_lines(tmp_path) if "/k0 " in line]) == (
        0,
        [f"trainer/k0 {step}" for step in client.taken],
    ), said
