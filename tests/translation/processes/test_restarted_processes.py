"""The process that started last decides how a run ended, not the one that was read last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_bridge.records import End, Record, Status
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.lifecycle import MAX_PROCESSES
from otel_bridge.translation.processes.process import ProcessStart
from otel_bridge.translation.translator import SegmentInfo
from support.otlp.otlp_samples import (
    LOGS,
    RUN,
    T0,
    Bench,
    S,
    end,
    logs_request,
    row,
    source,
    who,
)

FINISHED, FAILED, KILLED = Status.FINISHED, Status.FAILED, Status.KILLED


def statuses(records: list[Record]) -> list[Status]:
    return [record.status for record in records if isinstance(record, End)]


def started(
    instance: str, at_s: float, role: str | None = "trainer", **more: bool
) -> SegmentInfo:
    """A process that joined the run *at_s* seconds after T0, of a machine that had run for 100 s by then."""
    start = ProcessStart(T0 + int(at_s * S), int((100 + at_s) * S), "boot-1")
    return replace(source(instance, role, "process", **more), start=start)


def killed(bench: Bench, each: SegmentInfo, *, at_s: float) -> None:
    """What the bridge writes for a process that was killed; its last frame was appended *at_s* seconds after T0."""
    bench.logs(each, end("killed", time_ns=T0 + int(at_s * S)))


@pytest.mark.parametrize("role", ["trainer", "explorer", None])
@pytest.mark.parametrize("read_first", ["the first start", "the second start"])
def test_the_start_decides_and_not_the_order_in_which_segments_are_found(
    role: str | None, read_first: str
) -> None:
    first, second = started("i1", 0, role), started("i2", 20, role)
    bench = Bench()
    bench.open(
        *((first, second) if read_first == "the first start" else (second, first))
    )

    killed(bench, first, at_s=10)
    bench.logs(second, end("finished", 1, time_ns=T0 + 30 * S))

    assert statuses(bench.records) == [
        FINISHED
    ]  # at once: nobody waits for a restart that was made


def test_the_status_of_a_restart_that_was_killed_too_is_killed() -> None:
    first, second = started("i1", 0), started("i2", 20)
    bench = Bench()
    bench.open(second, first)

    bench.logs(first, end("failed", 1, time_ns=T0 + 10 * S))
    killed(bench, second, at_s=30)

    assert statuses(bench.tick(30)) == [KILLED]


def test_of_workers_side_by_side_the_worst_holds_whichever_started_last() -> None:
    first, second = started("i1", 0, "explorer"), started("i2", 1, "explorer")
    bench = Bench()
    bench.open(first, second)

    bench.logs(first, end("failed", 1, time_ns=T0 + 10 * S))
    bench.logs(second, end("finished", 1, time_ns=T0 + 20 * S))

    assert statuses(bench.records) == [FAILED]


def test_a_wall_clock_that_is_set_back_between_two_starts_does_not_reverse_them() -> (
    None
):
    first = started("i1", 0)
    second = replace(first, instance_id="i2", resource=source("i2").resource,
                     start=ProcessStart(T0 - 3600 * S, 120 * S, "boot-1"))  # fmt: skip
    bench = Bench()
    bench.open(second, first)

    killed(bench, first, at_s=10)
    bench.logs(second, end("finished", 1, time_ns=T0 - 3590 * S))

    assert statuses(bench.tick(30)) == [FINISHED]


def test_what_is_known_of_clocks_survives_the_bridge() -> None:
    first = started("i1", 0)
    second = replace(first, instance_id="i2", resource=source("i2").resource,
                     start=ProcessStart(T0 - 3600 * S, 120 * S, "boot-1"))  # fmt: skip
    bench = Bench()
    bench.open(first)
    killed(bench, first, at_s=10)
    bench.restart()

    bench.open(second)
    bench.logs(second, end("finished", 1, time_ns=T0 - 3590 * S))

    assert statuses(bench.records) == [FINISHED]


def test_processes_of_two_machines_are_compared_by_their_wall_clocks() -> None:
    first = replace(started("i1", 0), start=ProcessStart(T0, 9_000 * S, "boot-1"))
    second = replace(started("i2", 0), start=ProcessStart(T0 + 20 * S, 5 * S, "boot-2"))
    bench = Bench()
    bench.open(second, first)

    killed(bench, first, at_s=10)
    bench.logs(second, end("finished", 1, time_ns=T0 + 30 * S))

    assert statuses(bench.records) == [FINISHED]


def test_starts_at_one_instant_are_ordered_by_which_was_found_last() -> None:
    bench = Bench()
    bench.open(started("i1", 5), started("i2", 5))

    bench.logs(started("i1", 5), end("failed", 1, time_ns=T0 + 10 * S))
    bench.logs(started("i2", 5), end("finished", 1, time_ns=T0 + 10 * S))

    assert statuses(bench.records) == [FINISHED]


def _forwarded(
    bench: Bench, instance: str, at_s: float, status: str, end_s: float
) -> None:
    attributes = {**who(instance), "rl.instance.start_unix_ns": T0 + int(at_s * S)}
    bench.request(
        logs_request((attributes, [end(status, 1, time_ns=T0 + int(end_s * S))])), LOGS
    )


@pytest.mark.parametrize("first", ["i1", "i2"])
def test_forwarded_processes_carry_their_start_in_their_resource(first: str) -> None:
    bench = Bench(now_ns=T0 + 100 * S)
    bench.open(started("judge", 0, "judge"))
    said = {"i1": (0.0, "failed", 10.0), "i2": (20.0, "finished", 30.0)}

    for instance in (first, *(said.keys() - {first})):
        _forwarded(bench, instance, *said[instance])
    bench.logs(started("judge", 0, "judge"), end("finished", 1))

    assert statuses(bench.records) == [FINISHED]


def test_a_clock_that_runs_ahead_elsewhere_does_not_decide_for_ever() -> None:
    bench = Bench(now_ns=T0 + 10 * S)
    bench.open(started("judge", 0, "judge"))
    _forwarded(bench, "i1", 3 * 365 * 86_400, "failed", 3 * 365 * 86_400 + 5)
    bench.now_ns = T0 + 20 * S

    _forwarded(bench, "i2", 19, "finished", 20)
    bench.logs(started("judge", 0, "judge"), end("finished", 1))

    assert statuses(bench.records) == [FINISHED]


def test_a_launcher_that_was_killed_and_started_again_does_not_count_either() -> None:
    def launcher(instance: str, at_s: float) -> SegmentInfo:
        return replace(started(instance, at_s, None, rl_launcher=True), kind="launcher")

    bench = Bench()
    bench.open(
        launcher("l2", 20), started("i2", 21), launcher("l1", 0), started("i1", 1)
    )

    killed(bench, launcher("l1", 0), at_s=1)
    killed(bench, started("i1", 1), at_s=10)
    bench.logs(started("i2", 21), end("finished", 1, time_ns=T0 + 30 * S))
    bench.logs(launcher("l2", 20), end("finished", 1, time_ns=T0 + 31 * S))

    assert statuses(bench.records) == [FINISHED]


def test_an_owner_that_was_forgotten_goes_before_one_that_started_earlier() -> None:
    bench = Bench(options=TranslationOptions(run_id=RUN))
    judge, early, late = (
        started("judge", 0, "judge"),
        started("early", 1),
        started("late", 2),
    )
    bench.open(judge, late)
    bench.logs(late, end("failed", 1, time_ns=T0 + 3 * S))
    for number in range(MAX_PROCESSES + 10):
        each = started(f"i{number}", 3, "explorer")
        bench.open(each)
        bench.logs(each, end("finished", 1, time_ns=T0 + 4 * S))
    bench.tick(0)
    bench.restart()

    bench.open(early)
    bench.metrics(early, row(1, {"loss": 1.0}))
    bench.logs(early, end("finished", 1, last_row=1, time_ns=T0 + 3 * S))
    bench.logs(judge, end("finished", 1))

    assert statuses(bench.records) == [FAILED]


def test_each_process_is_counted_once_in_its_role() -> None:
    bench = Bench()
    first, again = started("i1", 0), started("i2", 20)
    launcher = replace(source("i9", None, "launcher"), start=first.start)
    bench.open(
        launcher,
        first,
        started("i3", 0, "explorer"),
        started("i4", 0, "explorer"),
        started("i5", 0, None),
    )

    killed(bench, first, at_s=10)
    counts = [bench.translator.processes_by_role()]
    bench.open(again)
    bench.logs(started("i4", 0, "explorer"), end("failed", 1, time_ns=T0 + 30 * S))
    counts.append(bench.translator.processes_by_role())

    assert counts == [
        {"trainer": (0, 1), "explorer": (2, 2), "": (1, 1)},
        {"trainer": (1, 1), "explorer": (1, 2), "": (1, 1)},
    ]
