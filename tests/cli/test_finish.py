"""``otel-bridge finish``: the end of a run whose processes cannot say it."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

from otel_bridge.journal.locks import probe
from support.trainers.command_runs import (
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    rows_read,
    started,
    statuses,
    until,
)
from support.waiting import ANSWER_S

TRAIN = """
    import time
    import otel_bridge
    run = otel_bridge.init("maths", "ppo", role="trainer")
    run.log({"loss": 1.0}, step=1)
    time.sleep(300)
"""


def test_a_run_whose_process_was_killed_ends_as_a_person_says_with_no_bridge_running(
    tmp_path: Path,
) -> None:
    env = environment(
        tmp_path, OTEL_BRIDGE_EXPORTERS="file", OTEL_BRIDGE_END_GRACE_S="0.1"
    )
    train = program(tmp_path, "train.py", TRAIN)
    with started(["python", train], cwd=tmp_path, env=env) as process:
        until(lambda: rows_read(tmp_path) == 1, "the row")
        process.send_signal(signal.SIGKILL)
        ended(tmp_path / ".otel-bridge")
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path), "the end of the bridge")

    done = otel_bridge("finish", "ppo", "--status", "failed", cwd=tmp_path, env=env)
    too_long = otel_bridge("finish", "p" * 300, cwd=tmp_path, env=env)
    by_folder = otel_bridge(
        "finish", str(folder.path), "--status", "failed", cwd=tmp_path / "home", env=env
    )
    folder.format_path.write_bytes(b'{"format": 99}')
    newer = otel_bridge("finish", "ppo", cwd=tmp_path, env=env)

    report = report_of(tmp_path / ".otel-bridge")
    assert (done.returncode, report.status, report.ended) == (0, "failed", True), (
        done.stdout + done.stderr
    )
    assert statuses(folder) == ["killed", "failed"]
    assert (too_long.returncode, "no run 'ppp" in too_long.stderr) == (2, True), (
        too_long.stderr
    )
    assert by_folder.returncode == 0, by_folder.stdout + by_folder.stderr
    assert (newer.returncode, "upgrade otel-bridge" in newer.stderr) == (1, True)
    assert not list(
        folder.control_dir.iterdir()
    )  # no request is left for the newer version


def test_the_bridge_of_a_service_ends_a_run_at_once_and_later_data_opens_it_again(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path)
    address = ("--grpc", "off", "--http", "127.0.0.1:0", "--exporters", "file")
    with started(["otel-bridge", "serve", *address], cwd=tmp_path, env=env) as service:
        assert service.stderr is not None
        url = re.findall(r"http://[^\s;]+", service.stderr.readline())[-1]
        _send(url, 1)
        until(lambda: rows_read(tmp_path) == 1, "the row")

        first = otel_bridge(
            "finish", "ppo", "--status", "failed", cwd=tmp_path, env=env
        )
        base = tmp_path / ".otel-bridge"
        said = ended(base)
        _send(url, 2)
        opened = until(
            lambda: report_of(base) if report_of(base).rows == 2 else None,
            "the second row",
        )
        second = otel_bridge("finish", only_folder(base).run_id, cwd=tmp_path, env=env)
        again = ended(base)

    run_id = only_folder(tmp_path / ".otel-bridge").run_id
    assert (first.returncode, first.stdout[: len(f"maths/ppo ({run_id}) failed")]) == (
        0, f"maths/ppo ({run_id}) failed",
    ), first.stderr  # fmt: skip
    assert (said.status, opened.ended) == ("failed", False)
    assert (second.returncode, again.status) == (0, "finished")


def _send(url: str, step: int) -> None:
    pairs = {"service.namespace": "maths", "service.name": "ppo"}
    attributes = [
        {"key": key, "value": {"stringValue": value}} for key, value in pairs.items()
    ]
    point: dict[str, Any] = {
        "asDouble": 0.5,
        "timeUnixNano": str(1_700_000_000_000_000_000 + step),
    }
    point["attributes"] = [{"key": "step", "value": {"intValue": str(step)}}]
    metrics = [{"name": "loss", "gauge": {"dataPoints": [point]}}]
    body = {
        "resourceMetrics": [
            {
                "resource": {"attributes": attributes},
                "scopeMetrics": [{"metrics": metrics}],
            }
        ]
    }
    asked = urllib.request.Request(
        f"{url}/v1/metrics",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    assert urllib.request.urlopen(asked, timeout=ANSWER_S).status == 200


def test_a_run_that_is_not_here_is_said_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / ".otel-bridge").mkdir()

    done = otel_bridge("finish", "ppo", cwd=tmp_path, env=environment(tmp_path))

    assert (done.returncode, "no run folder here" in done.stderr) == (2, True)


def test_an_empty_run_is_refused_and_ends_no_run(tmp_path: Path) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    with started(
        ["python", program(tmp_path, "train.py", TRAIN)], cwd=tmp_path, env=env
    ) as process:
        until(lambda: rows_read(tmp_path) == 1, "the row")

        done = otel_bridge("finish", "", cwd=tmp_path, env=env)

        assert (done.returncode, "RUN is empty" in done.stderr) == (2, True)
        assert report_of(tmp_path / ".otel-bridge").status == "running"
        process.kill()
