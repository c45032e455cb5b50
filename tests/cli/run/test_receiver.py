"""``otel-bridge run``: what children with a stock OpenTelemetry SDK send lands in the same run."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.journal.folder import RunFolder, run_folders
from support.free_ports import free_pair
from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    statuses,
    values,
)
from support.trainers.stock_programs import GLOBAL_API, OTLP_BY_ITSELF

TRAIN = (
    "import otel_bridge; otel_bridge.init(role='trainer').log({'loss': 0.5}, step=7)"
)
FROM_BOTH = (
    {
        "trainer/loss": [(7, 0.5)],
        "reward-server/queue": [(7, 3.0)],
        "reward-server/requests": [(None, 5)],
    },
    [("reward-server/rollouts", 7, 0.5)],
)
"""What arrives of `TRAIN`, and of a stock program whose service is ``reward-server``."""


def arrived(
    base: Path,
) -> tuple[dict[str, list[tuple[int | None, Any]]], list[tuple[str, int, float]]]:
    """Values of the only run, without the statistics that the bridge itself makes of rollouts; and its rollouts."""
    folder = only_folder(base)
    found = [record for record in records(folder) if record["kind"] == "rollout"]
    return (
        {
            key: value
            for key, value in values(folder).items()
            if "/rollouts/" not in key
        },
        [(record["key"], record["step"], record["reward"]) for record in found],
    )


@pytest.mark.parametrize(
    ("code", "start"),
    [(OTLP_BY_ITSELF, "python"), (GLOBAL_API, "opentelemetry-instrument python")],
)
def test_a_stock_sdk_lands_in_the_run_of_the_others_under_its_service_name(
    tmp_path: Path, code: str, start: str
) -> None:
    train, reward = (
        program(tmp_path, "train.py", TRAIN),
        program(tmp_path, "reward.py", code),
    )
    both = f"python {train} & OTEL_SERVICE_NAME=reward-server {start} {reward}; wait"

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "sh",
        "-c",
        both,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert done.returncode == 0, done.stderr
    assert arrived(tmp_path / ".otel-bridge") == FROM_BOTH
    assert statuses(only_folder(tmp_path / ".otel-bridge")) == ["finished"]


def test_a_proxy_of_the_environment_gets_nothing_that_is_for_this_machine(
    tmp_path: Path,
) -> None:
    reward = program(tmp_path, "reward.py", OTLP_BY_ITSELF)
    nothing_listens = f"http://127.0.0.1:{free_pair()}"
    env = environment(tmp_path, HTTP_PROXY=nothing_listens, NO_PROXY="tracker.example")

    done = otel_bridge(
        "run", "--exporters", "file", "--", "python", reward, cwd=tmp_path, env=env
    )

    folder = only_folder(tmp_path / ".otel-bridge")
    assert done.returncode == 0, done.stderr
    assert values(folder)["requests"] == [(None, 5)]


SERVER_OF_TRACES = """
    import os
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        exporter = OTLPSpanExporter(endpoint=os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"], insecure=True)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        exporter = OTLPSpanExporter(endpoint=os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
    print("sends by", protocol)
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with tracers.get_tracer("server").start_as_current_span("rollout", attributes={"rl.step": 7, "rl.reward": 0.5}):
        pass
    tracers.shutdown()
"""
"""Sends as vLLM does: it reads the variables of traces only, and gRPC is its default."""


@pytest.mark.parametrize(
    ("chosen", "sent_by"),
    [("", "http/protobuf"), ("http/protobuf", "http/protobuf"), ("grpc", "grpc")],
)
def test_a_server_that_reads_the_variables_of_traces_only_reaches_the_run(
    tmp_path: Path, chosen: str, sent_by: str
) -> None:
    server = program(tmp_path, "server.py", SERVER_OF_TRACES)
    env = environment(tmp_path, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=chosen)

    done = otel_bridge(
        "run", "--exporters", "file", "--", "python", server, cwd=tmp_path, env=env
    )

    assert (done.returncode, f"sends by {sent_by}" in done.stdout) == (0, True), (
        done.stderr
    )
    rollouts = [
        record
        for record in records(only_folder(tmp_path / ".otel-bridge"))
        if record["kind"] == "rollout"
    ]
    assert [(record["step"], record["reward"]) for record in rollouts] == [(7, 0.5)]


SERVER_OF_A_JOB = """
    import os, sys
    from opentelemetry.propagate import extract
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "vllm-server"})
    print("names the run", resource.attributes["rl.run.name"] == os.environ["OTEL_BRIDGE_RUN_NAME"], flush=True)
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=60_000))
    for line in sys.stdin:
        parent = extract({"traceparent": line.strip()})
        with tracers.get_tracer("vllm").start_as_current_span("llm_request", context=parent):
            print("answered", flush=True)
    tracers.shutdown()
