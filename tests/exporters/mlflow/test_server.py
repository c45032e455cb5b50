from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import Exporter, RunInfo
from otel_bridge.records import RolloutRecord, Row, Status
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.contract import ReadBack, WriterContract, same_scalars
from otel_bridge_mlflow.traces.server import ServerTraces
from support.free_ports import free_port
from support.media_samples import image, media, text
from support.trackers import mlflow_reading
from support.trackers.mlflow_server import PYTHON, FaultProxy, mlflow_server

pytestmark = pytest.mark.slow
exporter = otel_bridge_mlflow.exporter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    if sys.executable == PYTHON:
        mlflow_reading.database(folder, "server.db")
    with mlflow_server(folder) as url:
        yield url


@pytest.fixture(scope="module")
def store(server: str, folder: Path) -> str:
    """Where to read what arrived: the server's database, which is faster, unless another version made it."""
    return f"sqlite:///{folder}/server.db" if sys.executable == PYTHON else server


@pytest.fixture
def proxy(server: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(tmp_path, tmp_path.name)


STARTS = "/api/3.0/mlflow/traces"


def starts_traces(writer: Any) -> bool:
    """Whether the server of *writer* takes the rewards of a rollout in one call."""
    return writer._connection.abilities.starts_traces


def opened(url: str, run: RunInfo, memory: MemoryTable | None = None, **env: str):
    settings = exporter.read_settings(
        {"MLFLOW_TRACKING_URI": url, "OTEL_BRIDGE_MLFLOW_TIMEOUT_S": "2", **env},
        run.folder,
    )
    return open_writer(exporter, run, settings, memory or MemoryTable())


@pytest.mark.long
class TestServer(WriterContract):
    target = "otel_bridge_mlflow:exporter"

    @pytest.fixture
    def exporter(self) -> Exporter:
        return exporter

    @pytest.fixture
    def environment(self, server: str) -> Mapping[str, str]:
        return {"MLFLOW_TRACKING_URI": server}

    @pytest.fixture
    def read_back(self, store: str) -> ReadBack:
        return lambda run: mlflow_reading.contents(store, run)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (500, RetryableError),
        (503, RetryableError),
        (429, RetryableError),
        (401, BlockedError),
        (403, BlockedError),
    ],
)
def test_a_status_of_the_server_is_retried_or_blocks_and_names_the_first_row_not_done(
    proxy: FaultProxy, store: str, run: RunInfo, status: int, expected: type[Exception]
) -> None:
    writer, rows = opened(proxy.url, run), samples.placed(samples.rows(300))
    proxy.status, proxy.path, proxy.after, proxy.headers = (
        status,
        "log-batch",
        1,
        {"Retry-After": "7"},
    )

    with pytest.raises(expected) as raised:
        writer.write_rows(rows)
    proxy.heal()
    writer.write_rows([row for row in rows if row.position >= raised.value.position])

    assert raised.value.position == 101
    assert getattr(raised.value, "retry_after_s", 7.0) == 7.0
    same_scalars(mlflow_reading.contents(store, run), rows)


@pytest.mark.parametrize("status", [500, 401])
def test_opening_fails_the_same_way(
    proxy: FaultProxy, run: RunInfo, status: int
) -> None:
    proxy.status = status

    with pytest.raises((RetryableError, BlockedError)) as raised:
        exporter.open(
            run,
            exporter.read_settings({"MLFLOW_TRACKING_URI": proxy.url}, run.folder),
            MemoryTable(),
        )

    assert type(raised.value) is {500: RetryableError, 401: BlockedError}[status]
    assert len(proxy.seen) == len(set(proxy.seen)), "MLflow tried again by itself"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, BlockedError), (403, BlockedError), (429, RetryableError)],
)
def test_opening_behind_a_gateway_that_answers_in_json_of_its_own_fails_the_same_way(
    proxy: FaultProxy, run: RunInfo, status: int, expected: type[Exception]
) -> None:
    proxy.status, proxy.path = status, "/api/"
    proxy.body = b'{"message": "no"}'
    proxy.headers = {"Content-Type": "application/json", "Retry-After": "7"}

    with pytest.raises(expected) as raised:
        opened(proxy.url, run)

    assert getattr(raised.value, "retry_after_s", 7.0) == 7.0


def test_a_server_that_is_down_is_tried_again_later_and_not_by_mlflow(
    run: RunInfo,
) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    with pytest.raises(RetryableError, match=url):
        exporter.open(
            run,
            exporter.read_settings({"MLFLOW_TRACKING_URI": url}, run.folder),
            MemoryTable(),
        )


