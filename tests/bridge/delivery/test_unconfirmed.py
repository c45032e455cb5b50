"""An exporter that the run no longer names, and a tracker that loses what it had not confirmed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.errors import RetryableError
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

LAG = 2


def lossy() -> RecordingTracker:
    """A tracker that loses its last records with its writer, as one does that is killed before it confirmed them."""
    return RecordingTracker(reports_durable=True, lag=LAG)


def report_of(folder: RunFolder) -> Report:
    report = read_report(folder)
    assert report is not None
    return report


def given(
    *recorders: tuple[str, RecordingTracker], to: str, **changes: object
) -> BridgeOptions:
    """As ``--exporters TO`` of a command."""
    return options(*recorders, exporters=dict.fromkeys(SIGNALS, (to,)), **changes)


def left_unconfirmed(
    tmp_path: Path, former: RecordingTracker, *, rows: int = 5
) -> tuple[RunFolder, Process]:
    """A process that asked for *former* and was killed, as its bridge was: all is delivered, the last not confirmed."""
    folder = run_folder(tmp_path)
    process = Process.start(folder, "former")
    process.log(rows)
    with serving(tmp_path, options(("former", former))):
        former.wait_for(lambda recorder: len(written(recorder)) == rows)
        report_when(
            folder,
            lambda report: (
                "former" in report.exporters
                and report.exporters["former"].written == rows
            ),
        )
    assert report_of(folder).exporters["former"].durable == rows - LAG
    process.die()
    return folder, process


def lose(former: RecordingTracker, process: Process) -> None:
    """Lose what was not confirmed: now, where a writer that is opened again would."""
    for row_id in process.row_ids[-LAG:]:
        del former.run(RUN).rows[row_id]
    former.lag = 0


@contextmanager
def next_process(
    tmp_path: Path,
    folder: RunFolder,
    how: BridgeOptions,
    *exporters: str,
    signals: tuple[str, ...] = SIGNALS,
) -> Generator[Process]:
    """The run's next process, which a bridge serves: nothing is left to be read of those before it."""
    former = {segment.instance_id for segment in folder.segments()}
    process = Process.start(folder, by_signal=dict.fromkeys(signals, exporters))
    with serving(tmp_path, how):
        until(
            lambda: former.isdisjoint(
                segment.instance_id for segment in folder.segments()
            )
        )
        yield process


def resumed(
    tmp_path: Path, folder: RunFolder, how: BridgeOptions, *exporters: str
) -> Process:
    """The run's next process, over by now."""
    with next_process(tmp_path, folder, how, *exporters) as process:
        position = report_of(folder).position
        process.log(3)
        report_when(folder, lambda report: report.position >= position + 3)
    process.end()
    return process


def test_the_next_bridge_gives_again_what_the_tracker_of_a_former_process_lost(
    tmp_path: Path,
) -> None:
    former, now = lossy(), RecordingTracker()
    folder, first = left_unconfirmed(tmp_path, former)
    lose(former, first)
    how = options(("former", former), ("now", now))
    second = resumed(tmp_path, folder, how, "now")

    served(tmp_path, how)

    assert (written(former), set(second.row_ids) <= set(written(now))) == (
        first.row_ids,
        True,
    )
    assert (former.run(RUN).status, now.run(RUN).status) == (
        Status.KILLED,
        Status.FINISHED,
    )
    assert (report_of(folder).ended, report_of(folder).owed) == (True, {})


def test_an_exporter_that_got_its_last_record_is_a_former_one_in_the_last_report(
    tmp_path: Path,
) -> None:
    former, now = lossy(), RecordingTracker()
    folder, first = left_unconfirmed(tmp_path, former)
    lose(former, first)
    resumed(tmp_path, folder, given(("now", now), to="now"), "now")

    served(tmp_path, options(("former", former), ("now", now), poll_s=0.2))

    report = report_of(folder)
    assert (list(report.exporters), list(report.former), report.ended) == (
        ["now"],
        ["former"],
        True,
    )
    assert (report.former["former"].rows, report.former["former"].written) == (
        len(first.row_ids),
        report.former["former"].durable,
    )


def test_what_the_end_has_settled_is_not_opened_again(tmp_path: Path) -> None:
    former, now = lossy(), RecordingTracker()
    folder, first = left_unconfirmed(tmp_path, former)
    how = options(("former", former), ("now", now))
    resumed(tmp_path, folder, how, "now")
    served(tmp_path, how)
    former.calls.clear()

    third = resumed(tmp_path, folder, how, "now")
    served(tmp_path, how)

    assert (former.calls, written(former)) == ([], first.row_ids)
    assert set(third.row_ids) <= set(written(now))
    assert (report_of(folder).ended, report_of(folder).owed) == (True, {})


