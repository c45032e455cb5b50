"""``otel-bridge serve`` as a process: begin, end, what remains, what is said."""

from __future__ import annotations

import json
import resource
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from otel_bridge.cli.serve.command import FILES, allow_files
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.segment import read_segment
from otel_bridge_collector import Receiver, ReceiverSettings
from support.bridge.bridge_doubles import report_when, until
from support.bridge.gated_tracker import gated_lines, install
from support.collector.service_process import (
    exporter_is,
    folder_of,
    service,
    written_rows,
)
from support.otlp.otlp_samples import RUN, metrics_request, row, who
from support.trainers.command_runs import environment, otel_bridge
from support.waiting import ANSWER_S


def frames(folder: RunFolder) -> int:
    """How many requests a receiver has put into *folder*."""
    read = [
        read_segment(one.path, 0, limit_bytes=1 << 30, final=False)[1]
        for one in folder.segments()
    ]
    return sum(len(scan.frames) for scan in read)


def test_what_is_answered_is_delivered_before_the_end_and_nothing_remains(
    tmp_path: Path,
) -> None:
    with service(tmp_path, environment(tmp_path), "--exporters", "file") as running:
        assert running.send(1, 2, 3) == 200

        code, said = running.end()

    assert (code, written_rows(folder_of(tmp_path), "file")) == (0, 3)
    assert said.rstrip().endswith("ended; nothing remains")


def test_rows_that_wait_for_their_rest_are_released_at_the_end(tmp_path: Path) -> None:
    whole = row(1, {"loss": 0.5, "reward": 1.0})
    del whole.metrics[1]
    env = environment(tmp_path, OTEL_BRIDGE_ROW_WAIT_S="600")
    with service(tmp_path, env, "--exporters", "file") as running:
        body = metrics_request((who(), [whole]))
        headers = {"Content-Type": "application/x-protobuf"}
        urllib.request.urlopen(
            urllib.request.Request(f"{running.http}/v1/metrics", body, headers),
            timeout=ANSWER_S,
        ).close()
        report_when(folder_of(tmp_path), lambda report: report.waiting.get("rows") == 1)

        code, _ = running.end()

    assert (code, written_rows(folder_of(tmp_path), "file")) == (0, 1)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(
        ReceiverSettings.from_environment({"OTEL_BRIDGE_TOKEN": "t"}, tmp_path / "next")
    )
    yield receiver
    receiver.stop()


def test_a_blocked_exporter_is_not_waited_for_and_what_remains_is_delivered_by_the_next_service(
    tmp_path: Path, guarded: Receiver
) -> None:
    env = environment(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT=guarded.grpc_endpoint,
        OTEL_BRIDGE_DRAIN_TIMEOUT_S="600",
    )
    folder, far = folder_of(tmp_path), RunFolder(tmp_path / "next", RUN)
    with service(tmp_path, env, "--exporters", "otlp,file") as running:
        running.send(1, 2)
        report_when(folder, exporter_is("blocked"))
        code, said = running.end()
    assert code == 1
    assert f"{RUN}: " in said
    assert "otlp, blocked" in said
    assert "OTEL_BRIDGE_TOKEN" in said
    assert written_rows(folder, "file") == 2

    with service(
        tmp_path, {**env, "OTEL_BRIDGE_TOKEN": "t"}, "--exporters", "otlp,file"
    ) as running:
        until(lambda: frames(far) > 0)
        assert running.end()[0] == 0


def test_a_second_signal_ends_a_drain_at_once(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_BRIDGE_DRAIN_TIMEOUT_S="600",
    )
    with service(tmp_path, env, "--exporters", "otlp") as running:
        running.send(1)
        report_when(folder_of(tmp_path), exporter_is("retrying"))

        code, said = running.end(times=2)

    assert code == 1
    assert "otlp, retrying" in said


def test_a_drain_that_a_second_signal_cuts_short_is_gone_on_with_by_the_next_service(
    tmp_path: Path,
) -> None:
    extra = install(tmp_path)
    env = environment(tmp_path, OTEL_BRIDGE_DRAIN_TIMEOUT_S="600", **extra)
    with service(tmp_path, env, "--exporters", "gated,file") as running:
        running.send(*range(1, 51))
        report_when(
            folder_of(tmp_path),
            lambda report: report.exporters["gated"].state == "retrying",
        )
        assert running.end(times=2)[0] == 1
    (tmp_path / "gate").touch()

    with service(tmp_path, env, "--exporters", "gated,file") as running:
        running.send(51)
        assert running.end()[0] == 0

    assert gated_lines(tmp_path) == [f"trainer/loss {step}" for step in range(1, 52)]
    assert written_rows(folder_of(tmp_path), "file") == 51


def test_new_data_is_refused_while_it_ends_and_the_port_still_answers(
    tmp_path: Path,
) -> None:
    env = environment(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_BRIDGE_DRAIN_TIMEOUT_S="600",
    )
    with service(tmp_path, env, "--exporters", "otlp") as running:
        running.send(1)
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.send(2) == 503)

        with pytest.raises(HTTPError, match="503"):
            urllib.request.urlopen(f"{running.http}/readyz", timeout=ANSWER_S)


def test_a_service_names_the_runs_from_before_ahead_of_their_delivery(
    tmp_path: Path,
) -> None:
    with service(tmp_path, environment(tmp_path), "--exporters", "file") as running:
        running.send(1, 2)
        until(lambda: frames(folder_of(tmp_path)) == 1)
        running.process.kill()

    with service(tmp_path, environment(tmp_path), "--exporters", "file") as running:
        found = running.before

    assert (
        f"found 1 run in {tmp_path / '.otel-bridge'}, of which 1 will be delivered now: "
        in found
    )


def test_two_services_on_one_directory_are_distinguished(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with service(tmp_path, env, "--exporters", "file") as running:
        second = otel_bridge(
            "serve", "--grpc", "off", "--http", "off", cwd=tmp_path, env=env
        )

        assert second.returncode == 1
        assert (
            f"is already served by process {running.process.pid}; stop that one"
            in second.stderr
        )


def test_a_killed_service_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    env = environment(tmp_path)
    for number in range(1, 6):
        with service(tmp_path, env, "--exporters", "file") as running:
            assert running.send(number) == 200
            running.process.kill()

    with service(tmp_path, env, "--exporters", "file") as running:
        assert running.end()[0] == 0
    assert written_rows(folder_of(tmp_path), "file") == 5


def test_many_runs_may_have_their_files_open_whatever_the_soft_limit_was() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (soft, hard) == (
        min(FILES, before[1]) if before[1] > 0 else FILES,
        before[1],
    )


def test_the_log_is_one_json_object_a_line(tmp_path: Path) -> None:
    with service(tmp_path, environment(tmp_path), "--log-format", "json") as running:
        running.send(1)
        code, said = running.end()

    lines = [json.loads(line) for line in (running.first + said).splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    assert next(
        line["message"] for line in lines if line["level"] == "warning"
    ).startswith("no exporter is chosen")
    assert code == 1
    remaining = next(line for line in lines if line.get("run") == RUN)
    assert remaining["level"] == "warning"
    assert not remaining["message"].startswith(RUN)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--grpc", "4317"), "expected HOST:PORT"),
        (("--grpc", "0.0.0.0:0"), "set OTEL_BRIDGE_TOKEN"),
        (("--exporters", "wand"), "wand"),
    ],
)
def test_what_cannot_work_is_said_at_the_start(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    done = otel_bridge(
        "serve",
        "--http",
        "127.0.0.1:0",
        *options,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert done.returncode == 1
    assert reason in done.stderr
