"""Exporters that the run's own processes asked for: their records stay, whichever exporters a bridge is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.requested_exporters import RequestedExporters
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import SIGNALS
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, read_report
from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    Process,
    options,
    report_when,
    run_folder,
    served,
    serving,
    until,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN


def given(
    *recorders: tuple[str, RecordingTracker], to: str, **changes: object
) -> BridgeOptions:
    """As ``--exporters TO`` of a command."""
    return options(*recorders, exporters=dict.fromkeys(SIGNALS, (to,)), **changes)


def report_of(folder: RunFolder) -> Report:
    report = read_report(folder)
    assert report is not None
    return report


def test_what_was_asked_for_stays_until_each_exporter_has_it_the_one_that_serves_the_folder(
    tmp_path: Path,
) -> None:
    folder, one, two, third = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
        RecordingTracker(),
    )
    recorders = ("one", one), ("two", two), ("third", third)
    process = Process.start(folder, "one", "two")
    process.log(50)
    process.end()

    lags: list[tuple[bool, dict[str, int]]] = []
    for name in ("one", "third", "one", "two"):
        served(tmp_path, given(*recorders, to=name))
        lags.append((report_of(folder).ended, report_of(folder).owed))

    assert [written(each) for each in (one, two, third)] == [process.row_ids] * 3
    assert lags == [*[(False, {"two": 51})] * 3, (True, {})]


def test_processes_that_ask_for_different_exporters_ask_together(
    tmp_path: Path,
) -> None:
    folder, one, two, given_now = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
        RecordingTracker(),
    )
    recorders = ("one", one), ("two", two), ("given", given_now)
    trainer, explorer = (
        Process.start(folder, "one"),
        Process.start(folder, "two", role="explorer"),
    )
    for process in (trainer, explorer):
        process.log(3)
        process.end()
    served(tmp_path, given(*recorders, to="given"))

    served(tmp_path, options(*recorders))

    assert (
        set(written(one))
        == set(written(two))
        == set(written(given_now))
        == {*trainer.row_ids, *explorer.row_ids}
    )
    assert (report_of(folder).owed, report_of(folder).ended) == ({}, True)


def test_an_exporter_given_for_fewer_signals_gets_those_that_the_run_asked_for(
    tmp_path: Path,
) -> None:
    folder, one = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "one")
    process.log(3)
    process.end()

    served(tmp_path, options(("one", one), exporters={"traces": ("one",)}))

    assert written(one) == process.row_ids


def test_a_signal_that_a_later_process_asks_for_is_passed_over_at_no_instant(
    tmp_path: Path,
) -> None:
    folder, one = run_folder(tmp_path), RecordingTracker()
    explorer = Process.start(folder, role="explorer", by_signal={"traces": ("one",)})
    with serving(tmp_path, options(("one", one), poll_s=0.001)):
        report_when(folder, lambda report: "one" in report.exporters)
        for _ in range(20):
            trainer = Process.start(folder, by_signal={"metrics": ("one",)})
            trainer.log(2)
            one.wait_for(
                lambda recorder, ids=trainer.row_ids: (
                    set(ids) <= set(recorder.run(RUN).rows)
                )
            )  # type: ignore[misc]
            trainer.die()
    explorer.die()


def test_a_resumed_run_that_asks_for_another_exporter_leaves_the_former_one_what_was_for_it(
    tmp_path: Path,
) -> None:
    folder, former, now = run_folder(tmp_path), RecordingTracker(), RecordingTracker()
    recorders = ("former", former), ("now", now)
    former.fail(BlockedError("no login"), kind="open", times=None)
    first = Process.start(folder, "former")
    first.log(3)
    first.end()
    served(tmp_path, options(*recorders))
    former.heal()
    second = Process.start(folder, "now")
    second.log(3)
    second.end()

    served(tmp_path, options(*recorders))

    assert (written(former), written(now)) == (
        first.row_ids,
        [*first.row_ids, *second.row_ids],
    )
    assert (former.run(RUN).status, now.run(RUN).status) == (
        Status.FINISHED,
        Status.FINISHED,
    )


def test_what_an_owed_exporter_lost_when_its_bridge_was_killed_is_written_again(
    tmp_path: Path,
) -> None:
    folder, former, now = (
        run_folder(tmp_path),
        RecordingTracker(reports_durable=True, lag=2),
        RecordingTracker(),
    )
    former.fail(BlockedError("no login"), kind="open", times=None)
    first, second = (
        Process.start(folder, "former"),
        Process.start(folder, "now", role="explorer"),
    )
    first.log(3)
    with serving(tmp_path, options(("former", former), ("now", now))) as host:
        report_when(
            folder, lambda report: report.position >= 3 and "former" in report.exporters
        )
        first.die()
        second.log(3)
        report_when(folder, lambda report: report.position >= 6)
        former.heal()
        # Its end would confirm what the kill is to take away.
        former.fail(BlockedError("no login"), kind="end", times=None)
        host.notify()
        former.wait_for(lambda recorder: set(first.row_ids) <= set(written(recorder)))
    former.heal()
    before = written(former)
    for row in before[-2:]:
        del former.run(RUN).rows[row]
    former.lag = 0

    with serving(tmp_path, options(("former", former), ("now", now))):
        former.wait_for(lambda recorder: set(written(recorder)) == set(before))
        last = report_when(folder, lambda report: "former" not in report.exporters)

    second.die()
    assert (last.owed, last.former["former"].durable) == (
        {},
        last.former["former"].written,
    )


def test_a_tracker_that_does_not_confirm_what_an_exporter_is_owed_is_settled_by_the_end_of_its_run(
    tmp_path: Path,
) -> None:
    folder, former, now = (
        run_folder(tmp_path),
        RecordingTracker(reports_durable=True, lag=2),
        RecordingTracker(),
    )
    first, second = (
        Process.start(folder, "former"),
        Process.start(folder, "now", role="explorer"),
    )
    first.log(3)
    with serving(tmp_path, options(("former", former), ("now", now))):
        former.wait_for(lambda recorder: written(recorder) == first.row_ids)
        report_when(folder, lambda report: "former" in report.exporters)
        first.die()

        report_when(folder, lambda report: "former" not in report.exporters)
    second.die()
    assert (written(former), former.run(RUN).status) == (first.row_ids, Status.KILLED)


def test_an_exporter_whose_process_has_ended_gets_the_rest_while_others_go_on(
    tmp_path: Path,
) -> None:
    folder, one, two = run_folder(tmp_path), RecordingTracker(), RecordingTracker()
    one.fail(BlockedError("no login"), kind="open", times=None)
    trainer, explorer = (
        Process.start(folder, "two"),
        Process.start(folder, "one", role="explorer"),
    )
    explorer.log(3)
    with serving(tmp_path, options(("one", one), ("two", two))) as host:
        report_when(
            folder, lambda report: report.position >= 3 and "one" in report.exporters
        )
        explorer.end()
        trainer.log(1)
        report_when(folder, lambda report: report.position >= 4)
        one.heal()
        host.notify()

        one.wait_for(lambda recorder: set(explorer.row_ids) <= set(written(recorder)))
    trainer.end()


def test_a_run_that_asked_for_none_keeps_nothing_for_anybody(tmp_path: Path) -> None:
    folder, one = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder)
    process.log(3)
    process.end()

    served(tmp_path, given(("one", one), to="one"))

    assert (written(one), folder.segments(), report_of(folder).owed) == (
        process.row_ids,
        [],
        {},
    )


def test_near_the_limit_what_an_exporter_is_owed_goes_first_and_is_counted(
    tmp_path: Path,
) -> None:
    folder, one = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "one", "absent")
    process.log(3000)

    with serving(tmp_path, given(("one", one), to="one", max_bytes=1 << 18)) as host:
        one.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3000)
        until(lambda: any("no longer named" in line for line in host.lines))  # type: ignore[attr-defined]
        evicted = report_when(folder, lambda report: bool(report.evicted))
    process.end()

    assert evicted.evicted["absent"] + evicted.owed["absent"] == 3000
    assert written(one) == process.row_ids


def test_segments_stay_for_otlp_when_the_run_asked_for_it(tmp_path: Path) -> None:
    folder, one = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "one", "otlp")
    process.log(3)
    process.end()

    served(tmp_path, given(("one", one), to="one"))
    kept = report_of(folder)
    served(tmp_path, given(("one", one), to="one", discard=("otlp",)))

    assert (written(one), kept.owed, kept.ended) == (
        process.row_ids,
        {"otlp": 1},
        False,
    )
    assert (folder.segments(), report_of(folder).discarded, report_of(folder).owed) == (
        [],
        {"otlp": 1},
        {},
    )


def test_what_a_receiver_took_stays_for_otlp_when_a_process_of_the_run_asked_for_it(
    tmp_path: Path,
) -> None:
    folder, one = run_folder(tmp_path), RecordingTracker()
    process, received = (
        Process.start(folder, "one", "otlp"),
        Process.start(folder, kind="receiver"),
    )
    for source in (process, received):
        source.log(3)
        source.end()

    served(tmp_path, given(("one", one), to="one"))

    assert report_of(folder).owed == {"otlp": 2}
    assert {segment.instance_id for segment in folder.segments()} >= {received.instance}


@pytest.mark.parametrize("again", [True, False])
def test_what_was_discarded_stays_so_and_a_process_that_asks_again_gets_what_comes_then(
    tmp_path: Path, again: bool
) -> None:
    folder, one, two = run_folder(tmp_path), RecordingTracker(), RecordingTracker()
    recorders = ("one", one), ("two", two)
    process = Process.start(folder, "one", "two")
    process.log(3)
    process.end()
    served(tmp_path, options(*recorders, discard=("two",)))

    later = Process.start(folder, *(("one", "two") if again else ("one",)))
    later.log(3)
    later.end()
    served(tmp_path, options(*recorders))

    assert (written(one), written(two)) == (
        [*process.row_ids, *later.row_ids],
        later.row_ids if again else [],
    )
    assert report_of(folder).discarded == {"two": 4}


def test_a_process_that_was_over_before_it_was_seen_gets_its_exporter_while_others_ask_for_another(
    tmp_path: Path,
) -> None:
    folder, one, two = run_folder(tmp_path), RecordingTracker(), RecordingTracker()
    trainer, short = (
        Process.start(folder, "one"),
        Process.start(folder, "two", role="eval"),
    )
    trainer.log(1)
    short.log(3)
    short.end()

    with serving(tmp_path, options(("one", one), ("two", two))):
        two.wait_for(lambda recorder: set(short.row_ids) <= set(written(recorder)))
        trainer.log(2)
        one.wait_for(lambda recorder: set(trainer.row_ids) <= set(written(recorder)))
    trainer.end()

    assert set(written(one)) == {*trainer.row_ids, *short.row_ids}


def test_segments_that_are_given_up_are_counted_once_while_they_are_still_there(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    requested = RequestedExporters(ledger, ledger.view())
    counts: list[dict[str, int]] = []
    for there in (
        2,
        2,
        1,
        3,
    ):  # deleting takes time, and the process asks as long as it is known
        requested.note({"otlp": ("metrics",)}, all_read=True, by={})
        counts.append(requested.discard(["otlp"], segments=lambda there=there: there))

    assert (counts, requested.given_up["otlp"].discarded) == (
        [{"otlp": 2}, {}, {}, {"otlp": 2}],
        4,
    )
