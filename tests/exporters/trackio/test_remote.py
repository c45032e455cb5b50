"""A Trackio server on loopback: the same rows and traces, nothing lost and nothing doubled whatever it does."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import Exporter, RunInfo, TrackerCounts
from otel_bridge.testing import Contents, MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.contract import ReadBack, WriterContract, same_scalars
from otel_bridge_trackio import exporter
from otel_bridge_trackio.remote import RemoteStore
from otel_bridge_trackio.settings import Remote
from otel_bridge_trackio.writer import REFUSED_CONFIG
from support.media_samples import image, media, png, table, text
from support.trackers import trackio_store
from support.trackers.mlflow_server import FaultProxy
from support.trackers.trackio_server import TOKEN, TrackioServer
from support.trainers.command_runs import call, ended, environment, program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackioServer]:
    server = TrackioServer(tmp_path_factory.mktemp("trackio")).start()
    yield server
    server.kill()


@pytest.fixture
def proxy(server: TrackioServer) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server.url.rstrip("/"))
    yield proxy
    proxy.close()


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(
        tmp_path,
        tmp_path.name,
        project="".join(c for c in tmp_path.name if c.isalnum()),
    )


def opened(url: str, run: RunInfo, memory: MemoryTable | None = None, **env: str):
    variables = {
        "TRACKIO_SERVER_URL": url,
        "TRACKIO_WRITE_TOKEN": TOKEN,
        "OTEL_BRIDGE_TRACKIO_TIMEOUT_S": "2",
        **env,
    }
    return open_writer(
        exporter,
        run,
        exporter.read_settings(variables, run.folder),
        memory or MemoryTable(),
    )


def contents(server: TrackioServer, run: RunInfo) -> Contents:
    """What the server's database holds, through Trackio's own store; without times, which a server does not keep."""
    shown = trackio_store.held_in(server.folder / "store", run)
    shown.scalars[:] = [replace(scalar, time_unix_ms=None) for scalar in shown.scalars]
    return shown


class TestTrackioServer(WriterContract):
    target = "otel_bridge_trackio:exporter"
    keeps_status = False

    @pytest.fixture
    def exporter(self) -> Exporter:
        return exporter

    @pytest.fixture
    def environment(self, server: TrackioServer) -> Mapping[str, str]:
        return {"TRACKIO_SERVER_URL": server.url, "TRACKIO_WRITE_TOKEN": TOKEN}

    @pytest.fixture
    def read_back(self, server: TrackioServer) -> ReadBack:
        return lambda run: contents(server, run)


def test_rows_reach_a_server_that_is_too_slow_for_a_full_request(
    server: TrackioServer, proxy: FaultProxy, run: RunInfo
) -> None:
    memory, env = MemoryTable(), {"OTEL_BRIDGE_TRACKIO_TIMEOUT_S": "1"}
    rows = left = samples.placed(samples.rows(200))
    opened(proxy.url, run, memory).write_rows(rows[:1])
    proxy.hang, proxy.hang_above, proxy.path = True, 20_000, "bulk_log"

    for _ in range(6):
        try:
            opened(proxy.url, run, memory, **env).write_rows(
                left
            )  # anew, as after a few failures in a row
            break
        except RetryableError as exc:
            left = [row for row in left if row.position >= (exc.position or 0)]
    else:
        pytest.fail("the same request was sent again and again")

    same_scalars(contents(server, run), [replace(row, time_unix_ns=0) for row in rows])


def test_a_server_that_is_killed_and_comes_back_gets_every_row_once(
    tmp_path: Path, run: RunInfo
) -> None:
    server = TrackioServer(tmp_path / "server").start()
    try:
        writer, rows = opened(server.url, run), samples.placed(samples.rows(900))
        writer.write_rows(rows[:600])
        server.kill()
        with pytest.raises(RetryableError) as raised:
            writer.write_rows(rows[600:])
        server.start()
        writer.write_rows(rows[500:])

        assert raised.value.position == 601
        same_scalars(contents(server, run), rows)
    finally:
        server.kill()


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_failing_server_is_tried_again_from_the_first_row_that_is_not_there(
    proxy: FaultProxy, server: TrackioServer, run: RunInfo, status: int
) -> None:
    writer, rows = opened(proxy.url, run), samples.placed(samples.rows(700))
    proxy.status, proxy.path, proxy.after, proxy.headers = (
        status,
        "bulk_log",
        1,
        {"Retry-After": "7"},
    )

    with pytest.raises(RetryableError) as raised:
        writer.write_rows(rows)
    proxy.heal()
    writer.write_rows(
        [row for row in rows if row.position >= (raised.value.position or 0)]
    )

    assert (raised.value.position, raised.value.retry_after_s) == (501, 7.0)
    same_scalars(contents(server, run), rows)


def test_an_answer_that_is_lost_or_late_doubles_nothing(
    proxy: FaultProxy, server: TrackioServer, run: RunInfo
) -> None:
    writer = opened(proxy.url, run)
    rollouts = [samples.rollout(n, seed=run.id) for n in range(3)]
    records = samples.placed(
        [*samples.rows(20), *rollouts, samples.evaluation(rollouts[0])]
    )

    for fault in ("lose_answer", "hang"):
        setattr(proxy, fault, True)
        proxy.path = "bulk_log"
        with pytest.raises(RetryableError):
            deliver(writer, records, tries=1)
        proxy.heal()
    deliver(writer, records)
    deliver(writer, records)

    shown = contents(server, run)
    same_scalars(shown, records)
    assert sorted(held.id for held in shown.rollouts) == sorted(
        rollout.id for rollout in rollouts
    )
    assert shown.evaluations == [(rollouts[0].id, "judge", 0.5)]


def test_rows_that_the_server_only_queued_are_not_treated_as_stored(
    server: TrackioServer, run: RunInfo, tmp_path: Path
) -> None:
    writer, rows = opened(server.url, run), samples.placed(samples.rows(4))
    writer.write_rows(rows[:1])
    database = server.folder / "store" / f"{run.project}.db"
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("ALTER TABLE metrics RENAME TO away")
    holder.execute(
        "CREATE VIEW metrics AS SELECT * FROM away"
    )  # refuses rows, and the server answers 200

    with pytest.raises(RetryableError, match="before it had stored") as raised:
        writer.write_rows(rows[1:])
    holder.execute("DROP VIEW metrics")
    holder.execute("ALTER TABLE away RENAME TO metrics")
    holder.close()
    writer.write_rows(rows[1:])

    assert raised.value.position == 2
    same_scalars(contents(server, run), rows)


@pytest.mark.parametrize("token", ["wrong", ""])
def test_a_wrong_or_missing_token_blocks_with_the_variable_to_set(
    server: TrackioServer, run: RunInfo, token: str
) -> None:
    writer = opened(server.url, run, TRACKIO_WRITE_TOKEN=token)

    with pytest.raises(BlockedError) as raised:
        writer.write_rows(samples.placed(samples.rows(2)))

    assert raised.value.position == 1
    assert (
        raised.value.help
        == "set TRACKIO_WRITE_TOKEN where the bridge runs, to a token that may write"
    )


def test_something_that_is_not_a_trackio_or_a_newer_one_blocks(
    proxy: FaultProxy, run: RunInfo
) -> None:
    proxy.status = 404

    with pytest.raises(BlockedError, match="404") as raised:
        opened(proxy.url, run)

    assert "TRACKIO_SERVER_URL" in raised.value.help


def test_a_server_that_is_down_is_tried_again_and_named_without_its_token(
    run: RunInfo,
) -> None:
    with pytest.raises(RetryableError, match=r"http://127.0.0.1:9/") as raised:
        opened("http://ada:secret@127.0.0.1:9/?write_token=secret", run)

    assert "secret" not in str(raised.value)


def test_one_entry_that_can_never_be_stored_costs_no_other(
    server: TrackioServer, run: RunInfo
) -> None:
    writer, rows = opened(server.url, run), samples.placed(samples.rows(3))
    odd = [rows[0], replace(rows[1], step=2**63), rows[2]]

    refused = deliver(writer, odd)

    assert refused == [2]
    same_scalars(contents(server, run), [rows[0], rows[2]])


def test_a_config_that_a_proxy_refuses_is_left_out_and_costs_no_row(
    server: TrackioServer, proxy: FaultProxy, run: RunInfo
) -> None:
    writer, rows = opened(proxy.url, run), samples.placed(samples.rows(3))
    proxy.largest = 50_000
    writer.write_config("trainer", {"prompt": "y" * 60_000})

    refused = deliver(writer, rows)
    proxy.heal()
    writer.write_config("trainer", {"prompt": "short"})

    assert refused == []
    assert writer.left_out == {REFUSED_CONFIG: 1}
    same_scalars(contents(server, run), [replace(row, time_unix_ns=0) for row in rows])
    assert contents(server, run).config["trainer/prompt"] == "short"


def test_what_is_held_is_counted_through_the_server(
    server: TrackioServer, run: RunInfo
) -> None:
    records = samples.placed([*samples.rows(3), samples.rollout(0, seed=run.id)])
    settings = exporter.read_settings(
        {"TRACKIO_SERVER_URL": server.url, "TRACKIO_WRITE_TOKEN": TOKEN}, run.folder
    )
    before = exporter.read_back(run, settings) if exporter.read_back else None

    deliver(opened(server.url, run), records)

    numbers = sum(len(row.values) for row in samples.rows(3))
    assert before == TrackerCounts(0, 0)
    assert exporter.read_back is not None
    assert exporter.read_back(run, settings) == TrackerCounts(numbers, 1)


def test_what_another_bridge_reported_the_server_of_its_roles_stays_beside_ours(
    server: TrackioServer, run: RunInfo
) -> None:
    for number, role in enumerate(("explorer", "trainer")):
        writer = opened(server.url, run)
        writer.write_config(role, {"seed": number})
        writer.write_rows(samples.placed([samples.row(number + 1, role=role)]))

    assert contents(server, run).config == {"explorer/seed": "0", "trainer/seed": "1"}


def test_the_time_of_a_row_is_that_of_its_arrival(
    server: TrackioServer, run: RunInfo
) -> None:
    opened(server.url, run).write_rows(samples.placed(samples.rows(1)))

    (scalar, *_) = trackio_store.held_in(server.folder / "store", run).scalars
    assert scalar.time_unix_ms is not None
    assert abs(datetime.now().timestamp() - scalar.time_unix_ms / 1000) < 600


def test_a_space_gets_the_token_of_the_hub_with_each_call(
    tmp_path: Path, run: RunInfo
) -> None:
    """As far as loopback goes: a server in the mode of a Space, whose own token ours is."""
    server = TrackioServer(
        tmp_path / "space", SYSTEM="spaces", HF_TOKEN="hf_mine"
    ).start()
    try:
        place = Remote(server.url, "ada/trackio", hf_token="hf_mine")
        rows = samples.placed(samples.rows(3))
        settings = replace(
            exporter.read_settings({"TRACKIO_SPACE_ID": "ada/trackio"}, tmp_path),
            remote=place,
        )

        open_writer(exporter, run, settings, MemoryTable()).write_rows(rows)

        with pytest.raises(BlockedError) as raised:
            RemoteStore(
                replace(place, hf_token=None), run.project, run.id, run.name
            ).call("bulk_log", logs=[], hf_token=None)
        assert "HF_TOKEN" in raised.value.help
    finally:
        server.kill()  # a Space keeps its database to itself
    same_scalars(contents(server, run), rows)


def test_a_number_beyond_64_bits_is_refused_alone(
    server: TrackioServer, run: RunInfo
) -> None:
    writer = opened(server.url, run)

    with pytest.raises(PermanentError) as raised:
        writer.write_rows(
            samples.placed(
                [
                    samples.row(1),
                    replace(samples.row(2), values={"trainer/huge": 2**70}),
                ]
            )
        )

    assert raised.value.position == 2
    assert (
        json.dumps([scalar.step for scalar in contents(server, run).scalars][:1])
        == "[1]"
    )


def test_a_whole_job_goes_to_a_server_and_says_what_it_does_not_keep(
    server: TrackioServer, tmp_path: Path
) -> None:
    code = """
        import otel_bridge
        run = otel_bridge.init("remote", "ppo", role="trainer", exporters="trackio", config={"lr": 1})
        for step in range(50): run.log({"loss": step / 7}, step=step)
        run.log_rollouts([{"messages": [{"role": "user", "content": "2+2?"}], "reward": 1.0}], step=49)
        run.finish()
    """
    env = environment(tmp_path, TRACKIO_SERVER_URL=f"{server.url}?write_token={TOKEN}")

    done = call(
        [sys.executable, program(tmp_path, "job.py", code)], cwd=tmp_path, env=env
    )

    ended(tmp_path / ".otel-bridge")
    shown = contents(server, samples.run_info(tmp_path, "ppo", project="remote"))
    assert done.returncode == 0, done.stderr
    assert "a server keeps no event times" in done.stderr
    assert TOKEN not in done.stderr
    assert [
        scalar.value for scalar in shown.scalars if scalar.key == "trainer/loss"
    ] == [n / 7 for n in range(50)]
    assert len(shown.rollouts) == 1
    assert not [
        file
        for file in tmp_path.rglob("*")
        if file.is_file() and TOKEN.encode() in file.read_bytes()
    ]


def test_media_are_files_of_the_server_and_rows_that_name_them_once(
    server: TrackioServer, proxy: FaultProxy, run: RunInfo
) -> None:
    shown = media(
        "t", table(["q", "p"], [["x", {"media": 0}]]), cells=[image(4)], position=2
    )
    records = [
        media("one", image(1, "first"), position=1),
        shown,
        media("page", text("<p>", "html"), position=3),
    ]
    writer = opened(proxy.url, run)

    for path in ("upload", "bulk_upload_media", "bulk_log"):
        proxy.lose_answer, proxy.path = True, path
        with pytest.raises((RetryableError, PermanentError)) as raised:
            writer.write_media(records)  # type: ignore[attr-defined]
        assert raised.value.position == 1
        if "upgrade Trackio" in str(raised.value):
            pytest.skip("a server of this Trackio names files itself")
        proxy.heal()
    deliver(writer, records)
    deliver(opened(server.url, run, MemoryTable()), records)

    rows = trackio_store.rows_in(server.folder / "store", run)
    one, cell, page = (
        rows[0]["trainer/one"],
        rows[1]["trainer/t"]["_value"][0]["p"],
        rows[2]["trainer/page"],
    )
    assert len(rows) == 3
    assert (one["_type"], one["caption"]) == ("trackio.image", "first")
    folder = server.folder / "store" / "media"
    found = [(folder / each["file_path"]).read_bytes() for each in (one, cell, page)]
    assert found == [png(1), png(4), b"<p>"]
    assert (
        len([path for path in (folder / run.project).rglob("*") if path.is_file()]) == 3
    )


def test_a_server_that_names_files_itself_costs_the_media_alone(
    server: TrackioServer, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(server.url, run)
    monkeypatch.setattr(
        RemoteStore,
        "_upload",
        lambda self, name, data: _renamed(upload(self, name, data)),
    )

    dead = deliver(
        writer, [media("one", image(1), position=1), samples.row(1, position=2)]
    )

    assert dead == [1]
    assert len(contents(server, run).scalars) > 0


upload = RemoteStore._upload


def _renamed(sent: Mapping[str, object]) -> dict[str, object]:
    return {**sent, "orig_name": "another.png"}
