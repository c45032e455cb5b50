"""A stock Collector that reads an engine gives the rows that the bridge's own requests give."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from support.collector.otelcol_programs import TOKEN, bridge, collector, running
from support.engines.engine import Engine, expected
from support.engines.served import answer, served
from support.free_ports import free_pair
from support.trainers import e2e_jobs as job
from support.waiting import HANG_S

pytestmark = pytest.mark.slow
TRAINER = """
    import sys
    import otel_bridge

    run = otel_bridge.init("site", "ppo", role="trainer")
    for step in range(1, 3):
        sys.stdin.readline()
        run.log({"loss": 1.0}, step=step)
    run.finish()
"""


@pytest.mark.long
def test_every_family_of_an_engine_comes_through_the_collector(tmp_path: Path) -> None:
    port, engine, requests = free_pair(), Engine("vllm 0.9"), threading.Semaphore(0)

    def respond(handler: BaseHTTPRequestHandler) -> None:
        engine.work()
        answer(
            handler,
            engine.text().encode(),
            **{"Content-Type": "text/plain; version=0.0.4"},
        )
        requests.release()

    with (
        served(respond) as address,
        running(bridge(tmp_path / "bridge", port, "file")),
        job.no_bridge_left(tmp_path),
    ):
        where = {
            "ENGINES": f"[{address}]", "ENGINES_INTERVAL": "1s", "ENGINES_TIMEOUT": "1s",
            "ENGINES_QUEUE": tmp_path / "queue",
            "RL_PROJECT": "site", "RL_RUN": "ppo", "BRIDGE": f"127.0.0.1:{port}", "BRIDGE_INSECURE": "true",
        }  # fmt: skip
        sent = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_BRIDGE_TOKEN": TOKEN,
        }  # fmt: skip
        with running(collector(tmp_path, "engines", 0, **where)):
            trainer = job.start(
                job.script(tmp_path / "job.py", TRAINER),
                job.environment(tmp_path / "base", "otlp", **sent),
            )
            assert trainer.stdin is not None
            for _ in range(2):
                for _ in range(4):
                    assert requests.acquire(timeout=HANG_S)
                trainer.stdin.write(b"\n")
                trainer.stdin.flush()
            _, errors = trainer.communicate(timeout=HANG_S)
            # The Collector still reads the engine: the run ends without it.
            job.until(lambda: job.ended(tmp_path / "bridge"))

    assert errors.decode() == ""
    rows = [
        line
        for line in job.lines(tmp_path / "bridge")
        if line.get("role") == "engine" and line.get("step")
    ]
    readings = [engine.numbers()]
    engine.work()
    readings.append(engine.numbers())
    names = {key.partition("/p")[0] for key in expected([(engine, readings, 1.0)])}
    keys = {
        key.partition("/p")[0].removeprefix("engine/") for key in rows[-1]["values"]
    }  # type: ignore[attr-defined]
    assert rows[-1]["axis"] == "trainer/step"
    assert {key for key in keys if not key.startswith(address)} == {"engines", *names}
    assert f"{address}/vllm:prompt_tokens" in keys
