from __future__ import annotations

import pytest

from otel_bridge.records import End, Record, Row, Status
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.lifecycle import MAX_PROCESSES
from otel_bridge.translation.translator import SegmentInfo
from support.otlp.otlp_samples import (
    BRIDGE,
    LOGS,
    RUN,
    T0,
    Bench,
    S,
    end,
    event,
    gauge,
    logs_request,
    metrics_request,
    row,
    source,
    third_party,
    who,
)

FINISHED, FAILED, KILLED = Status.FINISHED, Status.FAILED, Status.KILLED


def ends(records: list[Record]) -> list[tuple[str, Status, int]]:
    return [
        (record.id, record.status, record.time_unix_ns)
        for record in records
        if isinstance(record, End)
    ]


def found_dead(
    bench: Bench,
    instance: str,
    role: str | None = "trainer",
    status: str = "killed",
    **more: object,
) -> list[Record]:
    """The bridge's word on a process that died."""
    return bench.request(
        logs_request(
            (who(instance, role, **more), [end(status, time_ns=bench.now_ns)])
        ),
        LOGS,
        BRIDGE,
    )


def test_the_run_ends_at_once_when_its_last_open_process_says_so() -> None:
    bench = Bench()
    bench.open(source("i1"), source("i2", "explorer"))
    bench.metrics(source("i1"), row(1, {"loss": 1.0}))

    first = bench.logs(source("i2", "explorer"), end("finished", 1, last_row=0))
    second = bench.logs(source("i1"), end("finished", 1, last_row=1, time_ns=T0 + 5))

    assert ends(first) == []
    assert ends(second) == [("e:1", FINISHED, T0 + 5)]
    assert bench.translator.status() == "finished"


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("FAILED", "failed"),
        ("error", "failed"),
        ("Success", "finished"),
        ("cancelled", "killed"),
        ("", "finished"),
        ("in a later version", "finished"),
    ],
)
def test_an_end_of_any_producer_is_read_in_the_words_that_programs_use(
    word: str, status: str
) -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))

    bench.logs(source(), end(word, 1, last_row=1))

    assert bench.translator.status() == status


def test_a_process_that_died_without_a_word_keeps_the_run_open_for_a_while() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))

    dead = found_dead(bench, "i1")
    waits = [bench.tick(29.9), bench.translator.status()]
    due = bench.tick(0.1)

    assert (dead, waits) == ([], [[], "running"])
    assert ends(due) == [("e:1", KILLED, T0)]


def test_a_process_that_starts_within_that_while_keeps_the_run_open() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))
    found_dead(bench, "i1")

    bench.tick(10)
    bench.open(source("i2"))
    silence = bench.tick(60)
    said = bench.logs(source("i2"), end("finished", 1))

    assert silence == []
    assert ends(said) == [("e:1", FINISHED, T0)]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([("trainer", "finished"), ("explorer", "failed")], FINISHED),
        ([("trainer", "failed"), ("explorer", "finished")], FAILED),
        ([("trainer", "failed"), ("trainer", "finished")], FINISHED),
        ([("explorer", "finished"), ("judge", "failed")], FAILED),
        ([("explorer", "killed"), ("judge", "failed")], KILLED),
        ([(None, "finished")], FINISHED),
    ],
)
def test_the_owner_role_decides_the_status_else_the_worst(
    processes: list[tuple[str | None, str]], expected: Status
) -> None:
    bench = Bench()
    sources = [source(f"i{number}", role) for number, (role, _) in enumerate(processes)]
    bench.open(*sources)

    for each, (_, status) in zip(sources, processes, strict=True):
        bench.logs(each, end(status, 1))

    assert ends(bench.records) == [("e:1", expected, T0)]


def test_another_owner_role_may_be_named() -> None:
    bench = Bench(options=TranslationOptions(run_id=RUN, owner_role="explorer"))
    bench.open(source("i1"), source("i2", "explorer"))

    bench.logs(source("i1"), end("failed", 1))
    bench.logs(source("i2", "explorer"), end("finished", 1))

    assert ends(bench.records) == [("e:1", FINISHED, T0)]


def test_forked_children_and_ranks_above_zero_hold_the_run_open_but_never_decide() -> (
    None
):
    bench = Bench()
    fork, rank1 = source("i2", rl_forked=True), source("i3", rl_rank=1)
    bench.open(source(), fork, rank1)

    bench.logs(source(), end("finished", 1))
    bench.logs(rank1, end("failed", 1))
    open_still = bench.tick(1)
    found_dead(bench, "i2", rl_forked=True)

    assert ends(open_still) == []
    assert ends(bench.records) == [("e:1", FINISHED, T0 + S)]


