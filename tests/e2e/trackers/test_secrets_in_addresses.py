"""Passwords in the addresses that variables name: no output and no file of the run has one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.journal.report import Report, read_report
from support.trainers.command_runs import (
    BIN,
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    runs,
    until,
)

SECRET = "s3cr3t-pa55"
SHORT = "s3cr3t"
EXPORTERS = ("wandb", "mlflow", "trackio", "otlp")
JOB = """
    import otel_bridge
    run = otel_bridge.init("addresses", "job", role="trainer")
    run.log({"loss": 1.0}, step=1)
    run.log_rollouts([otel_bridge.Rollout([{"role": "user", "content": "2 + 2?"}], reward=1.0)], step=1)
    run.finish(timeout_s=1)
"""
CLOSED = "127.0.0.1:9"


def addresses(folder: Path, **variables: str) -> dict[str, str]:
    """Every variable that names an address, each with a password and a secret query parameter; nobody answers."""
    there = f"http://me:{SECRET}@{CLOSED}"
    return environment(
        folder, OTEL_BRIDGE_EXPORTERS=",".join(EXPORTERS), OTEL_BRIDGE_SYSTEM_METRICS="0",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"{there}?token={SECRET}", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{there}/v1/traces",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Basic%20{SECRET}",
        WANDB_BASE_URL=f"{there}/wandb", WANDB_API_KEY=f"{SECRET}".ljust(60, "0"), WANDB_MODE="online",
        OTEL_BRIDGE_WANDB_INIT_TIMEOUT_S="3", OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S="1",
        MLFLOW_TRACKING_URI=f"{there}/mlflow?api_key={SECRET}", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
        OTEL_BRIDGE_MLFLOW_TIMEOUT_S="2", OTEL_BRIDGE_TRACKIO_TIMEOUT_S="2",
        TRACKIO_SERVER_URL=f"{there}/?write_token={SECRET}&token={SECRET}", TRACKIO_WRITE_TOKEN=SECRET,
        OTEL_BRIDGE_DRAIN_TIMEOUT_S="8", **variables,
    )  # fmt: skip


PROXIES = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
    f"http://me:{SECRET}@{CLOSED}",
)


def holders(folder: Path, outputs: Mapping[str, str]) -> list[str]:
    """The one that has the secret: an output by name, a file by its path; what a database holds is in its bytes."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and "home" not in path.relative_to(folder).parts[:1]
    ]
    return sorted(
        [name for name, text in outputs.items() if SHORT in text]
        + [
            str(path.relative_to(folder))
            for path in files
            if SHORT.encode() in path.read_bytes()
        ]
    )


def failing(base: Path) -> Report | None:
    """The report when each exporter has failed once."""
    report = read_report(only_folder(base))
    states = (
        {}
        if report is None
        else {name: one.state for name, one in report.exporters.items() if one.reason}
    )
    return report if len(states) == len(EXPORTERS) else None


@pytest.mark.long
@pytest.mark.parametrize("proxies", [{}, PROXIES], ids=["direct", "behind a proxy"])
def test_no_output_and_no_file_has_a_password_of_an_address(
    tmp_path: Path, proxies: Mapping[str, str]
) -> None:
    env = addresses(tmp_path, **proxies)
    job = program(tmp_path, "job.py", JOB)
    said: dict[str, str] = {}

    def keep(name: str, done: subprocess.CompletedProcess[str]) -> None:
        said[name] = done.stdout + done.stderr

    keep("job", call([str(BIN / "python"), job], cwd=tmp_path, env=env))
    report = until(lambda: failing(runs(tmp_path)), "a reason of every exporter")
    for command in (["status"], ["status", "--json"], ["doctor"], ["rollouts"]):
        keep(" ".join(command), otel_bridge(*command, cwd=tmp_path, env=env))
    keep(
        "run", otel_bridge("run", "--", str(BIN / "python"), job, cwd=tmp_path, env=env)
    )

    assert {
        name: one.state in {"blocked", "retrying"}
        for name, one in report.exporters.items()
    } == dict.fromkeys(EXPORTERS, True)
    assert holders(tmp_path, said) == []
    assert {name: one.destination for name, one in report.exporters.items()} == {
        "wandb": {"WANDB_MODE": "online", "WANDB_BASE_URL": f"http://{CLOSED}/wandb"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"http://{CLOSED}/mlflow"},
        "trackio": {"TRACKIO_SERVER_URL": f"http://{CLOSED}/"},
        "otlp": report.exporters["otlp"].destination,
    }
