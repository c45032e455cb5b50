"""Tests of the token view: the page of each rollout that trackers show, and what is in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from otel_bridge import Rollout
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.tokens.annotate import annotate
from otel_bridge.records import MediaRecord, Record, trace_id_of
from otel_bridge.tokens.view import TokenView, view_in
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import RUN, Bench
from support.otlp.phase_samples import rank
from support.trainers.emit_rollout_doubles import MemoryRun, log_rollouts

SENDER = rank(0)
TEXTS = ["The ", "answer", " is ", "<b>4</b>", "</script>"]
CONVERSATION = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "".join(TEXTS)},
    {"role": "tool", "name": "judge", "content": "right"},
]


def page_of(record: MediaRecord) -> str:
    return record.items[0].data.decode()


def pages(records: Sequence[Record]) -> list[MediaRecord]:
    return [record for record in records if isinstance(record, MediaRecord)]


def job(run: MemoryRun, *, first: str) -> None:
    """A rollout and its tokens, in either order."""
    streams = {
        "tokens": TEXTS, "token_ids": [1, 2, 3, 4, 5], "logprobs": [-1.0, -1.0, -1.0, -1.0, -1.0],
        "trainer_logprobs": [-1.0, -1.5, -1.0, -1.0, -0.75], "entropies": [0.5, None, 0.25, 0.5, 0.5],
    }  # fmt: skip
    rollout = Rollout(CONVERSATION, id="a", step=3, reward=1.0)
    if first == "tokens":
        annotate(run, "a", streams, step=3)
    log_rollouts(run, [rollout])
    if first == "rollout":
        annotate(run, "a", streams, step=3)


def deliver(bench: Bench, run: MemoryRun) -> None:
    for signal, payload in run.records:
        bench.records += bench.translator.frame(
            SENDER, signal, payload, False, bench.now_ns, bench.now_ns
        )
    run.records = []


def bench_with(options: TranslationOptions | None = None) -> Bench:
    bench = Bench(options or TranslationOptions(run_id=RUN))
    bench.open(SENDER)
    return bench


@pytest.mark.parametrize("first", ["rollout", "tokens"])
def test_the_page_of_a_rollout_has_its_turns_its_tokens_and_their_values(
    first: str,
) -> None:
    bench = bench_with()
    run = MemoryRun(RUN)
    job(run, first=first)

    deliver(bench, run)
    bench.restart()
    bench.tick(60)
    (record,) = pages([*bench.records, *bench.close()])[:1]
    view = view_in(page_of(record))

    assert (record.key, record.step, record.role) == (
        "trainer/rollouts/tokens",
        3,
        "trainer",
    )
    assert record.id == f"k:{trace_id_of(RUN, 'a')}:{record.time_unix_ns}"
    assert view is not None
    assert (view.title, view.facts["reward"], view.facts["tokens/mismatch/max"]) == (
        "a",
        "1.0",
        "0.5",
    )
    assert view.tokens == TEXTS
    assert view.overlays["mismatch"] == [0.0, -0.5, 0.0, 0.0, 0.25]
    assert view.overlays["entropy"] == [0.5, None, 0.25, 0.5, 0.5]
    assert [(turn["role"], turn.get("tokens")) for turn in view.turns] == [
        ("user", None), ("assistant", [0, 5]), ("tool", None),
    ]  # fmt: skip


def test_a_page_comes_once_and_again_with_further_streams() -> None:
    bench = bench_with()
    run = MemoryRun(RUN)
    job(run, first="rollout")
    deliver(bench, run)
    bench.tick(60)
    bench.tick(60)
    annotate(run, "a", {"advantages": [1.0] * 5}, step=4)
    deliver(bench, run)
    bench.close()
    bench.close()

    first, second = pages(bench.records)

    views = [view_in(page_of(record)) or TokenView("") for record in (first, second)]
    assert ["advantage" in view.overlays for view in views] == [False, True]
    assert first.id != second.id


def test_without_content_there_is_no_page() -> None:
    bench = bench_with(TranslationOptions(run_id=RUN, content=ContentPolicy(0)))
    run = MemoryRun(RUN, MESSAGE_CONTENT="off")
    job(run, first="rollout")

    deliver(bench, run)

    assert pages([*bench.tick(60), *bench.close()]) == []
    assert bench.counts() == {}


class Elements(HTMLParser):
    """Names and addresses of the elements of a page, and the texts of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str | None] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [
            value for name, value in attrs if name in {"src", "href", "data"}
        ]

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] == "script":
            self.scripts.append(data)


def test_a_page_needs_nothing_else_and_no_text_of_it_becomes_html() -> None:
    bench = bench_with()
    run = MemoryRun(RUN)
    job(run, first="tokens")
    deliver(bench, run)

    (record,) = pages(bench.close())
    elements = Elements(page_of(record))

    assert elements.names.count("script") == 2
    assert "b" not in elements.names
    assert elements.addresses == []
    assert not re.search(r"https?://|innerHTML", page_of(record))
    assert json.loads(elements.scripts[0])["tokens"] == TEXTS
    node = shutil.which("node")
    if node is not None:
        subprocess.run(
            [node, "--check", "-"], input=elements.scripts[-1], text=True, check=True
        )
