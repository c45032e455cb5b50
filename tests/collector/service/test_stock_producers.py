"""Programs with the stock OpenTelemetry SDK alone send to ``otel-bridge serve``, which writes to MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bridge.bridge_doubles import until
from support.collector.service_process import Service, service
from support.trackers import mlflow_reading
from support.trainers.command_runs import call, environment, program
from support.trainers.stock_programs import OTLP_BY_ITSELF
from support.waiting import HANG_S

pytestmark = pytest.mark.slow
_WAIT_S = HANG_S


def shown(uri: str) -> list[tuple[str, dict[str, list[float]], int]]:
    """Return status, values by key, and number of rollouts of each MLflow run."""
    api = mlflow_reading.client(uri)
    places = [each.experiment_id for each in api.search_experiments()]
    return [
        (
            run.info.status,
            {
                key: [one.value for one in api.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
                if "rollouts" not in key
            },
            len(
                api.search_traces(
                    locations=[run.info.experiment_id], run_id=run.info.run_id
                )
            ),
        )
        for run in api.search_runs(places)
    ]


def produce(tmp_path: Path, running: Service) -> None:
    env = environment(
        tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=running.http, OTEL_SERVICE_NAME="reward"
    )
    done = call(
        ["python", program(tmp_path, "stock.py", OTLP_BY_ITSELF)], cwd=tmp_path, env=env
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.long
def test_the_run_of_stock_producers_ends_with_the_service_and_is_reopened_when_one_comes_back(
    tmp_path: Path,
) -> None:
    uri = mlflow_reading.database(tmp_path)
    env = environment(tmp_path, MLFLOW_TRACKING_URI=uri)

    with service(tmp_path, env, "--exporters", "mlflow") as running:
        produce(tmp_path, running)
        until(lambda: [found[0] for found in shown(uri)] == ["RUNNING"])
        first_exit, _ = running.end()
    ended = shown(uri)
    with service(tmp_path, env, "--exporters", "mlflow") as running:
        between = shown(uri)
        produce(tmp_path, running)
        until(lambda: [found[0] for found in shown(uri)] == ["RUNNING"])
        second_exit, _ = running.end()
    ended_again = shown(uri)

    assert (first_exit, second_exit) == (0, 0)
    assert (
        ended
        == between
        == [("FINISHED", {"reward/queue": [3.0], "reward/requests": [5.0]}, 1)]
    )
    ((status, values, rollouts),) = ended_again
    assert (status, values["reward/requests"], rollouts) == ("FINISHED", [5.0, 5.0], 2)
