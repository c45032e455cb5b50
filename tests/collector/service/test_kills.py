"""SIGKILL of a service, at any instant and at each step of a row's way: what was answered is in the tracker, once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import read_report
from support.collector import killed_service
from support.collector.killed_service import POINTS
from support.collector.service_senders import Sender
from support.free_ports import free_port
from support.otlp.otlp_samples import RUN
from support.trainers.forks import Forks, forks

pytestmark = pytest.mark.long

RANDOM_KILLS = {"durable": 80, "cannot tell": 40}
KILLS_AT_A_POINT = 10
OTHER = "run0000000000002"


@contextmanager
def services(
    base: Path, tracker: Path, ports: tuple[int, int], mode: str
) -> Iterator[Forks]:
    tracker.mkdir()
    with forks(
        killed_service.__file__, str(base), str(tracker), *map(str, ports), mode
    ) as services:
        yield services


def senders(ports: tuple[int, int]) -> list[Sender]:
    """Two runs; of the first one two processes, one a protocol."""
    grpc, http = ports
    return [
        Sender("grpc", grpc, "a-grpc"),
        Sender("http", http, "a-http"),
        Sender("http", http, "b-http", run_id=OTHER),
    ]


def finish(base: Path, service: Forks, sending: list[Sender]) -> None:
    """End all senders, wait for the delivery, and end the service as a supervisor does."""
    pid = service.begin()
    for one in sending:
        one.finish()
    os.kill(pid, signal.SIGTERM)
    assert service.ended() == 0
    for run_id in (RUN, OTHER):
        report = read_report(RunFolder(base, run_id))
        assert report is not None
        assert (report.missing_rows, report.drops) == (0, {})


def assert_once_and_in_order(
    tracker: Path, sending: list[Sender], *, once: bool
) -> None:
    for run_id in (RUN, OTHER):
        lines = [line.split() for line in (tracker / run_id).read_text().splitlines()]
        positions, names = (
            [int(position) for position, _ in lines],
            [name for _, name in lines],
        )
        first = list(dict.fromkeys(names))
        for one in sending:
            if one.run_id == run_id:
                assert [
                    name for name in first if f":{one.instance}:" in name
                ] == one.row_ids
        assert len(first) == sum(
            one.acknowledged for one in sending if one.run_id == run_id
        )
        if once:
            assert positions == sorted(set(positions))
            assert max(Counter(names).values()) == 1


@pytest.mark.parametrize("mode", ["durable", "cannot tell"])
def test_a_service_killed_at_random_instants_has_every_row_that_it_answered_for(
    tmp_path: Path, mode: str
) -> None:
    chance, ports = random.Random(11), (free_port(), free_port())
    base, tracker, sending = tmp_path / "runs", tmp_path / "tracker", senders(ports)
    with services(base, tracker, ports, mode) as service:
        for one in sending:
            one.start()
        for _ in range(RANDOM_KILLS[mode]):
            service.begin()
            time.sleep(chance.uniform(0.0, 0.3))
            service.kill()
        finish(base, service, sending)

    assert service.killed == RANDOM_KILLS[mode]
    assert all(one.again for one in sending)
    assert_once_and_in_order(tracker, sending, once=mode == "durable")


def test_a_service_killed_at_each_step_of_a_row_s_way_loses_none_and_doubles_none(
    tmp_path: Path,
) -> None:
    chance, ports = random.Random(13), (free_port(), free_port())
    base, tracker, sending = tmp_path / "runs", tmp_path / "tracker", senders(ports)
    with services(base, tracker, ports, "durable") as service:
        for one in sending:
            one.start()
        for _ in range(KILLS_AT_A_POINT):
            for point in POINTS:
                service.begin(f"{point} {chance.randint(1, 6)}")
                assert service.ended() == -signal.SIGKILL
        finish(base, service, sending)

    assert service.killed == KILLS_AT_A_POINT * len(POINTS)
    assert_once_and_in_order(tracker, sending, once=True)
