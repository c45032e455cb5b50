from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.bridge.delivery.context import Names
from otel_bridge.bridge.exporter_environment import (
    ExporterEnvironment,
    chosen,
    other_traces,
)
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import Exporter, destination_of
from otel_bridge.translation.options import OtherTraces
from otel_bridge_trackio.settings import TrackioSettings
from support.bridge.bridge_doubles import (
    Process,
    options,
    run_folder,
    served,
    serving,
    until,
    written,
)
from support.bridge.bridge_file_tracker import Nowhere
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.journal_samples import header
from support.otlp.otlp_samples import RUN

BOTH = header(
    exporters={
        "metrics": ("trackio", "none"),
        "traces": ("mlflow", "trackio"),
        "logs": (),
    }
)
OTHER = header(exporters={"metrics": ("wandb", "trackio")})


def test_a_given_list_goes_before_the_processes_and_the_living_together_before_the_last() -> (
    None
):
    last: Names = {"file": ("metrics",)}

    given = chosen({"metrics": ["console"], "traces": ["none"]}, [BOTH], last)
    living = chosen(None, [BOTH, OTHER], last)
    dead = chosen(None, [], last)

    assert given == {"console": ("metrics",)}
    assert living == {
        "trackio": ("metrics", "traces"),
        "wandb": ("metrics",),
        "mlflow": ("traces",),
    }
    assert (dead, chosen(None, [], {})) == ({"file": ("metrics",)}, {})


def test_places_of_the_segments_count_only_where_the_own_environment_is_silent() -> (
    None
):
    seen: list[Mapping[str, str]] = []

    def settings(env: Mapping[str, str], cwd: Path) -> Nowhere:
        seen.append(dict(env))
        return Nowhere({"A": env["A"], "B": env.get("B", "")})

    exporter = Exporter(
        read_settings=settings,
        ordered=True,
        open=lambda run, settings, memory: pytest.fail("opened"),
    )
    own, named = {"A": "own", "KEY": "secret"}, {"A": "named", "B": "named"}

    ExporterEnvironment(own, Path(), lambda name: exporter).resolve(
        "x", named, run_id="r"
    )
    ExporterEnvironment(own, Path(), lambda name: exporter, from_segments=True).resolve(
        "x", named, run_id="r"
    )

    assert (seen[0], seen[-1]) == (own, {"A": "own", "B": "named", "KEY": "secret"})


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_leads_nothing_elsewhere_than_the_segments(
    empty: str,
) -> None:
    env = {"TRACKIO_SERVER_URL": empty, "OTEL_EXPORTER_OTLP_ENDPOINT": empty}
    own = ExporterEnvironment(env, Path(), from_segments=True, trusts_folders=True)

    _, settings = own.resolve(
        "trackio", {"TRACKIO_SERVER_URL": "http://theirs.example/"}, run_id="r"
    )
    forwarding = own.forwarding({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://next:4317"})

    assert destination_of(settings) == {"TRACKIO_SERVER_URL": "http://theirs.example/"}
    assert forwarding["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://next:4317"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("trackio", "TRACKIO_SERVER_URL"),
        ("wandb", "WANDB_BASE_URL"),
        ("mlflow", "MLFLOW_TRACKING_URI"),
    ],
)
@pytest.mark.parametrize("before", ["", " ", "\t", "\u2003", "\u00a0", "\n"])
def test_no_spelling_of_a_server_in_a_folder_of_somebody_else_leads_there(
    name: str, variable: str, before: str
) -> None:
    environment = ExporterEnvironment({}, Path(), from_segments=True)

    with pytest.raises(ConfigError):
        environment.resolve(
            name, {variable: f"{before}http://tracker.example"}, run_id="r"
        )


def test_a_folder_of_somebody_else_names_a_destination_and_no_file_of_tokens(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("of the caller")
    own = {"TRACKIO_SPACE_ID": "me/space", "HOME": str(tmp_path)}
    environment = ExporterEnvironment(own, tmp_path, from_segments=True)

    _, settings = environment.resolve(
        "trackio", {"HF_TOKEN_PATH": str(tmp_path / "secret")}, run_id="r"
    )

    assert isinstance(settings, TrackioSettings)
    assert settings.remote is not None
    assert settings.remote.hf_token is None


def test_settings_of_the_environment_reach_translation() -> None:
    env = {
        "OTEL_BRIDGE_END_GRACE_S": "1.5",
        "OTEL_BRIDGE_POLL_S": "0.2",
        "OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP": "3",
    }

    how = BridgeOptions.read(env, Path())

    assert (
        how.translation.end_grace_ns,
        how.poll_s,
        how.of_run("r9").max_rollouts,
    ) == (
        1_500_000_000,
        0.2,
        3,
    )
    assert how.of_run("r9").run_id == "r9"


def test_the_switch_of_the_genai_instrumentations_holds_for_what_the_bridge_translates_too() -> (
    None
):
    switch = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "no_content"}

    assert BridgeOptions.read(switch, Path()).translation.content == ContentPolicy(0)
    full = {**switch, "OTEL_BRIDGE_MESSAGE_CONTENT": "full"}
    assert BridgeOptions.read(full, Path()).translation.content == ContentPolicy()


def test_a_setting_that_cannot_be_used_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match="OTEL_BRIDGE_POLL_S"):
        BridgeOptions.read({"OTEL_BRIDGE_POLL_S": "often"}, Path())


