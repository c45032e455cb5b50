"""Events ``rl.media`` become records: whole, in parts, once, and only when they are what they claim to be."""

from __future__ import annotations

import itertools

import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.records import MediaRecord
from otel_bridge.translation.metrics import media
from otel_bridge.translation.options import TranslationOptions
from support.media_samples import (
    image,
    item,
    listed,
    media_event,
    parts_of,
    table,
    text,
)
from support.otlp.otlp_samples import (
    LOGS,
    RUN,
    T0,
    Bench,
    event,
    logs_request,
    row,
    source,
)

THIRD_PARTY = {"service.name": "app", "rl.run.id": RUN}


def test_an_event_is_a_record_with_the_key_the_step_and_the_steps_of_its_role() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}, step=2))

    found = bench.logs(
        source(), media_event(1, "samples", image(9, "nine"), text("hello"))
    )

    assert found == [
        MediaRecord(
            "media:i1:1", "trainer", "trainer/samples", 3, "trainer/step", T0, [image(9, "nine"), text("hello")], [],
            {"trainer/step": 3},
        )
    ]  # fmt: skip


def test_another_role_and_the_name_of_the_axis_are_kept_apart() -> None:
    bench = Bench()

    (found,) = bench.logs(source(), media_event(1, "step", image(), rl_role="explorer"))

    assert isinstance(found, MediaRecord)
    assert (found.key, found.role, found.axis) == (
        "explorer/step_value",
        "explorer",
        "explorer/step",
    )