def test_a_bridge_that_is_given_another_exporter_keeps_and_names_what_is_not_confirmed(
    tmp_path: Path,
) -> None:
    former, now = lossy(), RecordingTracker()
    folder, first = left_unconfirmed(tmp_path, former)
    lose(former, first)
    to_now = given(("now", now), to="now")
    resumed(tmp_path, folder, to_now, "now")

    lags: list[tuple[bool, dict[str, int]]] = []
    for _ in range(2):
        served(tmp_path, to_now)
        lags.append((report_of(folder).ended, report_of(folder).owed))
    served(tmp_path, options(("former", former), ("now", now)))

    assert lags == [(False, {"former": LAG})] * 2
    assert (written(former), report_of(folder).ended, report_of(folder).owed) == (
        first.row_ids,
        True,
        {},
    )


def test_a_bridge_that_ends_before_the_tracker_took_the_end_leaves_the_rest_owed(
    tmp_path: Path,
) -> None:
    former, now = lossy(), RecordingTracker()
    folder, first = left_unconfirmed(tmp_path, former)
    former.fail(RetryableError("the connection was reset"), kind="end", times=None)
    how = options(("former", former), ("now", now))
    with next_process(tmp_path, folder, how, "now") as second:
        second.log(3)
        former.wait_for(
            lambda recorder: any(call.kind == "end" for call in recorder.calls)
        )
    second.end()
    served(tmp_path, given(("now", now), to="now"))
    cut_off = report_of(folder)
    former.heal()

    served(tmp_path, how)

    assert (cut_off.ended, set(cut_off.owed)) == (False, {"former"})
    assert (written(former), former.run(RUN).status) == (first.row_ids, Status.KILLED)
    assert (report_of(folder).ended, report_of(folder).owed) == (True, {})


def test_the_run_of_an_exporter_ends_with_the_last_process_that_asked_for_it_and_opens_for_the_next(
    tmp_path: Path,
) -> None:
    folder, one, two = run_folder(tmp_path), lossy(), RecordingTracker()
    trainer, explorer = (
        Process.start(folder, "two"),
        Process.start(folder, "one", role="explorer"),
    )
    with serving(tmp_path, options(("one", one), ("two", two))):
        explorer.log(5)
        one.wait_for(lambda recorder: set(explorer.row_ids) <= set(written(recorder)))
        explorer.end("failed")
        one.wait_for(lambda recorder: recorder.run(RUN).status is Status.FAILED)
        trainer.log(1)
        report_when(
            folder, lambda report: "one" not in report.exporters and report.owed == {}
        )

        again = Process.start(folder, "one", role="explorer")
        again.log(2)
        one.wait_for(lambda recorder: set(again.row_ids) <= set(written(recorder)))
        again.end()
        one.wait_for(lambda recorder: recorder.run(RUN).status is Status.FINISHED)
        reopened = [info.reopened for info in one.run(RUN).infos]
    trainer.end()

    assert (set(explorer.row_ids) <= set(written(one)), reopened) == (
        True,
        [False, True],
    )


def test_a_signal_that_the_next_process_does_not_ask_for_is_given_again_too(
    tmp_path: Path,
) -> None:
    former = lossy()
    folder, first = left_unconfirmed(tmp_path, former)
    lose(former, first)
    how = options(("former", former))
    with next_process(tmp_path, folder, how, "former", signals=("traces",)) as second:
        second.log(1)
    second.end()

    served(tmp_path, how)

    assert set(first.row_ids) <= set(written(former))
    assert (report_of(folder).ended, report_of(folder).owed) == (True, {})


def test_what_a_person_gives_up_of_it_is_counted_and_not_given_again(
    tmp_path: Path,
) -> None:
    former, now = lossy(), RecordingTracker()
    folder, _ = left_unconfirmed(tmp_path, former)
    resumed(tmp_path, folder, given(("now", now), to="now"), "now")
    former.calls.clear()

    served(tmp_path, options(("former", former), ("now", now), discard=("former",)))
    served(tmp_path, options(("former", former), ("now", now)))

    assert (former.calls, report_of(folder).owed, report_of(folder).ended) == (
        [],
        {},
        True,
    )
    assert report_of(folder).discarded["former"] >= LAG


def test_near_the_limit_what_is_not_confirmed_goes_first_and_is_counted(
    tmp_path: Path,
) -> None:
    former, now = RecordingTracker(reports_durable=True, lag=3000), RecordingTracker()
    folder = run_folder(tmp_path)
    first = Process.start(folder, "former")
    first.log(3000)
    with serving(tmp_path, options(("former", former))):
        report_when(
            folder,
            lambda report: (
                "former" in report.exporters
                and report.exporters["former"].written == 3000
            ),
        )
    first.die()
    with next_process(
        tmp_path, folder, given(("now", now), to="now", max_bytes=1 << 18), "now"
    ) as second:
        evicted = report_when(folder, lambda report: bool(report.evicted))
    second.end()

    assert evicted.evicted["former"] + evicted.owed["former"] == 3000
