"""Very many keys in one online run: what the stand-in is sent says the same, however it is given; a slow end ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import RunInfo
from otel_bridge.records import Row, Status
from otel_bridge.testing import MemoryTable, deliver, samples
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb.online.upload_timeouts import MAX_S, UploadTimeouts
from otel_bridge_wandb.settings import UploadLimits
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_offline import MetricDefinition
from support.trackers.wandb_online_runs import made, open_run

ODD = ['a "quoted"\\key', "dots.in.it", "stars*", "läuft 🚀", "one/two/three"]
server = online.server


def run_of(tmp_path: Path, name: str, keys: Mapping[str, str] | None = None) -> RunInfo:
    return made(run_info(tmp_path, name, keys=keys or {}))


def wide_rows(count: int, each: int) -> list[Row]:
    """Rows of two roles, each with *each* keys of its own."""
    rows = [
        samples.row(
            step, {f"metric/{step}/{n}": float(n) for n in range(each)}, role=role
        )
        for step in range(count)
        for role in ("trainer", "explorer")
    ]
    odd = samples.row(count, dict.fromkeys(ODD, 1.0), role="trainer")
    return samples.placed([*rows, odd])


def axes_of(rows: list[Row]) -> dict[str, MetricDefinition]:
    expected = {
        f"{role}/step": MetricDefinition(f"{role}/step", "", hidden=True)
        for role in ("trainer", "explorer")
    }
    for row in rows:
        expected |= {
            key: MetricDefinition(key, str(row.axis), hidden=False)
            for key in row.values
        }
    return expected


def entries(server: WandbServer, run: RunInfo) -> list[tuple[object, ...]]:
    """The definitions as they were sent, whatever their order: name, name of the axis, options."""
    sent = server.run(run.id).internal_config["m"]
    names = [entry["1"] for entry in sent]
    return sorted(
        (
            entry["1"],
            names[entry["5"] - 1] if "5" in entry else "",
            sorted(entry["6"]),
            sorted(entry),
        )
        for entry in sent
    )


def test_many_names_reported_at_once_are_the_same_to_the_server_as_each_by_itself(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = wide_rows(4, 30)
    sent: list[list[tuple[object, ...]]] = []
    for one_by_one in (10_000, 20, 0):
        monkeypatch.setattr("otel_bridge_wandb.opening.ONE_BY_ONE", one_by_one)
        run = run_of(tmp_path, f"given-{one_by_one}")
        writer = open_run(server, run, MemoryTable())
        for at in range(0, len(rows), 2):
            deliver(writer, rows[at : at + 2])
        writer.end(Status.FINISHED)
        assert server.run(run.id).metrics == axes_of(rows)
        sent.append(entries(server, run))

    assert sent[0] == sent[1] == sent[2]


def test_many_names_outlast_what_wandb_says_of_itself_and_are_reported_again_after_a_resume(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_bridge_wandb.opening.ONE_BY_ONE", 20)
    rows, memory = wide_rows(3, 20), MemoryTable()
    run = run_of(tmp_path, "long")
    writer = open_run(server, run, memory)
    deliver(writer, rows)
    # A table makes wandb send a record of telemetry, which replaces the definitions by those sent one by one.
    deliver(writer, samples.placed([samples.rollout(1)], len(rows) + 1))
    writer.close()
    assert server.run(run.id).metrics == axes_of(rows)

    known = {key: str(row.axis) for row in rows for key in row.values}
    again = open_run(server, run_of(tmp_path, "long", known), memory)
    again.end(Status.FINISHED)

    assert server.run(run.id).metrics == axes_of(rows)


@pytest.mark.slow
def test_ten_thousand_keys_arrive_on_their_axes(
    server: WandbServer, tmp_path: Path
) -> None:
    rows = wide_rows(25, 200)
    run = run_of(tmp_path, "wide")
    writer = open_run(server, run, MemoryTable())
    deliver(writer, rows)
    writer.end(Status.FINISHED)

    held = server.run(run.id)
    assert (held.metrics, len(held.history), held.state) == (
        axes_of(rows),
        len(rows),
        "finished",
    )
    assert len(held.metrics) == 10_007


@pytest.mark.long
def test_a_run_whose_end_takes_longer_than_the_bound_ends_after_a_few_tries(
    server: WandbServer, tmp_path: Path
) -> None:
    memory, run, rows = (
        MemoryTable(),
        run_of(tmp_path, "slow"),
        samples.placed([samples.row(1, {"loss": 1.0})]),
    )
    server.slow(1.2, what="UpsertBucket")
    tries = 0
    while True:
        tries += 1
        assert tries <= 5, "it is given up and opened anew for ever"
        writer = open_run(server, run, memory, FINISH_TIMEOUT_S="0.3")
        try:
            deliver(writer, rows, held=writer.durable())
            writer.end(Status.FINISHED)
            break
        except RetryableError:
            writer.close()

    assert tries > 1
    assert (len(server.run(run.id).history), server.run(run.id).state) == (
        1,
        "finished",
    )
    assert memory.get("online/given-up") is None


def test_a_wait_is_doubled_with_each_try_that_gave_up_once_and_is_the_first_again_when_one_sufficed() -> (
    None
):
    memory, limits = MemoryTable(), UploadLimits(finish_timeout_s=20.0, stall_s=120.0)

    def waits() -> tuple[float, float]:
        stretched = UploadTimeouts(memory).stretched(limits)
        return stretched.finish_timeout_s, stretched.stall_s

    seen = [waits()]
    for _ in range(2):
        patience = UploadTimeouts(memory)
        patience.timed_out()
        patience.timed_out()
        seen.append(waits())
    for _ in range(20):
        UploadTimeouts(memory).timed_out()
    seen.append(waits())
    UploadTimeouts(memory).completed()
    seen.append(waits())

    assert seen == [
        (20.0, 120.0),
        (40.0, 240.0),
        (80.0, 480.0),
        (MAX_S, MAX_S),
        (20.0, 120.0),
    ]
    assert UploadTimeouts(memory).wait_s(3 * MAX_S) == 3 * MAX_S