def test_while_a_launcher_is_open_the_run_is_open_and_the_worse_of_both_holds() -> None:
    launcher = SegmentInfo(
        "l1", "launcher", source("l1", None, rl_launcher=True).resource
    )
    bench = Bench()
    bench.open(launcher, source())

    bench.logs(source(), end("finished", 1))
    held = bench.tick(120)
    bench.logs(launcher, end("failed", 1))

    assert held == []
    assert ends(bench.records) == [("e:1", FAILED, T0)]


def test_a_run_whose_processes_were_all_ended_by_the_launcher_ends_with_it() -> None:
    launcher = SegmentInfo(
        "l1", "launcher", source("l1", None, rl_launcher=True).resource
    )
    bench = Bench()
    bench.open(launcher, source())

    found_dead(bench, "i1", status="failed")
    bench.logs(launcher, end("finished", 1))

    assert ends(bench.records) == [("e:1", FAILED, T0)]


def test_a_forwarded_process_is_killed_and_a_foreign_one_finished_by_silence() -> None:
    for attributes, expected in (
        (who(), KILLED),
        ({"rl.run.id": RUN, "service.name": "app"}, FINISHED),
    ):
        bench = Bench()
        bench.request(metrics_request((attributes, [row(1, {"loss": 1.0})])))

        early = bench.tick(599)
        due = bench.tick(1)

        assert (ends(early), ends(due)) == ([], [("e:1", expected, T0)])


def test_letting_go_releases_what_waits_and_ends_nobody_who_may_go_on() -> None:
    bench, piece = Bench(), row(1, {"loss": 1.0, "reward": 2.0})
    del piece.metrics[1]
    bench.request(metrics_request((who(), [piece])))

    pause = bench.translator.pause(bench.now_ns)

    assert [record.values for record in pause if isinstance(record, Row)] == [
        {"trainer/loss": 1.0}
    ]
    assert (ends(pause), bench.translator.status()) == ([], "running")
    assert ends(bench.close()) == [("e:1", KILLED, T0)]


def test_a_local_process_may_be_silent_for_ever() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))

    assert (bench.tick(100_000), bench.translator.status()) == ([], "running")


def test_rows_that_come_behind_a_bridges_word_on_a_forwarded_process_do_not_open_it() -> (
    None
):
    bench = Bench()
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    bench.request(logs_request((who(), [end("failed")])), LOGS)

    bench.request(metrics_request((who(), [row(2, {"loss": 2.0})])))
    due = bench.tick(30)

    assert ends(bench.records) == [("e:1", FAILED, T0), ("e:2", FAILED, T0)]
    assert ends(due) == [("e:2", FAILED, T0)]


def test_a_life_sign_breaks_the_silence() -> None:
    bench = Bench()
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))

    bench.tick(500)
    bench.request(logs_request((who(), [event("rl.alive", 1)])), LOGS)
    quiet = bench.tick(500)
    due = bench.tick(100)

    assert (quiet, ends(due)) == ([], [("e:1", KILLED, T0 + 500 * S)])


def test_data_after_the_end_opens_the_run_again_and_it_ends_again() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))
    bench.logs(source(), end("finished", 1, last_row=1))

    again = bench.metrics(source("i2"), row(1, {"loss": 2.0}, step=5))
    between = bench.translator.status()
    bench.logs(source("i2"), end("failed", 1, last_row=1))

    assert [type(record) for record in again] == [Row]
    assert between == "running"
    assert ends(bench.records) == [("e:1", FINISHED, T0), ("e:2", FAILED, T0)]


def test_a_process_that_goes_on_behind_its_end_is_open_again() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))
    bench.logs(source(), end("finished", 1, last_row=1))

    bench.metrics(source(), row(2, {"loss": 2.0}))
    waits = bench.tick(300)
    bench.logs(source(), end("failed", 2, last_row=2))

    assert waits == []
    assert ends(bench.records) == [("e:1", FINISHED, T0), ("e:2", FAILED, T0)]


def test_a_living_process_whose_end_somebody_else_said_is_open_again_with_its_next_row() -> (
    None
):
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))
    found_dead(bench, "i1", status="finished")

    bench.metrics(source(), row(2, {"loss": 2.0}))
    waits = bench.tick(300)
    bench.logs(source(), end("failed", 1, last_row=2))

    assert waits == []
    assert ends(bench.records) == [("e:1", FINISHED, T0), ("e:2", FAILED, T0)]


