from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import degraded_of, left_out_of
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, open_writer, samples
from otel_bridge.testing.contract import same_scalars
from otel_bridge_mlflow.errors import Refused, is_held, outcome_of
from otel_bridge_mlflow.versions import MlflowAbilities, Package, abilities_of
from support.trackers import mlflow_reading

exporter = otel_bridge_mlflow.exporter


class Store:
    def log_spans(self, location, spans): ...
    def create_assessment(self, assessment): ...
    def update_assessment(
        self, trace_id, assessment_id, feedback=None, rationale=None, metadata=None
    ): ...


def package(**changed: object) -> Package:
    """The installed MLflow, with parts *changed*."""
    import mlflow
    from mlflow.tracing.constant import TraceTagKey
    from mlflow.utils import rest_utils

    whole = Package(
        "3.5.0", mlflow.MlflowClient, mlflow.entities, Store, TraceTagKey, rest_utils
    )
    return dataclasses.replace(whole, **changed)


WITHOUT = "MLflow 3.5.0 does not show traces written this way; 3.7 does"
SENTENCES = (f"rollouts and evaluations are left out: {WITHOUT}",)


@pytest.mark.parametrize(
    ("part", "remote"),
    [
        ({"trace_tags": SimpleNamespace()}, False),
        ({"trace_tags": None}, False),
        ({"store": SimpleNamespace()}, False),
        ({"store": SimpleNamespace()}, True),
    ],
)
def test_an_mlflow_that_would_not_show_a_trace_leaves_rollouts_out_with_one_sentence(
    part: dict[str, object], remote: bool
) -> None:
    found = abilities_of(package(**part), remote=remote, server_version=None)

    assert found == MlflowAbilities(WITHOUT, SENTENCES)


@pytest.mark.parametrize(
    ("version", "shows"),
    [
        ("3.5.1", False),
        ("2.22.0", False),
        ("3.7.0", True),
        ("4.1.0rc1", True),
        (None, True),
    ],
)
def test_an_old_server_decides_whatever_the_client_can_do(
    version: str | None, shows: bool
) -> None:
    found = abilities_of(package(), remote=True, server_version=version)

    why = f"the MLflow server is {version}, which does not show traces written this way; 3.7 does"
    left_out = "" if shows else why
    degraded = () if shows else (f"rollouts and evaluations are left out: {why}",)
    assert (found.left_out, found.degraded) == (left_out, degraded)


@pytest.mark.parametrize(
    ("version", "starts"),
    [
        ("3.7.0", False),
        ("3.12.0", False),
        ("3.13.0", True),
        ("4.1.0rc1", True),
        (None, False),
    ],
)
def test_only_a_server_on_which_a_trace_can_be_started_twice_gets_rewards_that_way(
    version: str | None, starts: bool
) -> None:
    assert (
        abilities_of(package(), remote=True, server_version=version).starts_traces
        is starts
    )


def test_a_missing_call_blocks_with_its_name_and_the_command_that_installs_another() -> (
    None
):
    class MlflowClient:
        def get_run(self, run_id): ...

    with pytest.raises(
        BlockedError, match=r"MLflow 3\.5\.0 has no MlflowClient\.search_runs"
    ) as raised:
        abilities_of(package(client=MlflowClient), remote=False, server_version=None)

    assert raised.value.help == "pip install 'otel-bridge[mlflow]'"


def test_what_cannot_be_shown_is_counted_and_rows_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracing.constant import TraceTagKey

    monkeypatch.delattr(TraceTagKey, "SPANS_LOCATION")
    uri, run = mlflow_reading.database(tmp_path), samples.run_info(tmp_path)
    settings = exporter.read_settings({"MLFLOW_TRACKING_URI": uri}, tmp_path)
    rows, rollout = samples.placed(samples.rows(3)), samples.rollout(0)

    writer = open_writer(exporter, run, settings, MemoryTable())
    writer.write_rows(rows)
    writer.write_rollouts([rollout])
    writer.write_evaluations([samples.evaluation(rollout, 0.5)])
    writer.end(Status.FINISHED)

    assert exporter.probe is not None
    assert degraded_of(writer) == tuple(exporter.probe(settings)) != ()
    assert sorted((key.partition(":")[0], count) for key, count in left_out_of(writer).items()) == [
        ("evaluations", 1), ("rollouts", 1),
    ]  # fmt: skip
    held = mlflow_reading.contents(uri, run)
    assert (held.rollouts, held.status) == ([], Status.FINISHED)
    same_scalars(held, rows)


def test_the_probe_creates_no_store(tmp_path: Path) -> None:
    assert exporter.probe is not None

    assert exporter.probe(exporter.read_settings({}, tmp_path)) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_newer_sqlalchemy_than_mlflow_can_use_blocks_with_the_package_to_install() -> (
    None
):
    import sqlalchemy.pool

    with pytest.raises(AttributeError) as raised:
        sqlalchemy.pool.FallbackAsyncAdaptedQueuePool_  # noqa: B018  # as MLflow below 3.9 reads one that is gone
    error = AttributeError(str(raised.value).replace("_'", "'"), obj=sqlalchemy.pool)

    found = outcome_of(error, "connecting")

    assert isinstance(found, BlockedError)
    assert found.help.startswith("pip install 'sqlalchemy<2.1'")


@pytest.mark.parametrize(
    "text",
    [
        "UNIQUE constraint failed: metrics.key, metrics.timestamp, metrics.step, metrics.run_uuid, metrics.is_nan",
        "UNIQUE constraint failed: assessments.assessment_id",
        'duplicate key value violates unique constraint "metric_pk"',
        'duplicate key value violates unique constraint "assessments_pkey"',
        "(1062, \"Duplicate entry 'a' for key 'assessments.PRIMARY'\")",
        "Failed to create assessment: constraint violation",
    ],
)
def test_a_record_that_the_store_holds_already_is_known_by_each_databases_words(
    text: str,
) -> None:
    assert is_held(Refused(text))


@pytest.mark.parametrize(
    "text",
    ["UNIQUE constraint failed: latest_metrics.key", "FOREIGN KEY constraint failed"],
)
def test_other_constraints_are_not_a_record_that_is_held(text: str) -> None:
    assert not is_held(Refused(text))


def test_a_package_that_cannot_be_imported_blocks_the_writer_and_raises_nothing_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text("__version__ = '3.12.0'\n")
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from otel_bridge.errors import BlockedError
        from otel_bridge.testing import MemoryTable, samples
        from otel_bridge_mlflow import exporter
        where = Path(sys.argv[1])
        settings = exporter.read_settings({}, where)
        try:
            exporter.open(samples.run_info(where), settings, MemoryTable())
        except BlockedError as exc:
            print(exc, "|", exc.help)
        """
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(path for path in sys.path if path)}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    assert done.stdout.startswith("MLflow cannot be imported: "), done.stderr
    assert done.stdout.endswith("| pip install 'otel-bridge[mlflow]'\n")