"""
"""Answers a line with a line, and sends its spans when its input ends, as vLLM sends them some seconds later."""

JOB_WITH_A_SERVER = """
    import subprocess, sys
    import otel_bridge
    from opentelemetry import propagate

    server = subprocess.Popen(
        [sys.executable, "server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    print(server.stdout.readline(), end="")
    run = otel_bridge.init(project="vllm", name="mine", role="explorer", otel=OTEL)
    for step in (1, 2):
        with run.rollout(step=step) as rollout:
            with otel_bridge.chat("tiny", input="q") as chat:
                carrier = {}
                propagate.inject(carrier)
                server.stdin.write(carrier["traceparent"] + "\\n")
                server.stdin.flush()
                chat.output = server.stdout.readline()
            rollout.reward = 1.0
    server.stdin.close()
    server.wait()
    run.finish()
"""


@pytest.mark.parametrize("otel", ["False", "True"])
def test_spans_of_a_server_complete_the_rollouts_of_a_program_that_names_its_run(
    tmp_path: Path, otel: str
) -> None:
    program(tmp_path, "server.py", SERVER_OF_A_JOB)
    job = program(tmp_path, "job.py", JOB_WITH_A_SERVER.replace("OTEL", otel))

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        job,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, done.stdout) == (0, "names the run True\n"), done.stderr
    [mine] = [
        folder
        for folder in run_folders(tmp_path / ".otel-bridge")
        if statuses(folder) and rollout_steps(folder)
    ]
    assert sorted(rollout_steps(mine)) == [1, 2]
    assert (sorted(steps_of_server_spans(mine)), "trace/other" in done.stderr) == (
        [1, 2],
        False,
    )


def rollout_steps(folder: RunFolder) -> list[int]:
    return [record["step"] for record in records(folder) if record["kind"] == "rollout"]


def steps_of_server_spans(folder: RunFolder) -> list[int]:
    """The step of each span of the server, within its rollout or after it under the same trace id."""
    steps = {
        record["id"]: record["step"]
        for record in records(folder)
        if record["kind"] == "rollout"
    }
    return [
        steps[record["id"]]
        for record in records(folder)
        for span in record.get("spans", ())
        if span["name"] == "llm_request"
    ]


def test_variables_for_the_users_own_collector_do_not_reach_the_children(
    tmp_path: Path,
) -> None:
    reward = program(tmp_path, "reward.py", OTLP_BY_ITSELF)
    env = environment(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://127.0.0.1:9/v1/metrics",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20mine",
        OTEL_SERVICE_NAME="reward",
    )

    done = otel_bridge(
        "run", "--exporters", "file", "--", "python", reward, cwd=tmp_path, env=env
    )

    assert done.returncode == 0, done.stderr
    assert values(only_folder(tmp_path / ".otel-bridge"))["reward/queue"] == [(7, 3.0)]


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_listen_takes_its_ports_and_says_where_one_is_taken(
    tmp_path: Path, host: str
) -> None:
    reward, port = program(tmp_path, "reward.py", OTLP_BY_ITSELF), free_pair()
    command = ["run", "--exporters", "file", "--listen", f"{host}:{port}", "--"]
    said = otel_bridge(
        *command,
        "sh",
        "-c",
        "echo $OTEL_EXPORTER_OTLP_ENDPOINT",
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    answers: list[tuple[str, subprocess.CompletedProcess[str]]] = []
    for number, what in ((port, "gRPC"), (port + 1, "HTTP")):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", number))
            taken.listen()

            answers.append(
                (
                    what,
                    otel_bridge(
                        *command,
                        "python",
                        reward,
                        cwd=tmp_path,
                        env=environment(tmp_path),
                    ),
                )
            )

    assert (said.returncode, said.stdout) == (0, f"http://127.0.0.1:{port + 1}\n")
    for what, done in answers:
        assert (done.returncode, done.stdout) == (1, "")
        # gRPC's core writes a line of its own before.
        assert (
            done.stderr.strip()
            .splitlines()[-1]
            .startswith(f"Error: {what} cannot listen on 127.0.0.1:")
        )
    assert run_folders(tmp_path / ".otel-bridge") == []


def test_an_address_that_others_reach_gets_a_token_which_the_children_know(
    tmp_path: Path,
) -> None:
    reward, port = program(tmp_path, "reward.py", OTLP_BY_ITSELF), free_pair()
    command = (
        f"env | grep -c OTEL_BRIDGE_TOKEN=; OTEL_SERVICE_NAME=reward python {reward}"
    )
    listen = ["--listen", f"0.0.0.0:{port}"]

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        *listen,
        "--",
        "sh",
        "-c",
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert values(only_folder(tmp_path / ".otel-bridge"))["reward/queue"] == [(7, 3.0)]


WITHOUT_EXTRA = """
    import sys
    from importlib.machinery import PathFinder

    find = PathFinder.find_spec
    def without_extra(name, *where):
        return None if name.partition(".")[0] == "grpc" else find(name, *where)
    PathFinder.find_spec = without_extra

    from otel_bridge.cli import main
    main(sys.argv[1:])
"""


def test_without_the_extra_programs_of_this_machine_are_received_over_http(
    tmp_path: Path,
) -> None:
    bare, train = (
        program(tmp_path, "bare.py", WITHOUT_EXTRA),
        program(tmp_path, "train.py", TRAIN),
    )
    reward = program(tmp_path, "reward.py", OTLP_BY_ITSELF)
    both = f"python {train} & OTEL_SERVICE_NAME=reward-server python {reward}; wait"
    env = environment(tmp_path, OTEL_BRIDGE_TOKEN="t0ken")

    done = call(
        [PYTHON, bare, "run", "--exporters", "file", "--", "sh", "-c", both],
        cwd=tmp_path,
        env=env,
    )

    assert done.returncode == 0, done.stderr
    assert arrived(tmp_path / ".otel-bridge") == FROM_BOTH
    assert "collector" not in done.stderr


def test_without_the_extra_listening_for_others_is_an_error_that_says_what_to_install(
    tmp_path: Path,
) -> None:
    bare = program(tmp_path, "bare.py", WITHOUT_EXTRA)
    command = [
        PYTHON,
        bare,
        "run",
        "--exporters",
        "file",
        "--listen",
        "127.0.0.1:4317",
        "--",
        "true",
    ]

    done = call(command, cwd=tmp_path, env=environment(tmp_path))

    said = (
        "Error: --listen 127.0.0.1:4317: receiving gRPC needs the extra: pip install 'otel-bridge[collector]'; "
        "without --listen programs of this machine are received over HTTP\n"
    )
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("listen", ["4317", "127.0.0.1", "127.0.0.1:65535", ":http"])
def test_a_bad_address_to_listen_on_is_refused_with_an_example(
    tmp_path: Path, listen: str
) -> None:
    command = ["run", "--exporters", "file", "--listen", listen, "--", "true"]

    done = otel_bridge(*command, cwd=tmp_path, env=environment(tmp_path))

    assert done.returncode == 1
    assert "expected HOST:PORT, e.g. 127.0.0.1:4317, where PORT + 1" in done.stderr