def test_what_comes_late_of_a_dead_process_opens_the_run_only_for_a_while() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))
    found_dead(bench, "i1")
    bench.tick(30)

    bench.metrics(source(), row(2, {"loss": 2.0}))
    again = bench.tick(30)

    assert ends(again) == [("e:2", KILLED, T0)]


def test_a_forwarded_process_that_was_only_silent_is_open_again_with_its_next_word() -> (
    None
):
    bench = Bench()
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    bench.tick(600)

    bench.request(metrics_request((who(), [row(2, {"loss": 1.0})])))
    waits = bench.tick(300)
    bench.request(
        logs_request((who(), [end("finished", 1, last_row=2, time_ns=T0 + 9)])), LOGS
    )

    assert waits == []
    assert ends(bench.records) == [("e:1", KILLED, T0), ("e:2", FINISHED, T0 + 9)]


def test_a_bridge_does_not_change_what_a_process_said_itself() -> None:
    bench = Bench()
    bench.open(source(), source("i2", "explorer"))
    bench.logs(source(), end("finished", 1))

    found_dead(bench, "i1")
    bench.logs(source("i2", "explorer"), end("finished", 1))

    assert ends(bench.records) == [("e:1", FINISHED, T0)]


def test_a_launched_run_closes_when_nothing_more_will_come() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))
    found_dead(bench, "i1")
    bench.request(metrics_request((who("i2"), [row(2, {"loss": 1.0})])))

    records = bench.close()

    assert [record.id for record in records] == ["m:i2:2", "e:1"]
    assert ends(records) == [("e:1", KILLED, T0)]


def test_a_local_process_that_never_ended_holds_the_run_open_even_then() -> None:
    bench = Bench()
    bench.metrics(source(), row(1, {"loss": 1.0}))

    assert (bench.close(), bench.translator.status()) == ([], "running")


def test_a_run_that_failed_and_is_taken_up_again_may_finish() -> None:
    launcher = SegmentInfo(
        "l1", "launcher", source("l1", None, rl_launcher=True).resource
    )
    bench = Bench()
    bench.open(launcher, source("i1", "explorer"))
    bench.logs(source("i1", "explorer"), end("failed", 1))
    bench.logs(launcher, end("failed", 1))

    bench.open(source("i2", "explorer"))
    bench.logs(source("i2", "explorer"), end("finished", 1))

    assert ends(bench.records) == [("e:1", FAILED, T0), ("e:2", FINISHED, T0)]


def test_the_status_of_the_owner_stays_when_another_role_comes_later() -> None:
    bench = Bench()
    bench.open(source("i1"))
    bench.logs(source("i1"), end("failed", 1))

    bench.open(source("i2", "evaluator"))
    bench.logs(source("i2", "evaluator"), end("finished", 1))

    assert ends(bench.records) == [("e:1", FAILED, T0), ("e:2", FAILED, T0)]


def test_processes_are_bounded_and_those_forgotten_still_count() -> None:
    bench = Bench()
    bench.open(source("last", "judge"))
    for number in range(MAX_PROCESSES + 10):
        each = source(f"i{number}", "explorer" if number else "trainer")
        bench.open(each)
        bench.logs(each, end("failed" if number == 0 else "finished", 1))

    bench.tick(0)
    bench.translator.flush()
    bench.logs(source("last", "judge"), end("finished", 1))

    assert len(bench.state.items("proc/")) == MAX_PROCESSES
    assert ends(bench.records) == [("e:1", FAILED, T0)]


def test_a_run_of_third_party_producers_ends_as_the_service_drains_and_goes_on_with_more_data() -> (
    None
):
    bench = Bench()
    agent = {"service.name": "agent", "rl.run.id": RUN}

    def loss(time_ns: int) -> bytes:
        return metrics_request((agent, [third_party(gauge("loss", 1.0, time_ns, {}))]))

    bench.request(loss(T0))
    drained = bench.translator.pause(bench.now_ns)
    bench.restart(away_s=60)
    more = bench.request(loss(T0 + 1))
    running = bench.translator.status()
    again = bench.translator.pause(bench.now_ns)

    assert ends(drained) == [("e:1", FINISHED, T0)]
    assert (len(more), running) == (1, "running")
    assert [status for _, status, _ in ends(again)] == [FINISHED]


def test_a_drain_ends_no_run_that_a_process_of_our_api_belongs_to() -> None:
    bench = Bench()
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    bench.request(
        metrics_request(
            (
                {"service.name": "agent", "rl.run.id": RUN},
                [third_party(gauge("x", 1.0, T0, {}))],
            )
        )
    )

    assert ends(bench.translator.pause(bench.now_ns)) == []
    assert bench.translator.status() == "running"
