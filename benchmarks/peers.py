"""The peers as plain functions ``log(values, step)``, each as its own documentation would have it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Log = Callable[[Mapping[str, float], int], None]

QUIET = {
    "OTEL_BRIDGE_QUIET": "1",
    "WANDB_SILENT": "true",
    "WANDB_MODE": "offline",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
}


def below(folder: Path) -> dict[str, str]:
    """Return this process's environment with everything below *folder*, and quiet."""
    return {
        **os.environ,
        **QUIET,
        "OTEL_BRIDGE_DIR": str(folder / "runs"),
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
    }


def prepare(folder: Path) -> None:
    """Set this process's environment so that everything lands below *folder*; before any tracker is imported."""
    os.environ.update(below(folder))


@contextmanager
def ours(exporters: str = "trackio", *, hold: bool = True) -> Iterator[Log]:
    """``otel_bridge``; with *hold* nothing is delivered meanwhile."""
    import otel_bridge

    os.environ["OTEL_BRIDGE_OFFLINE"] = str(int(hold))
    run = otel_bridge.init(
        project="bench",
        name=f"ours-{os.getpid()}-{os.urandom(3).hex()}",
        exporters=exporters,
    )
    yield run.log
    run.finish(timeout_s=0.0 if hold else 120.0)


@contextmanager
def trackio() -> Iterator[Log]:
    """``trackio.log``."""
    import trackio as peer

    peer.init(
        project="bench",
        name=f"trackio-{os.urandom(3).hex()}",
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    yield lambda values, step: peer.log(dict(values), step=step)
    peer.finish()


@contextmanager
def trackio_bulk() -> Iterator[Log]:
    """The fastest way Trackio has: the call of its store that its own server and importers use, 1,000 rows a call."""
    from trackio.sqlite_storage import SQLiteStorage

    name, batch = (
        f"trackio-{os.urandom(3).hex()}",
        list[tuple[Mapping[str, float], int]](),
    )

    def store() -> None:
        rows, steps = [dict(values) for values, _ in batch], [step for _, step in batch]
        SQLiteStorage.bulk_log("bench", name, rows, steps=steps, run_id=name)
        batch.clear()

    def log(values: Mapping[str, float], step: int) -> None:
        batch.append((values, step))
        if len(batch) == 1_000:
            store()

    yield log
    if batch:
        store()


@contextmanager
def wandb() -> Iterator[Log]:
    """``wandb.log``, offline."""
    import wandb as peer

    run = peer.init(
        project="bench",
        mode="offline",
        settings=peer.Settings(silent=True, x_disable_stats=True),
    )
    yield lambda values, step: run.log({**values, "step": step})
    run.finish()


@contextmanager
def wandb_online() -> Iterator[Log]:
    """``wandb.log``, with the server that the environment names."""
    import wandb as peer

    run = peer.init(
        project="bench",
        mode="online",
        settings=peer.Settings(silent=True, x_disable_stats=True),
    )
    yield lambda values, step: run.log({**values, "step": step})
    run.finish()


@contextmanager
def mlflow() -> Iterator[Log]:
    """``mlflow.log_metrics``, sqlite."""
    import mlflow as peer

    peer.set_experiment("bench")
    with peer.start_run():
        yield lambda values, step: peer.log_metrics(dict(values), step=step)


@contextmanager
def mlflow_batches() -> Iterator[Log]:
    """The fastest way MLflow has: the client's ``log_batch`` with as many metrics as one call takes, sqlite."""
    import mlflow as peer
    from mlflow.entities import Metric

    experiment = peer.set_experiment("bench")
    client = peer.MlflowClient()
    run_id = client.create_run(experiment.experiment_id).info.run_id
    batch: list[Metric] = []

    def log(values: Mapping[str, float], step: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        batch.extend(
            [Metric(key, value, now_ms, step) for key, value in values.items()]
        )
        if len(batch) >= 1_000:
            client.log_batch(run_id, metrics=batch)
            batch.clear()

    yield log
    if batch:
        client.log_batch(run_id, metrics=batch)
    client.set_terminated(run_id)


PEERS: Mapping[str, Callable[[], object]] = {
    "trackio": trackio,
    "wandb": wandb,
    "mlflow": mlflow,
}