def test_an_exporter_no_longer_named_keeps_its_records_for_the_day_it_is_named_again(
    tmp_path: Path,
) -> None:
    folder, first, second = run_folder(tmp_path), RecordingTracker(), RecordingTracker()
    how = options(("first", first), ("second", second))
    process = Process.start(folder, "first")
    process.log(2)
    process.end()
    served(tmp_path, how)
    other = Process.start(folder, "second")
    other.log(2)
    other.end()
    served(tmp_path, how)
    again = Process.start(folder, "first")
    again.log(1)
    again.end()

    served(tmp_path, how)

    assert written(first) == [*process.row_ids, *other.row_ids, *again.row_ids]
    assert written(second) == other.row_ids


def test_near_the_limit_goes_first_what_only_an_exporter_no_longer_named_has_not_got(
    tmp_path: Path,
) -> None:
    folder, gone, stays = (
        run_folder(tmp_path),
        RecordingTracker(reports_durable=True, lag=10**9),
        RecordingTracker(),
    )
    how = options(("gone", gone), ("stays", stays))
    process = Process.start(folder, "gone")
    process.log(1)
    process.end()
    served(tmp_path, how)
    later = Process.start(folder, "stays")
    later.log(3000)

    with serving(
        tmp_path, options(("gone", gone), ("stays", stays), max_bytes=1 << 18)
    ) as host:
        stays.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3001)
        until(lambda: any("no longer named" in line for line in host.lines))  # type: ignore[attr-defined]

    assert written(stays) == [*process.row_ids, *later.row_ids]


def test_near_the_limit_a_store_that_vouches_for_nothing_is_taken_at_its_word_when_written(
    tmp_path: Path,
) -> None:
    folder, offline = (
        run_folder(tmp_path),
        RecordingTracker(reports_durable=True, lag=10**9),
    )
    process = Process.start(folder, "offline")
    process.log(3000)

    with serving(tmp_path, options(("offline", offline), max_bytes=1 << 18)) as host:
        offline.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3000)
        until(
            lambda: any(
                "not every tracker's store confirmed" in line for line in host.lines
            )
        )  # type: ignore[attr-defined]
        offline.wait_for(
            lambda recorder: "close" in [call.kind for call in recorder.calls]
        )

    assert [call.kind for call in offline.calls][:2] == ["open", "rows"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, OtherTraces.COUNTED),
        ({"mlflow": ("metrics", "traces")}, OtherTraces.COUNTED),
        ({"otlp": ("traces",)}, OtherTraces.COUNTED),
        ({"file": ("metrics",)}, OtherTraces.COUNTED),
        ({"file": ("traces",), "otlp": ("traces",)}, OtherTraces.SHOWN),
        ({"file": ("traces",), "mlflow": ("metrics",)}, OtherTraces.SHOWN),
        (
            {"console": ("traces",), "mlflow": ("traces",)},
            OtherTraces.SHOWN_AND_COUNTED,
        ),
        (
            {"console": ("traces",), "unknown": ("traces",)},
            OtherTraces.SHOWN_AND_COUNTED,
        ),
    ],
)
def test_traces_that_are_not_rollouts_are_shown_by_console_and_file(
    names: dict[str, tuple[str, ...]], expected: OtherTraces
) -> None:
    assert other_traces(names) is expected
