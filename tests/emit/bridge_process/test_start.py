from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.emit.bridge_process import takeover
from otel_bridge.emit.bridge_process.takeover import has_what_is_missing, take_over
from otel_bridge.emit.config.child_env import launcher_environment
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import OTLP, SIGNALS
from otel_bridge.journal.control import receive_control
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.report import (
    ExporterReport,
    ProcessReport,
    Report,
    write_report,
)
from otel_bridge.otlp.destination import addresses
from otel_bridge.records import run_id_of
from support.bridge.bridge_doubles import Process
from support.otlp.journal_samples import HANGING_BRIDGE, line_of, python
from support.trainers.emit_samples import environment_of, held, run_in, seen_in

_LOUD = {"OTEL_BRIDGE_QUIET": "0"}


def reported(base: Path, **fields: object) -> RunFolder:
    """Leave a report of an earlier start of the run."""
    folder = RunFolder(base, run_id_of("gsm8k", "ppo"))
    folder.create()
    report = Report()
    for name, value in fields.items():
        setattr(report, name, value)
    write_report(folder, report)
    return folder


def test_a_run_that_goes_on_says_where_it_stood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exporters = {
        "mlflow": ExporterReport(
            state="ended", url="http://m/#/runs/1", view="http://m"
        )
    }
    reported(tmp_path, steps={"trainer/step": 154}, exporters=exporters)

    with run_in(tmp_path, _LOUD, role="trainer"):
        lines = capsys.readouterr().err.splitlines()

    assert lines[0].endswith("as trainer → mlflow")
    assert lines[1:3] == [
        "otel-bridge:   resuming, last trainer step 154",
        "otel-bridge:   mlflow: http://m/#/runs/1",
    ]
    assert lines[3].startswith("otel-bridge:   held in")


@pytest.mark.parametrize(
    ("role", "alive", "status", "said"),
    [
        ("explorer", True, "running", "joining"),
        ("explorer", False, "running", "resuming"),
        ("explorer", True, "finished", "resuming"),
        ("trainer", True, "running", "resuming, last trainer step 154"),
    ],
)
def test_a_further_role_of_a_run_under_way_joins_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    role: str,
    alive: bool,
    status: str,
    said: str,
) -> None:
    other = Process.start(reported(tmp_path), role="trainer")
    if not alive:
        other.die()  # with its bridge, whose report still shows it as alive
    processes = {other.instance: ProcessReport(role="trainer", alive=True)}
    reported(tmp_path, steps={"trainer/step": 154}, processes=processes, status=status)

    with run_in(tmp_path, {**_LOUD, "OTEL_BRIDGE_EXPORTERS": "file"}, role=role):
        lines = capsys.readouterr().err.splitlines()

    assert lines[0].endswith(f"as {role} → file")
    assert lines[1] == f"otel-bridge:   {said}"


@pytest.mark.parametrize(("is_alive", "line"), [(True, "joining"), (False, "resuming")])
def test_a_run_that_no_bridge_has_read_yet_is_joined_or_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_alive: bool, line: str
) -> None:
    folder = RunFolder(tmp_path, run_id_of("gsm8k", "ppo"))
    folder.create()
    other = Process.start(folder, role="trainer")
    if not is_alive:
        other.die()

    with run_in(tmp_path, _LOUD, role="explorer"):
        lines = capsys.readouterr().err.splitlines()

    assert lines[0].endswith("as explorer → no exporter yet")
    assert lines[1] == f"otel-bridge:   {line}"


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"ENDPOINT": "http://ada:pw@head:4317"}, "http://head:4317"),
        ({"ENDPOINT": "http://head:4318", "PROTOCOL": "http/protobuf"}, "http://head:4318"),
        (
            # As `run.env()` gives them to workers.
            {
                "ENDPOINT": "http://head:4318", "PROTOCOL": "http/protobuf",
                "METRICS_ENDPOINT": "http://head:4318/v1/metrics", "TRACES_ENDPOINT": "http://head:4318/v1/traces",
            },
            "http://head:4318",
        ),
        (
            {"ENDPOINT": "http://head:4317", "LOGS_ENDPOINT": "http://other:4317"},
            "http://head:4317, http://other:4317",
        ),
    ],
)  # fmt: skip
def test_where_it_forwards_to_is_said_once_and_without_credentials(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    shown: str,
) -> None:
    env = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}

    with run_in(tmp_path, {**_LOUD, **env}, exporters="otlp,file"):
        line = capsys.readouterr().err

    assert f" → otlp ({shown}), file\n" in line


