"""How much text each exporter of a run gets: what is said by whom, and that the strictest of it holds for good."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.bridge.delivery.less_text import ContentLimits
from otel_bridge.bridge.exporter_environment import ExporterEnvironment
from otel_bridge.bridge.ledger.database import open_for_reading
from otel_bridge.errors import PermanentError
from otel_bridge.journal.control import send_control
from otel_bridge.journal.frames import Signal
from otel_bridge.records import RolloutRecord
from support.bridge.bridge_doubles import Process, Trackers, options, run_folder, served
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN
from support.otlp.trace_samples import rollout_spans, scope_spans


@pytest.mark.parametrize(
    ("own", "said", "limit"),
    [
        ("", [], None),
        ("off", [], 0),
        ("truncate:9", [], 9),
        ("truncate:9", [{"cloud": "truncate:20"}], 9),
        ("truncate:9", [{"cloud": "truncate:5"}, {"cloud": "full"}], 5),
        ("", [{"cloud": "off"}, {"cloud": "truncate:5"}], 0),
        ("", [{"other": "off"}], None),
        ("a bit", [], 0),
    ],
)
def test_the_strictest_of_what_the_bridge_and_the_processes_say_holds(
    own: str, said: list[dict[str, str]], limit: int | None
) -> None:
    limits = ContentLimits({"OTEL_BRIDGE_CLOUD_MESSAGE_CONTENT": own})

    for one in said:
        limits.apply(one)

    assert limits.of("cloud") == limit
    assert (
        ContentLimits({"OTEL_BRIDGE_CLOUD_MESSAGE_CONTENT": own}, limits.requested).of(
            "cloud"
        )
        == limit
    )


def ended_run(
    base: Path, *exporters: str, message_content: Mapping[str, str] | None = None
) -> None:
    """A process that has sent one rollout and ended."""
    process = Process.start(
        run_folder(base), *exporters, message_content=message_content or {}
    )
    process.log()
    process.append(Signal.TRACES, scope_spans(rollout_spans("one")).SerializeToString())
    process.end()


def rollout_of(recorder: RecordingTracker) -> RolloutRecord:
    (rollout,) = recorder.run(RUN).rollouts.values()
    return rollout


def test_text_goes_to_one_tracker_and_numbers_to_the_other(tmp_path: Path) -> None:
    local, cloud = RecordingTracker(), RecordingTracker()
    ended_run(tmp_path, "local", "cloud")
    how = options(("local", local), ("cloud", cloud))
    env = {"OTEL_BRIDGE_CLOUD_MESSAGE_CONTENT": "off"}

    served(
        tmp_path,
        options(exporter_env=ExporterEnvironment(env, Path(), how.exporter_env.load)),
    )

    whole, bare = rollout_of(local), rollout_of(cloud)
    assert [message["role"] for message in whole.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (bare.messages, bare.reward, len(bare.spans)) == (
        [],
        whole.reward,
        len(whole.spans),
    )
    assert "what? one" in repr(whole)
    assert "what? one" not in repr(bare)
    assert b"what? one" not in b"".join(span.otlp for span in bare.spans)


def test_what_a_process_asked_for_holds_when_another_environment_delivers(
    tmp_path: Path,
) -> None:
    cloud = RecordingTracker()
    ended_run(tmp_path, "cloud", message_content={"cloud": "off"})

    served(tmp_path, options(("cloud", cloud)))

    assert rollout_of(cloud).messages == []


def test_it_holds_after_the_bridge_began_anew_and_the_segments_are_gone(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    ended_run(tmp_path, "away", message_content={"cloud": "off"})
    served(
        tmp_path, options(retry_after_exit_s=0.05)
    )  # the exporter named is not known here: its records wait
    for segment in folder.segments():
        segment.path.unlink(missing_ok=True)

    cloud = RecordingTracker()
    served(
        tmp_path,
        options(
            ("cloud", cloud), exporters={"traces": ("cloud",), "metrics": ("cloud",)}
        ),
    )

    assert rollout_of(cloud).messages == []


def test_a_dead_letter_holds_no_more_text_than_its_tracker_might_have(
    tmp_path: Path,
) -> None:
    cloud = RecordingTracker()
    cloud.fail(
        PermanentError("too odd: token=abcdefgh12345678"), kind="rollouts", times=None
    )
    ended_run(tmp_path, "cloud", message_content={"cloud": "off"})

    served(tmp_path, options(("cloud", cloud)))

    with open_for_reading(run_folder(tmp_path).ledger_path).snapshot() as sql:
        dead_letters = [
            (bytes(data), str(reason))
            for data, reason in sql.execute(
                "SELECT data, reason FROM dead_letters WHERE kind = 1"
            )
        ]
    assert [reason for _, reason in dead_letters] == ["too odd: token=[redacted]"]
    assert b"what? one" not in dead_letters[0][0]


def test_a_setting_that_cannot_be_read_blocks_its_exporter_and_no_other(
    tmp_path: Path,
) -> None:
    local, cloud = RecordingTracker(), RecordingTracker()
    ended_run(tmp_path, "local", "cloud")
    trackers = Trackers({"local": local.exporter, "cloud": cloud.exporter})

    host = served(
        tmp_path,
        options(
            exporter_env=ExporterEnvironment(
                {"OTEL_BRIDGE_CLOUD_MESSAGE_CONTENT": "some"}, Path(), trackers.load
            )
        ),
    )

    assert len(rollout_of(local).messages) == 4
    assert cloud.calls == []
    expected = "expected full, off or truncate:N with N characters per message part"
    assert any(
        f"OTEL_BRIDGE_CLOUD_MESSAGE_CONTENT='some': {expected}" in line
        for line in host.lines
    )  # type: ignore[attr-defined]


def test_a_dead_letter_that_is_tried_again_has_no_more_text_than_the_limit_of_now(
    tmp_path: Path,
) -> None:
    cloud = RecordingTracker()
    cloud.fail(PermanentError("too odd"), kind="rollouts", times=None)
    ended_run(tmp_path, "cloud")
    served(tmp_path, options(("cloud", cloud)))
    folder = run_folder(tmp_path)
    with open_for_reading(folder.ledger_path).snapshot() as sql:
        ids = [int(number) for (number,) in sql.execute("SELECT id FROM dead_letters")]
    stricter = {"OTEL_BRIDGE_CLOUD_MESSAGE_CONTENT": "off"}
    later = RecordingTracker()
    how = options(("cloud", later))

    send_control(folder, "retry", dead_letters={"cloud": ids})
    served(
        tmp_path,
        options(
            exporter_env=ExporterEnvironment(stricter, Path(), how.exporter_env.load)
        ),
    )

    assert (rollout_of(later).messages, len(ids)) == ([], 1)
