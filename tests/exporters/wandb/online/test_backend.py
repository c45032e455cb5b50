"""The stand-in W&B server, driven by the real SDK alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_offline import MetricDefinition
from support.waiting import ANSWER_S

wandb: Any = pytest.importorskip("wandb")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


@pytest.fixture
def init(server: WandbServer, tmp_path: Path) -> Callable[..., Any]:
    def start(**changes: object) -> Any:
        settings = wandb.Settings(
            mode="online", base_url=server.url, project="p", run_id="r", root_dir=str(tmp_path), resume="allow",
            reinit="create_new", silent=True, console="off", x_disable_stats=True, x_disable_meta=True,
            x_disable_machine_info=True, x_save_requirements=False, x_file_stream_transmit_interval=1.0, **changes,
        )  # fmt: skip
        return wandb.init(settings=settings)

    return start


def post(url: str, body: object) -> tuple[int, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers).get("Retry-After")


def test_it_records_what_the_sdk_sends(
    server: WandbServer, init: Callable[..., Any]
) -> None:
    run = init(run_name="nice", run_tags=("t",), run_group="g")
    run.config.update({"a": {"b": 1}})
    run.define_metric("x/step", hidden=True)
    run.define_metric("x/*", step_metric="x/step")
    run.log({"x/loss": float("nan"), "x/step": 4, "_timestamp": 5.0})
    run.finish(3)

    held = server.run("r")
    (line,) = held.history
    assert (str(line["x/loss"]), line["x/step"], line["_timestamp"], line["_step"]) == (
        "nan",
        4,
        5.0,
        0,
    )
    assert (held.config, held.display_name, held.tags, held.group) == (
        {"a": {"b": 1}},
        "nice",
        ["t"],
        "g",
    )
    assert held.metrics == {
        "x/step": MetricDefinition("x/step", "", hidden=True),
        "x/*": MetricDefinition("x/*", "x/step", hidden=False, glob=True),
    }
    assert (held.state, held.exit_code) == ("failed", 3)
    assert held.upserts[0].metrics == {}


def test_a_resumed_run_goes_on_at_the_line_count(
    server: WandbServer, init: Callable[..., Any]
) -> None:
    for turn in range(2):
        run = init()
        starts = run.starting_step
        for n in range(3):
            run.log({"n": turn * 3 + n})
        run.finish()

    held = server.run("r")
    assert (starts, [row["n"] for row in held.history], held.overwritten) == (
        3,
        [0, 1, 2, 3, 4, 5],
        [],
    )
    api = wandb.Api(overrides={"base_url": server.url})
    assert api.run(f"{run.entity}/p/r").lastHistoryStep == 5


def test_two_writers_of_one_run_overwrite_each_other_as_they_do_at_wandb(
    server: WandbServer, init: Callable[..., Any]
) -> None:
    init().finish()
    path = f"{server.url}/files/stand-in/p/r/file_stream"

    for text in ("first", "second"):
        files = {
            "wandb-history.jsonl": {"offset": 0, "content": [json.dumps({"who": text})]}
        }
        assert post(path, {"files": files})[0] == 200

    held = server.run("r")
    assert (held.history, len(held.overwritten)) == ([{"who": "second"}], 1)


def test_an_incremental_table_is_kept_whole_over_a_resume(
    server: WandbServer, init: Callable[..., Any]
) -> None:
    for turn in range(2):
        run = init()
        table = wandb.Table(columns=["n"], log_mode="INCREMENTAL")
        for n in range(2):
            table.add_data(turn * 2 + n)
            run.log({"a/table": table})
        run.finish()

    assert server.table("r", "a/table") == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize(
    ("status", "retry_after"), [(503, None), (403, None), (429, "7")]
)
def test_it_answers_with_a_status_as_often_as_reported(
    server: WandbServer, status: int, retry_after: str | None
) -> None:
    viewer = {"query": "query Viewer { viewer { id } }"}
    server.answer(
        status, what="Viewer", times=2, retry_after_s=7 if retry_after else None
    )

    answers = [post(f"{server.url}/graphql", viewer) for _ in range(3)]

    assert answers[:2] == [(status, retry_after)] * 2
    assert answers[2][0] == 200
    assert [(seen.what, seen.name, seen.status) for seen in server.received] == [
        ("graphql", "Viewer", status), ("graphql", "Viewer", status), ("graphql", "Viewer", 200),
    ]  # fmt: skip


def test_it_refuses_and_listens_again_on_the_same_address(server: WandbServer) -> None:
    viewer, url = {"query": "query Viewer { viewer { id } }"}, f"{server.url}/graphql"
    server.refuse()
    with pytest.raises(OSError, match="refused"):
        post(url, viewer)

    server.listen()

    assert post(url, viewer)[0] == 200


@pytest.mark.parametrize("take", [False, True])
def test_it_drops_a_connection_before_or_after_it_took_the_request(
    server: WandbServer, take: bool
) -> None:
    upsert = {
        "query": "mutation UpsertBucket { x }",
        "variables": {"name": "r", "project": "p"},
    }
    server.drop(what="UpsertBucket", times=1, take=take)

    with pytest.raises(OSError, match=r".+"):
        post(f"{server.url}/graphql", upsert)

    assert len(server.store.runs) == int(take)


def test_an_operation_it_does_not_know_is_an_error_and_noted(
    server: WandbServer,
) -> None:
    status, answer = post(
        f"{server.url}/graphql", {"query": "query SomethingNew { x }"}
    )

    noted = [name for name, _ in server.resolver.unknown]
    server.resolver.unknown.clear()
    assert (status, noted) == (200, ["SomethingNew"])
    assert (
        "does not know the operation 'SomethingNew'" in answer["errors"][0]["message"]
    )