def test_a_server_that_hangs_is_left_after_the_timeout_and_nothing_is_doubled(
    proxy: FaultProxy, store: str, run: RunInfo
) -> None:
    writer, rows = opened(proxy.url, run), samples.placed(samples.rows(20))
    proxy.hang, proxy.path = True, "log-batch"

    with pytest.raises(RetryableError):
        writer.write_rows(rows)
    proxy.heal()
    writer.write_rows(rows)

    same_scalars(mlflow_reading.contents(store, run), rows)


@pytest.mark.long
def test_rows_and_rollouts_reach_a_server_that_is_too_slow_for_a_full_request(
    proxy: FaultProxy, store: str, run: RunInfo
) -> None:
    memory = MemoryTable()
    rows = samples.placed(samples.rows(150))
    rollouts = samples.placed(
        [samples.rollout(n, seed=run.id) for n in range(24)], first=1001
    )
    env = {"OTEL_BRIDGE_MLFLOW_TIMEOUT_S": "1"}
    opened(proxy.url, run, memory).write_rollouts(rollouts[:1])
    proxy.hang, proxy.hang_above = True, 16_000

    def write(records: Sequence[Row] | Sequence[RolloutRecord], call: str) -> None:
        for _ in range(8):
            writer = opened(
                proxy.url, run, memory, **env
            )  # anew, as after a few failures in a row
            try:
                return getattr(writer, call)(records)
            except RetryableError as exc:
                records = [
                    each for each in records if each.position >= (exc.position or 0)
                ]
        pytest.fail("the same request was sent again and again")

    write(rows, "write_rows")
    write(rollouts, "write_rollouts")

    found = mlflow_reading.contents(store, run)
    same_scalars(found, rows)
    assert sorted(one.id for one in found.rollouts) == sorted(
        one.id for one in rollouts
    )


def test_a_web_page_that_answers_in_the_place_of_mlflow_blocks_and_nothing_counts_as_written(
    proxy: FaultProxy, store: str, run: RunInfo
) -> None:
    writer, rows = opened(proxy.url, run), samples.placed(samples.rows(2))
    rollout = samples.placed([samples.rollout(0, role="trainer", seed=run.id)], first=9)
    writer.write_rows(rows[:1])
    proxy.status = 200

    for write, position in (
        (lambda: writer.write_rows(rows), 1),
        (lambda: writer.write_rollouts(rollout), 9),
    ):
        with pytest.raises(
            BlockedError, match="a web page answered, not MLflow"
        ) as raised:
            write()
        assert (raised.value.position, "MLFLOW_TRACKING_URI" in raised.value.help) == (
            position,
            True,
        )
    proxy.heal()
    writer.write_rows(rows)

    same_scalars(mlflow_reading.contents(store, run), rows)


def test_answers_that_are_lost_double_nothing(
    proxy: FaultProxy, store: str, run: RunInfo
) -> None:
    writer = opened(proxy.url, run)
    rollouts = [samples.rollout(n, seed=run.id) for n in range(3)]
    records = samples.placed(
        [*samples.rows(20), *rollouts, samples.evaluation(rollouts[0])]
    )

    for path in ("log-batch", STARTS, "/v1/traces", "/assessments"):
        if path == STARTS and not starts_traces(writer):
            continue
        proxy.lose_answer, proxy.path = True, path
        with pytest.raises(RetryableError):
            deliver(writer, records, tries=1)
        proxy.heal()
    deliver(writer, records)

    contents = mlflow_reading.contents(store, run)
    same_scalars(contents, records)
    assert sorted(held.id for held in contents.rollouts) == sorted(
        rollout.id for rollout in rollouts
    )
    assert [held.reward for held in contents.rollouts] == [0.75] * 3
    assert contents.evaluations == [(rollouts[0].id, "judge", 0.5)]


def test_the_rewards_of_a_rollout_are_in_one_call_and_a_later_evaluation_is_a_call_of_its_own(
    proxy: FaultProxy, store: str, run: RunInfo
) -> None:
    writer = opened(proxy.url, run)
    if not starts_traces(writer):
        pytest.skip("a server below 3.13 gets a call for each reward")
    rollouts = samples.placed([samples.rollout(n, seed=run.id) for n in range(3)])
    proxy.seen.clear()

    writer.write_rollouts(rollouts)
    calls = list(proxy.seen)
    writer.write_evaluations([samples.evaluation(rollouts[0], 0.5)])

    assert [calls.count(f"POST {path}") for path in (STARTS, "/v1/traces")] == [3, 1]
    assert not [call for call in calls if call.endswith("/assessments")]
    assert len([call for call in proxy.seen if call.endswith("/assessments")]) == 1
    contents = mlflow_reading.contents(store, run)
    assert [(held.reward, held.parts) for held in contents.rollouts] == [
        (0.75, {"format": 0.25, "answer": 0.5})
    ] * 3
    assert contents.evaluations == [(rollouts[0].id, "judge", 0.5)]