def test_what_only_an_earlier_start_named_is_not_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = {
        "mlflow": ExporterReport(url="http://m", missed=3),
        "trackio": ExporterReport(url="http://t", missed=7),
    }
    reported(tmp_path, exporters=earlier)

    with run_in(tmp_path, _LOUD, exporters="trackio"):
        line = capsys.readouterr().err

    assert (
        " → trackio\notel-bridge:   resuming\n"
        "otel-bridge:   trackio was named later: it lacks 7 records that had been deleted by then\n"
        "otel-bridge:   trackio: http://t\notel-bridge:   held in"
    ) in line


def test_a_process_whose_own_variables_name_another_place_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ExporterReport(
        state="idle", destination={"MLFLOW_TRACKING_URI": "http://there"}
    )
    reported(tmp_path, exporters={"mlflow": there})
    bridge = RecordLock(run_folders(tmp_path)[0].lock_path)
    bridge.acquire()

    with run_in(
        tmp_path, {**_LOUD, "MLFLOW_TRACKING_URI": "http://here"}, exporters="mlflow"
    ) as run:
        line = capsys.readouterr().err

        assert (
            run.facts.choice.destinations["mlflow"]["MLFLOW_TRACKING_URI"]
            == "http://here"
        )
    assert (
        "mlflow delivers to the destination that the bridge was started with: MLFLOW_TRACKING_URI=http://there, not "
        in line
    )
    bridge.release()


@pytest.mark.parametrize("has_bridge", [True, False])
@pytest.mark.parametrize(
    ("before", "is_said"), [("http://here:4318", False), ("http://there:4318", True)]
)
def test_a_place_of_otlp_is_compared_as_the_bridge_reports_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    is_said: bool,
    has_bridge: bool,
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    earlier = addresses({**env, "OTEL_EXPORTER_OTLP_ENDPOINT": before})
    reported(
        tmp_path,
        exporters={OTLP: ExporterReport(state="idle", destination=earlier)},
    )
    bridge = RecordLock(run_folders(tmp_path)[0].lock_path)
    if has_bridge:
        bridge.acquire()

    with run_in(tmp_path, {**_LOUD, **env}, exporters=OTLP):
        line = capsys.readouterr().err

    assert ("otlp delivers to" in line) is is_said
    goes_elsewhere = "from now on; earlier records went to" in line
    assert goes_elsewhere is (is_said and not has_bridge)
    bridge.release()


@pytest.mark.parametrize("state", ["idle", "ended"])
def test_without_a_bridge_records_go_where_the_process_s_own_variables_say_and_the_view_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    there = ExporterReport(
        state=state,
        destination={"MLFLOW_TRACKING_URI": "http://there"},
        url="http://there/#/1",
    )
    reported(tmp_path, exporters={"mlflow": there})

    with run_in(
        tmp_path, {**_LOUD, "MLFLOW_TRACKING_URI": "http://here"}, exporters="mlflow"
    ):
        line = capsys.readouterr().err

    assert (
        "mlflow delivers to MLFLOW_TRACKING_URI=http://here from now on; "
        "earlier records went to MLFLOW_TRACKING_URI=http://there"
    ) in line
    assert "http://there/#/1" not in line


def test_the_segment_says_which_exporters_were_asked_for_and_where_they_deliver(
    tmp_path: Path,
) -> None:
    variables = {
        "OTEL_METRICS_EXPORTER": "mlflow",
        "OTEL_TRACES_EXPORTER": "file",
        "MLFLOW_TRACKING_URI": "http://m",
    }
    with run_in(tmp_path, variables):
        (seen,) = seen_in(tmp_path)

    assert seen.header.exporters == {
        "metrics": ("mlflow",),
        "traces": ("file",),
        "logs": (),
    }
    assert seen.header.destinations["mlflow"]["MLFLOW_TRACKING_URI"] == "http://m"


def test_under_a_living_launcher_no_bridge_is_started_and_its_exporters_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = launcher_environment({"metrics": ("file",)})
    environment = {
        **held(tmp_path),
        **given,
        **_LOUD,
        "OTEL_BRIDGE_OFFLINE": "0",
        "OTEL_METRICS_EXPORTER": "otlp",
    }
    with environment_of(environment):
        run = otel_bridge.init("p", "n", exporters="console")
        run.log({"a": 1.0})

        assert run._recorder.starter.delivered_by() == "launcher"
        (folder,) = run_folders(tmp_path)
        (seen,) = seen_in(tmp_path)
        assert seen.header.exporters == {"metrics": ("file",), "traces": (), "logs": ()}
        assert not folder.log_path.exists()
        assert " → file" in capsys.readouterr().err


def test_under_a_launcher_that_names_no_exporters_rows_are_recorded_all_the_same(
    tmp_path: Path,
) -> None:
    environment = {
        **held(tmp_path),
        **launcher_environment({}),
        "OTEL_BRIDGE_OFFLINE": "0",
    }
    with environment_of(environment):
        otel_bridge.init("p", "n").log({"a": 1.0}, step=1)

        assert [seen.steps for seen in seen_in(tmp_path)] == [[1]]