def test_cells_of_a_table_hold_media() -> None:
    bench = Bench()
    shown = table(["question", "picture"], [["a", {"media": 0}], ["b", None]])

    (found,) = bench.logs(source(), media_event(1, "t", shown, cells=[image(5)]))

    assert isinstance(found, MediaRecord)
    assert found.table(found.items[0]) == (
        ["question", "picture"],
        [["a", image(5)], ["b", None]],
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_parts_are_joined_in_any_order_over_a_restart_and_each_counts_once(
    order: tuple[int, ...],
) -> None:
    bench, shown = Bench(), text("0123456789" * 3)
    parts = parts_of(5, "long", shown, size=10)

    found = []
    for number in order:
        found += bench.logs(source(), parts[number])
        bench.restart()
        found += bench.logs(source(), parts[number])

    (record,) = found
    assert isinstance(record, MediaRecord)
    assert (record.id, record.time_unix_ns, record.items) == ("media:i1:5", T0, [shown])
    assert bench.translator.redelivered() == 3
    assert not list(bench.state.items("media/"))


GARBAGE = {
    "no key": {"rl_media_key": ""},
    "no items": {"rl_media_items": []},
    "items that are text": {"rl_media_items": "image"},
    "an item that is a number": {"rl_media_items": [3]},
    "a kind of its own": {
        "rl_media_items": [{**listed(image())[0], "type": "hologram"}]
    },
    "a size beyond the bytes": {
        "rl_media_items": [{**listed(image())[0], "size": 1 << 40}]
    },
    "a size below the bytes": {"rl_media_items": [{**listed(image())[0], "size": 3}]},
    "a negative size": {"rl_media_items": [{**listed(image())[0], "size": -1}]},
    "another digest": {"rl_media_items": [{**listed(image())[0], "sha256": "0" * 64}]},
    "a type with a path": {
        "rl_media_items": [{**listed(image())[0], "mime_type": "image/../../x"}]
    },
    "nothing but cells": {"rl_media_items": [{**listed(image())[0], "cell": True}]},
    "a part beyond the last": {
        "rl_media_id": "1",
        "rl_media_part": 2,
        "rl_media_parts": 2,
    },
    "more parts than are allowed": {
        "rl_media_id": "1",
        "rl_media_part": 0,
        "rl_media_parts": 1 << 30,
    },
    "parts without an id": {"rl_media_part": 0, "rl_media_parts": 2},
}


@pytest.mark.parametrize("changed", GARBAGE.values(), ids=GARBAGE.keys())
def test_an_event_that_is_not_what_it_claims_to_be_is_counted(
    changed: dict[str, object],
) -> None:
    bench = Bench()

    assert bench.logs(source(), _changed(changed)) == []
    assert bench.counts() == {"media/invalid": 1}


def _changed(changed: dict[str, object]):
    fields: dict[str, object] = {
        "rl_media_key": "k",
        "rl_media_items": listed(image()),
        "rl_step": 3,
        **changed,
    }
    return event("rl.media", 1, image().data, T0, **fields)


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b"{}", b'{"columns": [1], "rows": []}', b'{"columns": ["a"], "rows": [[1, 2]]}',
        b'{"columns": ["a"], "rows": [[{"media": 0}]]}', b'{"columns": ["a"], "rows": [[[1]]]}',
        b'{"columns": ["a"], "rows": [], "more": 1}', b'{"columns": ["a"], "rows": [3]}',
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_counted(data: bytes) -> None:
    bench = Bench()

    assert (
        bench.logs(
            source(), media_event(1, "t", item("table", "application/json", data))
        )
        == []
    )
    assert bench.counts() == {"media/invalid": 1}


def test_what_a_third_party_producer_sends_is_under_the_policy_and_comes_once() -> None:
    options = TranslationOptions(run_id=RUN, content=ContentPolicy(5))
    bench = Bench(options)
    body = logs_request((
        THIRD_PARTY,
        [media_event(None, "t", text("a long text"), text("<b>long</b>", "html"), image(1, "a long caption"))],
    ))  # fmt: skip

    (found,) = bench.request(body, LOGS)
    assert bench.request(body, LOGS) == []

    assert isinstance(found, MediaRecord)
    assert [(one.kind, one.caption) for one in found.items] == [
        ("text", ""),
        ("image", "a lon… [+9 characters]"),
    ]
    assert found.items[0].data == "a lon… [+6 characters]".encode()
    secret = Bench()
    token = "sk-" + "a1B2" * 12
    (redacted,) = secret.request(
        logs_request((THIRD_PARTY, [media_event(None, "t", text(f"use {token}"))])),
        LOGS,
    )
    assert token.encode() not in redacted.items[0].data  # type: ignore[union-attr]
    off = Bench(TranslationOptions(run_id=RUN, content=ContentPolicy(0)))
    assert (
        off.request(
            logs_request((THIRD_PARTY, [media_event(None, "t", text("x"))])), LOGS
        )
        == []
    )


def test_parts_that_wait_are_bounded_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    assembler = bench.translator._events.media
    first, *_ = parts_of(1, "first", text("a" * 30), size=20)
    second = parts_of(10, "second", text("b" * 24), size=12)

    bench.logs(source("i1"), first)
    monkeypatch.setattr(media, "_MAX_WAITING_BYTES", assembler._waiting_bytes * 3 // 2)
    bench.logs(source("i2"), second[0])
    (found,) = bench.logs(source("i2"), second[1])

    assert isinstance(found, MediaRecord)
    assert found.key == "trainer/second"
    assert bench.counts() == {"media/incomplete": 1}
    assert not list(bench.state.items("media/"))


def test_parts_that_nothing_follows_are_counted_when_the_run_is_closed_and_kept_while_it_pauses() -> (
    None
):
    bench = Bench()
    first, second, _ = parts_of(1, "torn", text("a" * 30), size=10)
    bench.logs(source(), first, second)

    bench.translator.pause(bench.now_ns)
    bench.restart()
    assert len(list(bench.state.items("media/"))) == 3
    bench.close()

    assert bench.counts() == {"media/incomplete": 1}
    assert bench.state.get("dropkey/media/incomplete") == "torn"
    assert not list(bench.state.items("media/"))


def test_beginnings_without_bytes_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media, "_MAX_WAITING_BYTES", 20_000)
    bench = Bench()

    for number in range(1, 101):
        begun = event(
            "rl.media",
            number,
            b"",
            T0,
            rl_media_key="k",
            rl_media_id=str(number),
            rl_media_parts=2,
        )
        bench.logs(source(), begun)

    waiting = {key.rpartition("/")[0] for key, _ in bench.state.items("media/")}
    assert 1 < len(waiting) < 20
    assert bench.state.get("drop/media/incomplete") == 100 - len(waiting)


def test_a_part_that_comes_again_under_another_number_counts_its_bytes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media, "_MAX_WAITING_BYTES", 20_000)
    bench, shown = Bench(), text("x" * 8_000)
    first, last = parts_of(1, "k", shown, size=4_000)

    for number in range(10, 20):
        again = type(first)()
        again.CopyFrom(first)
        next(
            one for one in again.attributes if one.key == "rl.event.seq"
        ).value.int_value = number
        bench.logs(source(), again)
    (record,) = bench.logs(source(), last)

    assert isinstance(record, MediaRecord)
    assert record.items == [shown]
