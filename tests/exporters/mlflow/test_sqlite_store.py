"""The SQLite file of a store is complete or empty, the one that is killed while it is created."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.contract import same_scalars
from otel_bridge_mlflow import connection, sqlite_store
from otel_bridge_mlflow.sqlite_store import revisions_of, write_ahead
from otel_bridge_mlflow.versions import Package
from support.trackers import mlflow_reading
from support.waiting import HANG_S

exporter = otel_bridge_mlflow.exporter
ROWS = samples.placed(samples.rows(3, keys=2))


def address(folder: Path) -> str:
    return f"sqlite:///{folder}/mlflow.db"


def written(folder: Path, **env: str) -> None:
    """Open the store of *folder* and write `ROWS`."""
    settings = exporter.read_settings(
        {"MLFLOW_TRACKING_URI": address(folder), **env}, folder
    )
    deliver(
        open_writer(exporter, samples.run_info(folder), settings, MemoryTable()),
        ROWS,
        tries=20,
    )


def schema(path: Path) -> list[tuple[str, str, list[str]]]:
    """What the tables are, whatever the order in which Alembic wrote their constraints."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT type, name, coalesce(sql, '') FROM sqlite_master"
        ).fetchall()
    return sorted(
        (kind, name, sorted(sql.replace(",", " ").split())) for kind, name, sql in rows
    )