@pytest.mark.parametrize("error", [None, "it broke"])
def test_a_trace_that_is_started_with_its_rewards_shows_what_one_of_spans_alone_shows(
    server: str, run: RunInfo, error: str | None
) -> None:
    with_rewards = samples.rollout(seed=f"{run.id} with", error=error)
    without = samples.rollout(
        seed=f"{run.id} without", error=error, reward=None, rewards={}
    )

    opened(server, run).write_rollouts(samples.placed([with_rewards, without]))

    infos = [
        mlflow_reading.client(server).get_trace(f"tr-{one.id}").info
        for one in (with_rewards, without)
    ]
    fields = [
        (
            info.state,
            info.request_time,
            info.execution_duration,
            info.request_preview,
            info.trace_metadata.get("mlflow.trace.session"),
            info.trace_metadata.get("mlflow.trace.tokenUsage"),
            info.tags.get("mlflow.traceName"),
        )
        for info in infos
    ]
    assert fields[0] == fields[1]


def test_a_bridge_killed_between_the_rewards_and_the_spans_is_followed_by_one_that_writes_both_once(
    server: str, store: str, run: RunInfo
) -> None:
    if not starts_traces(opened(server, run)):
        pytest.skip("a server below 3.13 gets the spans first")
    rollouts = samples.placed([samples.rollout(n, seed=run.id) for n in range(2)])

    child = os.fork()
    if not child:
        try:
            writer = opened(server, run)
            ServerTraces._post = lambda *_: os.kill(os.getpid(), 9)
            writer.write_rollouts(rollouts)
        finally:
            os._exit(1)
    killed = os.waitpid(child, 0)[1]
    opened(server, run).write_rollouts(rollouts)

    assert killed == 9
    contents = mlflow_reading.contents(store, run)
    assert sorted(
        (held.id, held.reward, held.spans) for held in contents.rollouts
    ) == sorted((rollout.id, 0.75, 4) for rollout in rollouts)
    for rollout in rollouts:
        assessments = (
            mlflow_reading.client(server).get_trace(f"tr-{rollout.id}").info.assessments
        )
        assert sorted(one.name for one in assessments) == ["answer", "format", "reward"]


def test_rollouts_behind_a_failing_request_are_named_and_written_when_they_come_again(
    proxy: FaultProxy, store: str, run: RunInfo
) -> None:
    writer = opened(
        proxy.url, run, OTEL_BRIDGE_MLFLOW_TIMEOUT_S="30"
    )  # 50 traces, one by one on old servers
    rollouts = samples.placed(
        [samples.rollout(n, reward=None, rewards={}, seed=run.id) for n in range(60)]
    )
    proxy.status, proxy.path, proxy.after = 503, "/v1/traces", 1

    with pytest.raises(RetryableError) as raised:
        writer.write_rollouts(rollouts)
    proxy.heal()
    writer.write_rollouts(rollouts)

    contents = mlflow_reading.contents(store, run)
    assert raised.value.position == 51
    assert sorted(held.id for held in contents.rollouts) == sorted(
        rollout.id for rollout in rollouts
    )


