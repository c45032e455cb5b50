"""Endpoints of engines: read in the bridge, once; what is slow, dead or wrong costs nothing but a line."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from otel_bridge.bridge.engines import endpoint
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.machine import this_host
from support.bridge.bridge_doubles import measurements, run_folder
from support.engines.engine import Engine
from support.engines.served import answer, served
from support.otlp.otlp_samples import RUN, source
from support.trainers import e2e_jobs as job
from support.waiting import HANG_S

JOB = """
    import sys, threading
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer")
    for step in range(1, 4):
        sys.stdin.readline()
        run.log({"loss": 1.0}, step=step)
        print("logged", flush=True)
    print(threading.active_count(), "prometheus_client" in sys.modules)
    run.finish()
"""


def header(*addresses: str) -> SegmentHeader:
    return SegmentHeader(
        instance_id="i1", run_id=RUN, project="gsm8k", run_name="ppo", kind="process",
        resource=source("i1", "trainer").resource, exporters={}, destinations={}, host="h", boot_id=this_host().boot_id,
        pid=1, start_ticks=1, created_unix_ns=1, scrape=addresses, scrape_s=0.01,
    )  # fmt: skip


def line_about(base: Path, address: str) -> str:
    """Return the line that the bridge writes about an endpoint."""
    lines: list[str] = []
    with measurements(run_folder(base), lines.append) as (scraper, _):
        job.until(lambda: scraper.measure_if_due([header(address)]) or lines)
    return lines[0] if lines else ""


def test_the_rows_of_a_job_show_its_engine_and_the_job_reads_nothing_itself(
    tmp_path: Path,
) -> None:
    base, engine = tmp_path / "base", Engine("vllm 0.9")
    requests = threading.Semaphore(0)

    def respond(handler: BaseHTTPRequestHandler) -> None:
        engine.work()
        answer(handler, engine.text().encode())
        requests.release()

    with served(respond) as address, job.no_bridge_left(base):
        env = job.environment(
            base,
            OTEL_BRIDGE_SCRAPE=f"http://{address}",
            OTEL_BRIDGE_SCRAPE_S="0.1",
            OTEL_BRIDGE_POLL_S="0.01",
        )
        process = job.start(job.script(tmp_path / "work" / "job.py", JOB), env)
        assert process.stdin is not None
        for _ in range(3):
            for _ in range(8):
                assert requests.acquire(timeout=HANG_S)
            process.stdin.write(b"\n")
            process.stdin.flush()
        out, err = process.communicate(timeout=HANG_S)
        job.until(lambda: job.ended(base))

    rows = [
        line
        for line in job.lines(base)
        if line.get("role") == "engine" and line.get("step") is not None
    ]
    assert (out.decode().splitlines()[-1], err.decode()) == ("1 False", "")
    assert [line["step"] for line in rows] == sorted({line["step"] for line in rows})  # type: ignore[type-var]
    values = rows[-1]["values"]
    assert values["engine/engines"] == 1  # type: ignore[index]
    assert values[f"engine/{address}/vllm:prompt_tokens/per_s"] > 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("respond", "problem"),
    [
        (lambda handler: answer(handler, b"", 500), "HTTP 500, expected 200"),
        (
            lambda handler: answer(handler, b"", 302, Location="http://127.0.0.1:9/"),
            "HTTP 302, expected 200",
        ),
        (
            lambda handler: answer(handler, b"# TYPE up gauge\nup 1\n"),
            "has no vllm:* or sglang:* metrics",
        ),
        (lambda handler: answer(handler, b"vllm:x{ 1\n"), "another format"),
        (lambda handler: answer(handler, b"x" * (17 << 20)), "more than 16 MiB"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line_that_names_the_engine(
    tmp_path: Path, respond: Callable[[BaseHTTPRequestHandler], None], problem: str
) -> None:
    with served(respond) as address:
        line = line_about(tmp_path, f"http://{address}/metrics")

    assert line.startswith(f"no metrics of 1 of 1 sources: {address}")
    assert problem in line


def test_an_engine_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with served(lambda _: None) as address:
        pass

    assert "is the address in OTEL_BRIDGE_SCRAPE right?" in line_about(
        tmp_path, f"http://{address}/metrics"
    )


def test_the_problem_of_an_engine_is_there_until_it_answers_again(
    tmp_path: Path,
) -> None:
    text = Engine("vllm 0.9").text().encode()
    statuses = [200, 503]
    changes: list[int] = []

    with (
        measurements(
            run_folder(tmp_path),
            problems_changed=lambda: changes.append(len(scraper.problems)),
        ) as (scraper, _),
        served(lambda handler: answer(handler, text, statuses[-1])) as address,
    ):
        requested = [header(f"http://{address}/metrics")]
        job.until(lambda: scraper.measure_if_due(requested) or scraper.problems)
        (problem,) = scraper.problems
        statuses.pop()
        job.until(lambda: scraper.measure_if_due(requested) and not scraper.problems)

    assert problem.startswith(f"{address}: HTTP 503")
    assert changes == [1, 0]


def test_an_engine_that_never_answers_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_TIMEOUT_S", (0.5, 0.5))
    released = threading.Event()
    lines: list[str] = []
    text = Engine("sglang 0.4.9").text().encode()

    with (
        measurements(run_folder(tmp_path), lines.append) as (scraper, _),
        served(lambda _: released.wait(HANG_S)) as silent,  # type: ignore[arg-type, return-value]
        served(lambda handler: answer(handler, text)) as living,
    ):
        requested = [header(f"http://{silent}/metrics", f"http://{living}/metrics")]
        job.until(lambda: scraper.measure_if_due(requested))
        job.until(lambda: scraper.measure_if_due(requested) and lines)
        released.set()

    assert f"{silent} cannot be read (ReadTimeout)" in lines[0]


def test_the_environment_names_no_proxy_for_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    text = Engine("vllm 0.8").text().encode()

    with served(lambda handler: answer(handler, text)) as address:
        assert line_about(tmp_path, f"http://{address}/metrics") == ""


def test_the_request_of_a_process_is_kept_in_its_segment() -> None:
    asked = dataclasses.replace(header(), scrape=("http://a:1/metrics",), scrape_s=2.5)

    assert SegmentHeader.from_bytes(asked.to_bytes()) == asked
