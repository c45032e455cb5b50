"""Take pictures of what commands print on a terminal of 100 columns: ``terminal_pictures.py PICTURES_DIR [NAME …]``.

Each command runs on a pseudo-terminal in a folder of its own. Its lines, as they stand when it has ended, become an SVG
of rich, and Chromium makes a PNG of that.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

from PIL import Image
from rich.console import Console
from rich.text import Text

from support.browser.browser_page import open_page
from support.browser.browser_pictures import BIN
from support.engines.engine import Engine
from support.engines.served import answer, served

COLUMNS: Final = 100
_COLORS: Final = 64
_TRAIN: Final = """\
import math, sys
import otel_bridge

run = otel_bridge.init(project="hello", name=sys.argv[1], config={"lr": 1e-3})
for step in range(1, 101):
    run.log({"loss": math.exp(-step / 30)}, step=step)
answer = [{"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "7"}]
run.log_rollouts([{"messages": answer, "reward": 1.0}], step=100)
run.finish(timeout_s=120)
"""
_RANKS: Final = """\
import os, time
import otel_bridge

run = otel_bridge.init(project="hello", name="ranks", role="trainer")
for step in range(1, 4):
    time.sleep(0.5)
    run.log({"loss": 1 / step + 0.1 * int(os.environ["RANK"])}, step=step)
run.finish()
"""
_TWO_RANKS: Final = (
    "export WORLD_SIZE=2; RANK=1 python ranks.py & RANK=0 python ranks.py; wait"
)
_ENGINES: Final = """\
import time
import otel_bridge

run = otel_bridge.init(project="hello", name="engines", role="trainer")
for step in range(1, 31):
    time.sleep(0.3)
    run.log({"loss": 1 / step}, step=step)
run.finish()
"""
_ENGINE_KEYS: Final = (
    "engine/vllm:generation_tokens/per_s, engine/vllm:num_requests_waiting, "
    "engine/vllm:time_to_first_token_seconds/p90, engine/vllm:gpu_prefix_cache_hits/ratio, loss"
)
_SETTINGS: Final = {"OTEL_BRIDGE_EXPORTERS": "trackio,mlflow"}
_FOR_A_WHILE: Final = "timeout -s INT 3 "
"""Ends a command as Ctrl-C does; pictures do not show it."""
_COMMANDS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    # First, so that MLflow has made its database before a program waits for it.
    "drain": ("otel-bridge drain offline", {}),
    "init": ("python train.py first", _SETTINGS),
    "rollouts": ("otel-bridge rollouts", {}),
    "doctor": ("otel-bridge doctor", _SETTINGS),
    "run": (
        "otel-bridge run --exporters trackio --dir runs -- python train.py second",
        {},
    ),
    "demo": ("otel-bridge demo --steps 20 --exporters mlflow,trackio,file", {}),
    "status": ("otel-bridge status otel-bridge-demo", {}),
    "timeline": ("otel-bridge timeline otel-bridge-demo --steps 11-20", {}),
    "consumed": ("otel-bridge rollouts otel-bridge-demo --consumed 10 --limit 1", {}),
    "tokens": (
        "otel-bridge rollouts otel-bridge-demo --consumed 10 --limit 1 --tokens mismatch",
        {},
    ),
    "watch": (_FOR_A_WHILE + "otel-bridge status otel-bridge-demo --watch", {}),
    "ranks": (
        "otel-bridge run --exporters console -- sh ranks.sh",
        {"OTEL_BRIDGE_RANKS": "merge"},
    ),
    "engines": (_FOR_A_WHILE + "otel-bridge status --watch engines", {}),
}
"""Picture to its command and variables, in the order in which they run; "init" shows ``finish`` too."""
_CONTROL: Final = re.compile(r"\x1b\[\??(\d*)(?:;\d+)*([A-HJKSThl])")


def screen(output: str) -> list[str]:
    """Return the lines that stand on a terminal after *output*; their colours stay as escape codes.

    Of the movements of a cursor those are known that bars of progress use: to the beginning of the line, up, and the
    deletion of a line.
    """
    lines = [""]
    row = 0
    parts = re.split(r"(\x1b\[\??[\d;]*[A-HJKSThl]|\r\n|\n|\r)", output)
    for part in filter(None, parts):
        movement = _CONTROL.fullmatch(part)
        if part in {"\n", "\r\n"}:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r" or (movement and movement[2] == "K"):
            lines[row] = "" if part != "\r" or row == len(lines) - 1 else lines[row]
        elif movement and movement[2] == "A":
            row = max(row - int(movement[1] or 1), 0)
        elif movement is None:
            lines[row] += part
    while lines and not lines[-1].strip():  # where bars stood
        lines.pop()
    return lines


def printed(command: str, folder: Path, variables: Mapping[str, str]) -> str:
    """Run *command* on a pseudo-terminal in *folder*, and return all that it wrote."""
    env = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
    }
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["sh", "-c", command],
        cwd=folder,
        env={**env, **variables},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    chunks: list[bytes] = []
    with suppress(OSError):  # EIO: the last process that had the terminal has ended
        while chunk := os.read(ours, 1 << 16):
            chunks.append(chunk)
    os.close(ours)
    process.wait()
    return b"".join(chunks).decode("utf-8", "replace")


def _picture(command: str, output: str, path: Path, folder: Path) -> None:
    """Save *output* below a prompt with *command* as PNG."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text(f"$ {command}", style="bold"))
    for line in screen(output):
        text = Text.from_ansi(line)
        console.print(*text.divide(range(COLUMNS, len(text), COLUMNS)), sep="\n")
    console.print()  # rich's picture cuts the feet of its last line
    folder.mkdir()
    svg = folder / "screen.svg"
    svg.write_text(console.export_svg(title="", font_aspect_ratio=0.6), "utf-8")
    with open_page(folder / "page", width=1240, height=200) as page:
        page.go(svg.as_uri())
        page.until("document.querySelector('svg') !== null", "the screen")
        width, height = page.js(
            "document.querySelector('svg').getAttribute('viewBox')"
        ).split()[2:]
        size = {
            "width": round(float(width)),
            "height": round(float(height)),
            "deviceScaleFactor": 1,
            "mobile": False,
        }
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page.js(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 500))))"
        )
        page.picture(path)
    # A screen has few colours: this halves its size.
    Image.open(path).convert("RGB").quantize(_COLORS).save(path, optimize=True)


