"""Read a run back through MLflow's own client, in the shape the contract compares."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Status
from otel_bridge.testing import Contents, HeldDistribution, HeldRollout, HeldScalar
from otel_bridge.testing.contents import scalar_text


@functools.lru_cache
def _template() -> bytes:
    """An MLflow database without runs, made once: its migrations take seconds."""
    with tempfile.TemporaryDirectory() as folder:
        client(f"sqlite:///{folder}/mlflow.db").search_experiments()
        return Path(folder, "mlflow.db").read_bytes()


def database(folder: Path, name: str = "mlflow.db") -> str:
    """Return the address of a database of its own in *folder*."""
    path = folder / name
    path.write_bytes(_template())
    return f"sqlite:///{path}"


PARTS = ("mean", "min", "max", "p50", "p95")
"""Metrics by which MLflow shows a distribution."""
WITHOUT_BUCKETS = ("trainer/bare",)
"""Distributions of the contract that have no quantiles, so that they look like scalars of a user."""


def client(uri: str):
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def searches_numbers() -> bool:
    """Whether this MLflow compares feedback as numbers, which it does since 3.15."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.search_utils import SearchTraceUtils

    try:
        return bool(
            SearchTraceUtils.parse_search_filter_for_search_traces(
                "feedback.reward > 0.4"
            )
        )
    except MlflowException:
        return False


def session_of(trace) -> str:
    """The session of a trace: below 3.14 MLflow shows it in quotes, below 3.10 it is an otel-bridge tag."""
    return trace.info.trace_metadata.get(
        "mlflow.trace.session", trace.info.tags.get("group")
    ).strip('"')


def runs_of(uri: str, run: RunInfo):
    api = client(uri)
    experiment = api.get_experiment_by_name(run.project)
    if experiment is None:
        return []
    return api.search_runs([experiment.experiment_id], f"tags.`rl.run.id` = '{run.id}'")


def contents(
    uri: str, run: RunInfo, *, traces: bool = True, skip: str | None = None
) -> Contents:
    """The one run; keys that begin with *skip* are left out."""
    found = runs_of(uri, run)
    if not found:
        return Contents()
    assert len(found) == 1, [each.info.run_id for each in found]
    held, api = found[0], client(uri)
    summary = {
        key.removeprefix("summary/"): scalar_text(value)
        for key, value in {**held.data.metrics, **held.data.tags}.items()
        if key.startswith("summary/")
    }
    keys = [
        key
        for key in held.data.metrics
        if not key.startswith(("summary/", *([] if skip is None else [skip])))
    ]
    history = {key: api.get_metric_history(held.info.run_id, key) for key in keys}
    bases = {key[: -len("/max")] for key in history if key.endswith("/max")}
    distributions = {
        base for base in bases if f"{base}/p50" in history or base in WITHOUT_BUCKETS
    }
    result = Contents(
        config=dict(held.data.params),
        status=None
        if held.info.status == "RUNNING"
        else Status(held.info.status.lower()),
        summary=summary,
        alerts=[
            (key.removeprefix("alert/"), value.partition(" ")[0])
            for key, value in held.data.tags.items()
            if key.startswith("alert/")
        ],
    )
    for key, metrics in history.items():
        base, _, part = key.rpartition("/")
        if base in distributions and part in PARTS:
            continue
        ordered = sorted(metrics, key=lambda metric: (metric.step, metric.timestamp))
        result.scalars.extend(
            HeldScalar(key, metric.step, metric.value, metric.timestamp)
            for metric in ordered
        )
    for key in sorted(distributions):
        for low, high in zip(history[f"{key}/min"], history[f"{key}/max"], strict=True):
            assert low.step == high.step
            result.distributions.append(
                HeldDistribution(key, low.step, low.value, high.value)
            )
    if traces:
        _add_traces(result, api, held)
    return result


def _traces(api, held):
    """Every trace of a run, page by page."""
    found, token = [], None
    while True:
        page = api.search_traces(
            locations=[held.info.experiment_id],
            run_id=held.info.run_id,
            max_results=500,
            page_token=token,
        )
        found += page
        token = page.token
        if not token:
            return found


def _add_traces(result: Contents, api, held) -> None:
    for trace in _traces(api, held):
        trace_id = trace.info.trace_id.removeprefix("tr-")
        root = next(span for span in trace.data.spans if span.parent_id is None)
        reward, parts = None, {}
        for assessment in trace.info.assessments:
            if assessment.name == "reward" and not (assessment.metadata or {}).get(
                "late"
            ):
                reward = assessment.value
            elif (assessment.metadata or {}).get("late") and isinstance(
                assessment.value, float | int
            ):
                result.evaluations.append((trace_id, assessment.name, assessment.value))
            elif isinstance(assessment.value, float | int):
                parts[assessment.name] = assessment.value
        chat = isinstance(root.inputs, dict)
        messages = (
            len(root.inputs["messages"]) + len((root.outputs or {}).get("choices", []))
            if chat
            else None
        )
        result.rollouts.append(
            HeldRollout(trace_id, reward, messages, len(trace.data.spans), parts)
        )
