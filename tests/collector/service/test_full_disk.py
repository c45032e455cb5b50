"""A service whose disk is full, a real one: a small file system of its own, where the tests may mount one."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest

from otel_bridge.journal.folder import RunFolder
from support.bridge.bridge_doubles import report_when, until
from support.bridge.gated_tracker import gated_lines, install
from support.collector.otelcol_programs import missing
from support.collector.service_process import Service, exporter_is, service
from support.collector.service_senders import post
from support.otlp.otlp_samples import RUN, metrics_request, row, who
from support.trainers.command_runs import environment, otel_bridge
from support.waiting import ANSWER_S

pytestmark = pytest.mark.slow

SIZE_BYTES = 24 << 20
KEYS = 400
CAP_SYS_ADMIN = 21
"""Its number in ``linux/capability.h``."""


def may_mount() -> bool:
    """Return whether this process has CAP_SYS_ADMIN."""
    status = Path("/proc/self/status")
    found = (
        re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
        if status.exists()
        else None
    )
    return found is not None and bool(int(found[1], 16) >> CAP_SYS_ADMIN & 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if not may_mount():
        pytest.skip(
            "no CAP_SYS_ADMIN, as in a plain container or for a plain user: no file system can be mounted"
        )
    where = tmp_path / "disk"
    where.mkdir()
    options = f"size={SIZE_BYTES},mode=0700,uid={os.getuid()}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        missing("no `mount` on this machine")
    if mounted.returncode:
        missing(
            f"no file system can be mounted, though CAP_SYS_ADMIN is there: {mounted.stderr.strip()}"
        )
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
        status, headers, _ = post(
            self._running.http, metrics_request((who(), [row(self._next, values)]))
        )
        if status == 200:
            self.taken.append(self._next)
            self._next += 1
        return status, headers


def readyz(running: Service) -> tuple[int, str]:
    """Ask whether the service takes data."""
    try:
        with urllib.request.urlopen(
            f"{running.http}/readyz", timeout=ANSWER_S
        ) as answer:
            return int(answer.status), answer.read().decode()
    except HTTPError as exc:
        return exc.code, exc.read().decode()


def fill(file: Path) -> None:
    """Take all the space that is left."""
    with suppress(OSError), file.open("ab", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass


def says_full(text: str) -> bool:
    """Whether a text says so of the disk, by a write that failed, or by a count of the space that was due before."""
    return "No space left on device" in text or "half of the free disk" in text


def said_until(running: Service, text: str) -> None:
    """Read what the service says up to the line that holds *text*."""
    assert running.process.stderr is not None
    for line in running.process.stderr:
        if text in line:
            return
    pytest.fail(f"it ended without saying {text!r}")


def client_of(running: Service) -> Client:
    """A client whose first fifty rows were answered for."""
    client = Client(running)
    for _ in range(50):
        assert client.send()[0] == 200
    return client


def delivered_with_what_follows(
    tmp_path: Path, running: Service, client: Client
) -> None:
    """Open the gate, send more rows, and see that each row that was answered for arrives, once and in order."""
    (tmp_path / "gate").touch()
    for _ in range(20):
        until(lambda: client.send()[0] == 200)
    code, said = running.end()

    rows = [line for line in gated_lines(tmp_path) if "/k0 " in line]
    assert (code, rows) == (0, [f"trainer/k0 {step}" for step in client.taken]), said
    assert says_full(said), said


def test_a_full_disk_under_a_run_is_a_503_until_there_is_room_and_no_row_that_was_answered_for_is_lost(
    tmp_path: Path, disk: Path
) -> None:
    runs, ballast = disk / "runs", disk / "ballast"
    env = environment(tmp_path, OTEL_BRIDGE_DRAIN_TIMEOUT_S="60", **install(tmp_path))
    with service(tmp_path, env, "--exporters", "gated", "--dir", str(runs)) as running:
        client = client_of(running)
        report_when(RunFolder(runs, RUN), exporter_is("retrying", "gated"))
        fill(ballast)
        refused = [client.send() for _ in range(3)]
        full = readyz(running)
        given = otel_bridge("status", str(runs), cwd=tmp_path, env=env).stdout
        ballast.unlink()
        until(lambda: readyz(running) == (200, "ready\n"))

        delivered_with_what_follows(tmp_path, running, client)

    assert [(status, headers["retry-after"]) for status, headers in refused] == [
        (503, "1")
    ] * 3
    assert (full[0], says_full(full[1])) == (503, True), full
    assert "held by gated" in given


def test_a_run_that_no_bridge_can_begin_on_a_full_disk_is_begun_once_there_is_room(
    tmp_path: Path, disk: Path
) -> None:
    runs, ballast = disk / "runs", disk / "ballast"
    env = environment(tmp_path, OTEL_BRIDGE_DRAIN_TIMEOUT_S="60", **install(tmp_path))
    folder = RunFolder(runs, RUN)
    folder.create()
    held = folder.lock()
    assert held.acquire()
    with service(tmp_path, env, "--exporters", "gated", "--dir", str(runs)) as running:
        client = client_of(running)
        said_until(running, "is in use by another process")
        fill(ballast)
        held.release()
        refused = [client.send() for _ in range(3)]
        drained = otel_bridge(
            "drain", "--exporters", "gated", str(folder.path), cwd=tmp_path, env=env
        )
        given = otel_bridge("status", str(runs), cwd=tmp_path, env=env).stdout
        ballast.unlink()

        delivered_with_what_follows(tmp_path, running, client)

    assert [(status, headers["retry-after"]) for status, headers in refused] == [
        (503, "1")
    ] * 3
    assert (
        drained.returncode,
        f"(process {running.process.pid}) delivers this run" in drained.stdout,
    ) == (1, True)
    assert "no bridge has read it yet" in given