@pytest.mark.parametrize(
    ("exporter", "state", "env", "takes"),
    [
        ("wandb", "blocked", {"WANDB_API_KEY": "k"}, True),
        ("wandb", "blocked", {"HF_TOKEN": "k"}, False),
        ("wandb", "retrying", {"WANDB_API_KEY": "k"}, False),
        ("otlp", "blocked", {"OTEL_BRIDGE_TOKEN": "k"}, True),
        ("otlp", "blocked", {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=b"}, True),
        ("otlp", "blocked", {"WANDB_API_KEY": "k"}, False),
    ],
)
def test_a_blocked_bridge_is_taken_over_by_who_has_the_credentials(
    exporter: str, state: str, env: dict[str, str], takes: bool
) -> None:
    report = Report(exporters={exporter: ExporterReport(state=state)})

    assert has_what_is_missing(report, env) is takes


def test_taking_over_asks_and_waits_until_the_lock_is_free(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "r")
    folder.create()
    lock, asked = folder.lock(), []
    assert lock.acquire()

    def bridge() -> None:
        while not asked:
            asked.extend(ask.kind for ask in receive_control(folder))
        lock.release()

    bridging = threading.Thread(target=bridge)
    bridging.start()
    take_over(folder)
    bridging.join()

    assert asked == ["handover"]
    assert folder.lock().acquire()


def test_only_the_bridge_that_holds_the_lock_is_killed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "HANDOVER_S", 0.1)
    folder = RunFolder(tmp_path, "r")
    folder.create()

    with (
        python("input()") as bystander,
        python(HANGING_BRIDGE, folder.path, bystander.pid) as bridge,
    ):
        assert line_of(bridge) == "locked"
        take_over(folder)
        codes = (bridge.wait(), bystander.poll())

    assert codes == (-signal.SIGKILL, None)
    # Or the next bridge would hand the folder over to nobody.
    assert receive_control(folder) == []


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, which deletes it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_deleted_working_folder_is_an_error_at_init(
    tmp_path: Path, gone: Path
) -> None:
    gone.rmdir()

    with (
        environment_of(held(tmp_path)),
        pytest.raises(ConfigError, match="working folder"),
    ):
        otel_bridge.init("p", "n")


def test_a_working_folder_that_is_deleted_while_a_run_is_open_is_an_error_of_a_relative_folder(
    tmp_path: Path, gone: Path
) -> None:
    with environment_of(held(tmp_path)):
        run = otel_bridge.init("p", "n")
        gone.rmdir()
        with pytest.raises(ConfigError, match="No such file or directory"):
            otel_bridge.init("p", "n", dir="runs")
        assert otel_bridge.init("p", "n") is run


def test_every_public_name_can_be_used() -> None:
    assert {
        name for name in otel_bridge.__all__ if getattr(otel_bridge, name) is None
    } == set()
    assert set(otel_bridge.__all__) <= set(dir(otel_bridge))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = otel_bridge.nothing


def test_init_prints_the_names_that_a_tracker_s_own_variables_give_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {
        "WANDB_RUN_ID": "w17", "WANDB_PROJECT": "vision", "WANDB_ENTITY": "lab", "WANDB_MODE": "online",
        "TRACKIO_PROJECT": "maths", "MLFLOW_RUN_ID": "0a1b\x1b]52;c", "MLFLOW_EXPERIMENT_NAME": "old",
        "OTEL_BRIDGE_OFFLINE": "0", **launcher_environment(dict.fromkeys(SIGNALS, ("wandb", "mlflow", "trackio"))),
    }  # fmt: skip

    with run_in(tmp_path, {**_LOUD, **variables}):
        line = capsys.readouterr().err

    assert "wandb writes to its run w17 (WANDB_RUN_ID)\n" in line
    assert "wandb has the run in the project vision (WANDB_PROJECT)\n" in line
    assert "mlflow writes to its run 0a1b\\x1b]52;c (MLFLOW_RUN_ID)" in line
    assert "experiment" not in line
    assert "trackio has the run in the project maths (TRACKIO_PROJECT)" in line
    assert "trackio show --project maths" in line
    assert "/lab/vision/runs/w17" in line


def test_init_is_silent_where_a_tracker_s_variable_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(
        tmp_path,
        {**_LOUD, "OTEL_BRIDGE_EXPORTERS": "mlflow", "MLFLOW_EXPERIMENT_NAME": "gsm8k"},
    ):
        line = capsys.readouterr().err

    assert "MLFLOW_EXPERIMENT_NAME" not in line