def kill_at_statement(number: int) -> None:
    """Kill this process at the *number*-th statement that MLflow executes."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    seen = iter(range(number))
    event.listen(
        Engine,
        "before_cursor_execute",
        lambda *_: next(seen, None) is None and os.kill(os.getpid(), 9),
    )


def kill_at_copy(word: str) -> None:
    """Kill this process when it executes a statement of the copy that begins with *word*."""
    connected = sqlite_store._connected

    def watched(path: Path, *, create: bool = False) -> sqlite3.Connection:
        database = connected(path, create=create)
        database.set_trace_callback(
            lambda text: text.startswith(word) and os.kill(os.getpid(), signal.SIGKILL)
        )
        return database

    sqlite_store._connected = watched


def stock(folder: Path) -> None:
    """What a training script does."""
    mlflow_reading.client(address(folder)).create_experiment("of the script")


def in_a_child(
    work: Callable[[Path], None], prepare: Callable[[], None], folder: Path
) -> int:
    """Do *work* in a forked child; return its wait status."""
    pid = os.fork()
    if not pid:
        try:
            prepare()
            work(folder)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def forge(
    work: Callable[[Path], None],
    kills: dict[str, tuple[Callable, object]],
    folder: Path,
    results,
) -> None:
    """Runs in a process of its own that imports MLflow once: be killed at each of *kills*."""
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.tracing.client  # noqa: F401

    for name, (kill, moment) in kills.items():
        place = folder / name
        place.mkdir()
        results.put(
            (
                name,
                in_a_child(work, lambda kill=kill, moment=moment: kill(moment), place),
            )
        )


def killed(
    work: Callable[[Path], None],
    kills: dict[str, tuple[Callable, object]],
    folder: Path,
) -> dict[str, int]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=forge, args=(work, kills, folder, results))
    child.start()
    said = dict(results.get(timeout=HANG_S) for _ in kills)
    child.join(30)
    return said


@pytest.mark.long
def test_a_bridge_killed_at_any_moment_while_it_creates_a_store_is_followed_by_one_that_writes_it(
    tmp_path: Path,
) -> None:
    kills: dict[str, tuple[Callable, object]] = {
        "early": (kill_at_statement, 3),
        "tables": (kill_at_statement, 60),
        "migrations": (kill_at_statement, 300),
        "copy": (kill_at_copy, "CREATE INDEX"),
        "commit": (kill_at_copy, "COMMIT"),
    }

    said = killed(written, kills, tmp_path)
    for name in kills:
        written(tmp_path / name)

    assert said == dict.fromkeys(kills, signal.SIGKILL)
    for name in kills:
        assert [path.name for path in (tmp_path / name).iterdir()] == ["mlflow.db"]
        same_scalars(
            mlflow_reading.contents(
                address(tmp_path / name), samples.run_info(tmp_path / name)
            ),
            ROWS,
        )


def script(folder: Path, start, results) -> None:
    """Runs in a child: a training script that creates the store by MLflow alone."""
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    try:
        start.wait(60)
        stock(folder)
        results.put("script")
    except BaseException as exc:  # noqa: BLE001  # the parent shows it
        results.put(repr(exc))


def bridge(folder: Path, start, results) -> None:
    """Runs in a child: a bridge that opens the same store."""
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.tracing.client  # noqa: F401

    try:
        start.wait(60)
        written_soon(folder)
        results.put("bridge")
    except BaseException as exc:  # noqa: BLE001  # the parent shows it
        results.put(repr(exc))


def written_soon(folder: Path) -> None:
    """Write `ROWS` as delivery does, which tries again."""
    pause = multiprocessing.Event()
    for _ in range(600):
        try:
            return written(folder)
        except RetryableError:
            pause.wait(0.05)
    raise TimeoutError


@pytest.mark.long
def test_a_script_and_a_bridge_that_create_one_store_at_once_both_have_it(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()

    children = [
        context.Process(target=work, args=(tmp_path, start, results))
        for work in (script, bridge)
    ]
    for child in children:
        child.start()
    said = sorted(results.get(timeout=HANG_S) for _ in children)
    for child in children:
        child.join(30)

    assert said == ["bridge", "script"]
    same_scalars(
        mlflow_reading.contents(address(tmp_path), samples.run_info(tmp_path)), ROWS
    )
    assert (
        mlflow_reading.client(address(tmp_path)).get_experiment_by_name("of the script")
        is not None
    )


def test_a_store_that_a_script_created_meanwhile_is_not_reported_as_created_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, sqlite_store.__name__)
    make_store = connection._make_store

    def behind_a_script(package: Package, uri: str) -> None:
        make_store(package, address(tmp_path))
        make_store(package, uri)

    monkeypatch.setattr(connection, "_make_store", behind_a_script)
    written(tmp_path)

    assert "created the MLflow store" not in caplog.text


def test_a_new_store_has_the_schema_that_mlflow_makes_and_its_default_artifacts_beside_it(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    stocked = mlflow_reading.database(tmp_path).removeprefix("sqlite:///")

    written(made)

    assert schema(made / "mlflow.db") == schema(Path(stocked))
    default = mlflow_reading.client(address(made)).get_experiment("0")
    assert default.artifact_location == str(made / "mlruns" / "0")
    assert [path.name for path in made.iterdir()] == ["mlflow.db"]


def test_side_files_of_a_database_that_was_deleted_do_not_reach_the_new_one(
    tmp_path: Path,
) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE notes (text)")
        database.execute("INSERT INTO notes VALUES ('old')")
        database.commit()
        (tmp_path / "mlflow.db-wal").write_bytes((tmp_path / "old.db-wal").read_bytes())
        (tmp_path / "mlflow.db-journal").write_bytes(
            b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504)
        )

    written(tmp_path)

    same_scalars(
        mlflow_reading.contents(address(tmp_path), samples.run_info(tmp_path)), ROWS
    )
    assert not any(row[1] == "notes" for row in schema(tmp_path / "mlflow.db"))


def test_tables_of_another_program_in_the_same_file_stay(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE notes (text)")
        database.execute("INSERT INTO notes VALUES ('mine')")
        database.commit()

    written(tmp_path)

    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("SELECT * FROM notes").fetchall() == [("mine",)]
    same_scalars(
        mlflow_reading.contents(address(tmp_path), samples.run_info(tmp_path)), ROWS
    )


def changed(folder: Path, *statements: str) -> bytes:
    """Make a store, change it by *statements*, and return the file."""
    mlflow_reading.database(folder)
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return (folder / "mlflow.db").read_bytes()


def older() -> str:
    """A schema revision that the installed MLflow has left behind."""
    import mlflow

    found = revisions_of(
        Path(mlflow.__file__).parent / "store/db_migrations/versions",
        mlflow.__version__,
    )
    return min(found.names - {found.newest})


@pytest.mark.parametrize("missing", ["", "DROP TABLE trace_tags"])
def test_a_store_of_an_older_mlflow_is_left_as_it_is_and_blocks_with_the_command(
    tmp_path: Path, missing: str
) -> None:
    before = changed(
        tmp_path,
        f"UPDATE alembic_version SET version_num = '{older()}'",
        *filter(None, [missing]),
    )

    with pytest.raises(BlockedError, match="out-of-date database schema") as raised:
        written(tmp_path)

    assert (
        raised.value.help
        == f"back up the file, then: mlflow db upgrade {address(tmp_path)}"
    )
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_a_store_whose_upgrade_was_interrupted_is_left_as_it_is_and_blocks_with_what_to_do(
    tmp_path: Path,
) -> None:
    before = changed(
        tmp_path,
        f"UPDATE alembic_version SET version_num = '{older()}'",
        "CREATE TABLE _alembic_tmp_runs (a)",
    )

    with pytest.raises(BlockedError, match="interrupted") as raised:
        written(tmp_path)

    assert raised.value.help == (
        "restore a backup made before the upgrade; without one, copy the file, then: "
        f"sqlite3 {tmp_path}/mlflow.db 'DROP TABLE _alembic_tmp_runs' && mlflow db upgrade {address(tmp_path)}"
    )
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_a_store_of_a_newer_mlflow_is_left_as_it_is_and_blocks(tmp_path: Path) -> None:
    before = changed(
        tmp_path, "UPDATE alembic_version SET version_num = 'fffffffffff0'"
    )

    with pytest.raises(BlockedError, match="schema fffffffffff0") as raised:
        written(tmp_path)

    assert raised.value.help.startswith("install the newer mlflow")
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_an_unfinished_store_is_left_as_it_is_and_the_error_says_how_to_go_on(
    tmp_path: Path,
) -> None:
    before = changed(
        tmp_path,
        "DELETE FROM experiments",
        "DELETE FROM alembic_version",
        "INSERT INTO runs (run_uuid, lifecycle_stage) VALUES ('r', 'active')",
    )

    with pytest.raises(RetryableError, match="left unfinished") as raised:
        written(tmp_path)

    assert str(raised.value).endswith(
        f"move it away, mv {tmp_path}/mlflow.db {tmp_path}/mlflow.db.unfinished"
    )
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_write_ahead_mode_is_ignored_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow_reading.database(tmp_path)
    monkeypatch.setattr(sqlite_store, "network_file_system", lambda path: "nfs4")

    with caplog.at_level(logging.WARNING):
        write_ahead(tmp_path / "mlflow.db")

    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert "needs a local disk" in caplog.text


def test_write_ahead_mode_waits_for_a_lock_no_longer_than_the_other_calls_before_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_reading.database(tmp_path)
    waits: list[float] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, timeout: float, **options: Any) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(*arguments, timeout=timeout, **options)

    monkeypatch.setattr(sqlite3, "connect", noted)
    write_ahead(tmp_path / "mlflow.db")

    assert waits == [5.0]


def test_revisions_that_cannot_be_read_leave_the_schema_to_mlflow(
    tmp_path: Path,
) -> None:
    assert revisions_of(tmp_path / "none", "9.9").newest is None


def test_the_newest_revision_is_the_one_that_alembic_finds() -> None:
    import mlflow
    from alembic.script import ScriptDirectory

    package = Path(mlflow.__file__).parent
    found = revisions_of(package / "store/db_migrations/versions", mlflow.__version__)
    scripts = ScriptDirectory(str(package / "store/db_migrations"))

    assert [found.newest] == list(scripts.get_heads())
    assert found.names == {script.revision for script in scripts.walk_revisions()}
