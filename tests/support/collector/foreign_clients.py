"""Programs that nobody here wrote, as clients of the receiver: the JavaScript SDK and ``telemetrygen``."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from support.collector.otelcol_programs import cache, command, program
from support.waiting import HANG_S

JS = Path(__file__).resolve().parents[2] / "clients" / "js"
PROJECT = "clients"


def installed_js() -> Path:
    """The folder with the JavaScript job and its packages, installed once for each state of the two files.

    Without a lock file, which would name a registry: the direct packages are pinned, and theirs pin each other.
    """
    node, npm = (
        command("node", "the JavaScript client needs it"),
        command("npm", "the JavaScript client needs it"),
    )
    files = [JS / "package.json", JS / "job.mjs"]
    version = subprocess.run(
        [node, "--version"], capture_output=True, text=True, timeout=HANG_S, check=True
    ).stdout
    digest = hashlib.sha256(
        b"".join(file.read_bytes() for file in files) + version.encode()
    ).hexdigest()[:16]
    place = cache() / "js" / digest
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=place.parent))
        for file in files:
            shutil.copy(file, work)
        install = [
            npm,
            "install",
            "--no-package-lock",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
        ]
        done = subprocess.run(
            install,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        with suppress(OSError):  # another test run was first
            work.rename(place)
        shutil.rmtree(work, ignore_errors=True)
    return place


def javascript(protocol: str, endpoint: str, service: str, token: str) -> None:
    """Run the JavaScript job to its end."""
    node = command("node", "the JavaScript client needs it")
    _run([node, "job.mjs", protocol, endpoint, service, token], cwd=installed_js())


def telemetrygen(
    signal: str, *arguments: str, http: bool, port: int, token: str
) -> None:
    """Run ``telemetrygen SIGNAL`` to its end."""
    where = [
        "--otlp-endpoint",
        f"127.0.0.1:{port}",
        "--otlp-insecure",
        *(["--otlp-http"] if http else []),
    ]
    header = ["--otlp-header", f'authorization="Bearer {token}"']
    resource = ["--otlp-attributes", f'service.namespace="{PROJECT}"']
    _run(
        [program("telemetrygen"), signal, *where, *header, *resource, *arguments],
        cwd=None,
    )


def _run(command_line: list[str], cwd: Path | None) -> None:
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_")
    }
    done = subprocess.run(
        command_line,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