def test_basic_auth_and_tokens_reach_every_request_and_never_the_destination(
    proxy: FaultProxy, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    writer = opened(proxy.url, run)

    deliver(writer, samples.placed([samples.row(1), samples.rollout(0, seed=run.id)]))

    basic = "Basic " + base64.b64encode(b"ada:secret").decode()
    assert set(proxy.authorizations) == {basic}
    assert {"POST /api/2.0/mlflow/runs/log-batch", "POST /v1/traces"} <= set(proxy.seen)
    assert "secret" not in str(
        exporter.read_settings(
            {"MLFLOW_TRACKING_URI": proxy.url}, run.folder
        ).destination
    )


def test_two_writers_on_one_run_lose_and_double_nothing(
    server: str, store: str, run: RunInfo
) -> None:
    first, second = opened(server, run), opened(server, run)
    mine, theirs = samples.rows(30), samples.rows(30, role="explorer")

    for row, other in zip(samples.placed(mine), samples.placed(theirs), strict=True):
        first.write_rows([row])
        second.write_rows([other])
    first.end(Status.FINISHED)

    assert first.url == second.url
    same_scalars(mlflow_reading.contents(store, run), [*mine, *theirs])


def test_the_url_shows_the_run_and_nothing_is_printed(
    server: str, run: RunInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = opened(server, run)
    writer.end(Status.FINISHED)

    assert capsys.readouterr().out == ""
    (held,) = mlflow_reading.runs_of(server, run)
    page = f"#/experiments/{held.info.experiment_id}/runs/{held.info.run_id}"
    assert writer.url == f"{server}/{page}/model-metrics?workflowType=machine_learning"


def test_something_that_is_not_a_mlflow_server_blocks(
    run: RunInfo, proxy: FaultProxy
) -> None:
    proxy.status = 404

    with pytest.raises(BlockedError) as raised:
        opened(proxy.url, run)

    assert "MLFLOW_TRACKING_URI" in raised.value.help


def test_a_run_deleted_while_it_is_written_blocks_with_the_command_that_restores_it(
    server: str, store: str, run: RunInfo
) -> None:
    writer = opened(server, run)
    api, (held,) = mlflow_reading.client(server), mlflow_reading.runs_of(server, run)
    api.delete_run(held.info.run_id)

    with pytest.raises(BlockedError) as raised:
        writer.write_rows(samples.placed(samples.rows(2)))
    api.restore_run(held.info.run_id)
    writer.write_rows(samples.placed(samples.rows(2)))

    assert (
        raised.value.help
        == f"MLFLOW_TRACKING_URI={server} mlflow runs restore --run-id {held.info.run_id}"
    )
    assert raised.value.position == 1
    same_scalars(mlflow_reading.contents(store, run), samples.rows(2))


def test_an_evaluation_of_a_deleted_trace_is_refused_alone(
    server: str, run: RunInfo
) -> None:
    writer, rollout = opened(server, run), samples.rollout(0, seed=run.id)
    writer.write_rollouts(samples.placed([rollout]))
    (held,) = mlflow_reading.runs_of(server, run)
    mlflow_reading.client(server).delete_traces(
        held.info.experiment_id, trace_ids=[f"tr-{rollout.id}"]
    )

    with pytest.raises(PermanentError) as raised:
        writer.write_evaluations(samples.placed([samples.evaluation(rollout)], first=9))

    assert raised.value.position == 9


def test_a_token_reaches_every_request(
    proxy: FaultProxy, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    proxy.required = {"Authorization": "Bearer t0ken"}
    rollout = samples.rollout(0, seed=run.id)

    refused = deliver(
        opened(proxy.url, run),
        samples.placed([samples.row(1), rollout, samples.evaluation(rollout)]),
    )

    assert refused == []
    assert set(proxy.authorizations) == {"Bearer t0ken"}


def test_wrong_credentials_block_with_the_variables_to_set(
    proxy: FaultProxy, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "stale")
    proxy.required = {"Authorization": "Bearer fresh"}

    with pytest.raises(BlockedError) as raised:
        opened(proxy.url, run)

    assert "MLFLOW_TRACKING_TOKEN" in raised.value.help


def test_mlflows_header_and_auth_plugins_reach_every_request(
    proxy: FaultProxy, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking.request_auth import registry as auth
    from mlflow.tracking.request_auth.abstract_request_auth_provider import (
        RequestAuthProvider,
    )
    from mlflow.tracking.request_header import registry as headers
    from mlflow.tracking.request_header.abstract_request_header_provider import (
        RequestHeaderProvider,
    )

    class Tenant(RequestHeaderProvider):
        def in_context(self) -> bool:
            return True

        def request_headers(self) -> dict[str, str]:
            return {"X-Tenant": "lab-7"}

    class Signed(RequestAuthProvider):
        def get_name(self) -> str:
            return "signed"

        def get_auth(self):
            def sign(request):
                request.headers["X-Signature"] = "s1gned"
                return request

            return sign

    header_registry, auth_registry = (
        headers._request_header_provider_registry,
        auth._request_auth_provider_registry,
    )
    monkeypatch.setattr(
        header_registry, "_registry", [*header_registry._registry, Tenant()]
    )
    monkeypatch.setattr(
        auth_registry, "_registry", [*auth_registry._registry, Signed()]
    )
    monkeypatch.setenv("MLFLOW_TRACKING_AUTH", "signed")
    proxy.required = {"X-Tenant": "lab-7", "X-Signature": "s1gned"}
    rollout = samples.rollout(0, seed=run.id)

    refused = deliver(
        opened(proxy.url, run),
        samples.placed([samples.row(1), rollout, samples.evaluation(rollout)]),
    )

    assert refused == []
    assert {"POST /api/2.0/mlflow/runs/log-batch", "POST /v1/traces"} <= set(proxy.seen)


def test_a_config_larger_than_a_proxy_lets_through_is_sent_in_parts(
    proxy: FaultProxy, server: str, run: RunInfo
) -> None:
    writer = opened(proxy.url, run)
    proxy.largest = 5_000

    writer.write_config(
        "trainer", {**{f"key{i}": "y" * 1_000 for i in range(9)}, "long": "z" * 5_500}
    )

    (found,) = mlflow_reading.runs_of(server, run)
    assert set(found.data.params) == {f"trainer/key{i}" for i in range(9)}


def test_several_bridges_write_one_run_at_once(
    server: str, store: str, run: RunInfo
) -> None:
    roles = ("trainer", "explorer", "evaluator", "judge")
    writers = {role: opened(server, run) for role in roles}
    rows = {role: samples.rows(40, role=role) for role in roles}

    def write(role: str) -> list[int]:
        records = [*samples.placed(rows[role])]
        return [
            bad for row in records for bad in deliver(writers[role], [row], tries=10)
        ]

    with ThreadPoolExecutor(len(roles)) as pool:
        refused = list(pool.map(write, roles))

    for writer in writers.values():
        writer.end(Status.FINISHED)
    assert refused == [[], [], [], []]
    (held,) = mlflow_reading.runs_of(server, run)
    assert held.data.tags["rl.roles"] == "evaluator,explorer,judge,trainer"
    same_scalars(
        mlflow_reading.contents(store, run),
        [row for role in roles for row in rows[role]],
    )


def test_media_reach_the_servers_artifacts_and_come_again_without_a_copy(
    server: str, store: str, tmp_path: Path
) -> None:
    run = samples.run_info(tmp_path, "media", project="media")
    for _ in range(2):
        settings = exporter.read_settings({"MLFLOW_TRACKING_URI": server}, tmp_path)
        writer = open_writer(exporter, run, settings, MemoryTable())
        deliver(
            writer,
            [
                media("one", image(1), position=1),
                media("words", text("hello"), position=2),
            ],
        )

    (found,) = mlflow_reading.runs_of(store, run)
    api = mlflow_reading.client(server)
    folder = Path(api.download_artifacts(found.info.run_id, "", str(tmp_path)))
    (whole,) = (folder / "images").glob("*.png")
    assert whole.read_bytes() == image(1).data
    assert len(list((folder / "images").iterdir())) == 2
    assert [
        path.read_text() for path in (folder / "media" / "trainer~words").iterdir()
    ] == ["hello"]


def test_media_wait_while_the_server_is_away(proxy: FaultProxy, tmp_path: Path) -> None:
    run = samples.run_info(tmp_path, "away", project="media")
    settings = exporter.read_settings({"MLFLOW_TRACKING_URI": proxy.url}, tmp_path)
    writer = open_writer(exporter, run, settings, MemoryTable())
    proxy.refuse()

    with pytest.raises(RetryableError) as failed:
        writer.write_media([media("one", image(1), position=5)])  # type: ignore[attr-defined]

    assert failed.value.position == 5


def test_media_wait_for_credentials_as_rows_do(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    run = samples.run_info(tmp_path, "login", project="media")
    writer = opened(proxy.url, run)
    writer.write_media([media("one", image(1), position=4)])
    proxy.status = 401

    with pytest.raises(BlockedError) as failed:
        writer.write_media([media("one", image(2), position=5)])

    assert failed.value.position == 5
    assert "MLFLOW_TRACKING_USERNAME" in failed.value.help


def test_media_of_a_deleted_run_wait_for_the_command_that_restores_it(
    server: str, tmp_path: Path
) -> None:
    run = samples.run_info(tmp_path, "deleted", project="media")
    writer = opened(server, run)
    writer.write_rows([samples.row(1)])
    mlflow_reading.client(server).delete_run(writer.tracker_run_id)

    with pytest.raises(BlockedError) as failed:
        writer.write_media([media("one", image(1), position=5)])

    assert failed.value.position == 5
    assert "mlflow runs restore" in failed.value.help


def test_a_medium_larger_than_a_proxy_lets_through_is_refused_alone(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    run = samples.run_info(tmp_path, "large", project="media")
    writer = opened(proxy.url, run)
    proxy.largest = 5_000
    large = media("large", text("y" * 9_000), position=5)

    refused = deliver(writer, [large, media("small", text("y"), position=6)])

    assert refused == [5]
