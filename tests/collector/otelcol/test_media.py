"""Media through two stock Collectors to a bridge: byte for byte, also in parts, each once."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from support.collector.otelcol_chain import chain
from support.trainers.e2e_jobs import (
    environment,
    lines,
    no_bridge_left,
    only_folder,
    script,
    until,
)
from support.trainers.e2e_jobs import run as finished

pytestmark = pytest.mark.slow
LARGE = b"\x89PNG\r\n\x1a\n" + b"large" * 700_000
JOB = """
import otel_bridge

run = otel_bridge.init("media", "job", role="trainer", exporters="otlp")
for step in range(5):
    note = otel_bridge.Text(f"note {step}", caption="a note")
    picture = otel_bridge.Image(b"\\x89PNG\\r\\n\\x1a\\n" + bytes([step]))
    table = otel_bridge.Table(["step", "picture"], [[step, picture]])
    run.log({"loss": step / 2, "note": note, "table": table}, step=step)
run.log({"large": otel_bridge.Image(b"\\x89PNG\\r\\n\\x1a\\n" + b"large" * 700_000)}, step=4)
run.finish(timeout_s=60)
"""


def held(base: Path) -> Counter[tuple[object, ...]]:
    """Key, step and digest of every medium, those of cells after their table."""
    found: Counter[tuple[object, ...]] = Counter()
    for line in lines(base):
        if line["kind"] != "media":
            continue
        for item in [*line["items"], *line["cells"]]:  # type: ignore[misc]
            data = (only_folder(base).path / "file" / item["file"]).read_bytes()
            found[
                line["key"],
                line["step"],
                item["type"],
                hashlib.sha256(data).hexdigest(),
            ] += 1
    return found


def test_media_arrive_whole_and_once_through_two_collectors(tmp_path: Path) -> None:
    with chain(tmp_path, "file") as parts, no_bridge_left(tmp_path / "sender"):
        env = environment(tmp_path / "sender", "otlp", **parts.trainer())
        finished(script(tmp_path / "job.py", JOB), env)
        base = tmp_path / "bridge-0"
        until(lambda: sum(held(base).values()) >= 16)
        found = held(base)

    assert set(found.values()) == {1}
    assert Counter((key, kind) for key, _, kind, _ in found) == {
        ("trainer/note", "text"): 5, ("trainer/table", "table"): 5, ("trainer/table", "image"): 5,
        ("trainer/large", "image"): 1,
    }  # fmt: skip
    assert ("trainer/large", 4, "image", hashlib.sha256(LARGE).hexdigest()) in found