def _run_with_engine(folder: Path) -> None:
    """Run a job beside an engine, which a fake of the test suite stands for."""
    engine = Engine("vllm 0.9")

    def respond(handler: BaseHTTPRequestHandler) -> None:
        engine.work()
        answer(handler, engine.text().encode())

    with served(respond) as address:
        variables = {
            "OTEL_BRIDGE_DIR": "engines",
            "OTEL_BRIDGE_EXPORTERS": "file",
            "OTEL_BRIDGE_SCRAPE": f"http://{address}",
            "OTEL_BRIDGE_SCRAPE_S": "0.2",
            "OTEL_BRIDGE_FEATURED": _ENGINE_KEYS,
        }
        printed("python engines.py", folder, variables)


def main() -> None:
    """Take the pictures that are named, or all."""
    pictures = Path(sys.argv[1]).resolve()
    pictures.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or [*_COMMANDS]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        work = Path(name, "job")
        work.mkdir()
        for program, source in (
            ("train", _TRAIN),
            ("ranks", _RANKS),
            ("engines", _ENGINES),
        ):
            (work / f"{program}.py").write_text(source, "utf-8")
        (work / "ranks.sh").write_text(_TWO_RANKS, "utf-8")
        printed(
            "python train.py third",
            work,
            {"OTEL_BRIDGE_DIR": "offline", "OTEL_BRIDGE_OFFLINE": "1", **_SETTINGS},
        )
        if "engines" in names:
            _run_with_engine(work)
        for picture, (command, variables) in _COMMANDS.items():
            output = printed(command, work, variables)
            if picture in names:
                output = output.replace(str(work), "/home/me/job")
                settings = "".join(
                    f"{key}={value} " for key, value in variables.items()
                )
                _picture(
                    settings + command.removeprefix(_FOR_A_WHILE),
                    output,
                    pictures / f"{picture}.png",
                    Path(name, picture),
                )
                print(f"{picture}: {len(output)} characters", flush=True)


if __name__ == "__main__":
    main()
