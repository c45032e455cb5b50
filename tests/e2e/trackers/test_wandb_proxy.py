"""A job behind a proxy: what goes to W&B goes through it, what goes to this machine does not."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from otel_bridge.records import run_id_of
from support.trackers.wandb_backend.server import WandbServer
from support.trainers.e2e_jobs import (
    ended,
    environment,
    no_bridge_left,
    run,
    script,
    until,
)
from support.waiting import ANSWER_S

JOB = """
import otel_bridge
run = otel_bridge.init("proxied", "job", role="trainer")
for step in range(5):
    run.log({"loss": step / 2}, step=step)
run.log_rollouts([otel_bridge.Rollout([{"role": "user", "content": "2 + 2?"}], reward=1.0)], step=4)
run.finish(timeout_s=300)
"""
FAR = "wandb.far-away.test"


class Proxy(ThreadingHTTPServer):
    """A forward proxy behind which every host is one server."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        self.behind, self.asked = behind, set[str]()
        super().__init__(("127.0.0.1", 0), Forward)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
        """Say nothing."""

    def do_POST(self) -> None:
        proxy = self.server
        assert isinstance(proxy, Proxy)
        asked = urlsplit(self.path)
        proxy.asked.add(asked.netloc)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        onward = http.client.HTTPConnection(
            urlsplit(proxy.behind).netloc, timeout=ANSWER_S
        )
        onward.request(
            self.command,
            asked._replace(scheme="", netloc="").geturl(),
            body,
            dict(self.headers),
        )
        answer = onward.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST


@contextmanager
def proxy(behind: str) -> Iterator[Proxy]:
    with Proxy(behind) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("far", [True, False])
def test_the_proxy_of_the_job_is_kept_for_other_machines_and_never_used_for_this_one(
    tmp_path: Path, *, far: bool
) -> None:
    with (
        WandbServer() as server,
        proxy(server.url) as between,
        no_bridge_left(tmp_path),
    ):
        env = environment(
            tmp_path / "runs",
            "wandb",
            OTEL_BRIDGE_WANDB_TRANSMIT_S="1",
            **server.environment(),
        )
        env |= dict.fromkeys(
            ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), between.url
        )
        env = {name: value for name, value in env.items() if name != "NO_PROXY"} | {
            "no_proxy": "elsewhere.test"
        }
        if far:
            env["WANDB_BASE_URL"] = f"http://{FAR}"
        done = run(script(tmp_path / "train.py", JOB), env)
        until(lambda: ended(tmp_path / "runs"))

        held = server.run(run_id_of("proxied", "job"))
        assert (
            done.returncode,
            [row["trainer/loss"] for row in held.history if "trainer/loss" in row],
        ) == (
            0,
            [0.0, 0.5, 1.0, 1.5, 2.0],
        )
        assert held.state == "finished"
        assert len(server.table(held.id, "trainer/rollouts")) == 1
        # The stand-in names its own address for files: this machine's, wherever it was reached.
        assert between.asked == ({FAR} if far else set())
