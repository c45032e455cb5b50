"""Take pictures of the first screens of trackers from a run of the demo: ``browser_pictures.py DEMO_DIR PICTURES_DIR``.

Trackio (``trackio show --host 127.0.0.1``) and MLflow (``mlflow ui``) are started here and ended by their ids.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from support.browser.browser_page import Page, open_page
from support.free_ports import free_port
from support.waiting import HANG_S

PROJECT = "otel-bridge-demo"
BIN = Path(sys.executable).parent
_WAIT_S = HANG_S


@contextmanager
def served(
    command: list[str], port: int, folder: Path, env: Mapping[str, str]
) -> Iterator[str]:
    """Start a server on loopback and wait until it answers; its process group is ended afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        **env,
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,
        )
    try:
        _until_it_listens(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{process.args} does not listen"
        time.sleep(0.1)


@contextmanager
def trackio_dashboard(store: Path, project: str, folder: Path) -> Iterator[str]:
    """Serve Trackio's dashboard of the store."""
    port = free_port()
    command = [
        str(BIN / "trackio"),
        "show",
        "--project",
        project,
        "--host",
        "127.0.0.1",
    ]
    env = {
        "TRACKIO_DIR": str(store),
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    with served(command, port, folder, env) as address:
        yield address


def _trackio(demo: Path, pictures: Path, folder: Path) -> None:
    with trackio_dashboard(demo / "trackio", PROJECT, folder / "trackio") as address:
        with open_page(folder / "charts", height=1740) as page:
            page.go(f"{address}/?project={PROJECT}")
            page.until(
                "document.querySelectorAll('canvas.marks').length >= 6", "charts"
            )
            time.sleep(4)
            page.picture(pictures / "trackio.png")
        with open_page(folder / "list", height=780) as page:
            page.go(f"{address}/traces?project={PROJECT}")
            page.until(
                "document.querySelectorAll('tr.trace-row').length > 16", "rollouts"
            )
            time.sleep(2)
            page.picture(pictures / "trackio-rollouts.png")
        with open_page(folder / "traces", height=780) as page:
            page.go(f"{address}/traces?project={PROJECT}")
            _open_rollout(page)
            page.picture(pictures / "trackio-rollout.png")


def _open_rollout(page: Page) -> None:
    """Open a rollout of the explorer that has durations, at its first call of the tool."""
    page.until("document.querySelectorAll('tr.trace-row').length > 16", "rollouts")
    page.js(
        "(() => { const list = [...document.querySelectorAll('select')].find(s => s.innerText.includes('Step 90'));"
        " list.value = [...list.options].find(o => o.text.startsWith('Step 90')).value;"
        " list.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )
    rows = "[...document.querySelectorAll('tr.trace-row')]"
    page.until(f"{rows}.length > 0 && {rows}.length <= 16", "the rollouts of step 90")
    page.js(f"({rows}.find(r => r.innerText.includes('ms')) || {rows}[0]).click()")
    page.click("span.span-name", "execute_tool")
    page.js(
        "document.querySelector('tr.trace-row[aria-expanded=true]').scrollIntoView()"
    )
    time.sleep(1)


def _mlflow(demo: Path, pictures: Path, folder: Path) -> None:
    database = demo / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection:
        run, experiment = connection.execute(
            "SELECT r.run_uuid, r.experiment_id FROM runs r JOIN experiments e USING (experiment_id) WHERE e.name = ?"
            " ORDER BY r.start_time DESC",
            (PROJECT,),
        ).fetchone()
    port = free_port()
    command = [
        str(BIN / "mlflow"),
        "ui",
        "--backend-store-uri",
        f"sqlite:///{database}",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (
        served(command, port, folder / "mlflow", {}) as address,
        open_page(folder / "mlflow-page", height=1560) as page,
    ):
        page.go(
            f"{address}/#/experiments/{experiment}/runs/{run}/model-metrics?workflowType=machine_learning"
        )
        page.until("document.querySelectorAll('.js-plotly-plot').length > 0", "charts")
        page.js(
            "[...document.querySelectorAll('button')].filter(b => /close/i.test(b.ariaLabel || ''))"
            ".forEach(b => b.click())"
        )
        # Without a pointer Chromium shows the tools of every chart; with one only those of the chart below it.
        page.js(
            "document.head.append(Object.assign(document.createElement('style'),"
            " {textContent: '.modebar {display: none}'}))"
        )
        time.sleep(8)
        page.picture(pictures / "mlflow.png")


def main() -> None:
    """Take all pictures."""
    demo, pictures = (Path(argument).resolve() for argument in sys.argv[1:3])
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        _trackio(demo, pictures, Path(folder))
        _mlflow(demo, pictures, Path(folder))
    print(
        json.dumps(
            {path.name: path.stat().st_size for path in sorted(pictures.glob("*.png"))}
        )
    )


if __name__ == "__main__":
    main()
