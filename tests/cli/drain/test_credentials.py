"""``otel-bridge drain`` sends credentials only to servers that the person who runs it has named."""

from __future__ import annotations

import pwd
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import pytest

from otel_bridge import destination_seal
from support.trainers.command_runs import call, environment, otel_bridge, program

TRAIN = """
    import sys
    import otel_bridge
    with otel_bridge.init("maths", "ppo", exporters=sys.argv[1]) as run:
        run.log({"loss": 0.5}, step=1)
"""
PASSWORD = "drainers-own-key-0123456789-0123456789-01"
TRACKERS = {
    "mlflow": ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"),
    "wandb": ("WANDB_BASE_URL", "WANDB_API_KEY"),
    "trackio": ("TRACKIO_SERVER_URL", "TRACKIO_WRITE_TOKEN"),
    "otlp": ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BRIDGE_TOKEN"),
}


class NamedServer(ThreadingHTTPServer):
    """A server of somebody: it answers everything with 403 and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: NamedServer

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}\n{self.headers}")
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[NamedServer]:
    server = NamedServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def made_by(user: str, tmp_path: Path, tracker: str, url: str) -> None:
    """Let *user* make a run folder that names the server at *url*."""
    made_with(
        user,
        tmp_path,
        tracker,
        {TRACKERS[tracker][0]: url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
    )


def made_with(
    user: str, tmp_path: Path, tracker: str, variables: dict[str, str]
) -> None:
    """Let *user* make a run folder whose destination is that of *variables*."""
    train = program(tmp_path, "train.py", TRAIN)
    env = environment(
        tmp_path,
        OTEL_BRIDGE_OFFLINE="1",
        XDG_STATE_HOME=str(tmp_path / user),
        **variables,
    )
    done = call(["python", train, tracker], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_folder_of_somebody_else_does_not_lead_credentials_to_its_server(
    tmp_path: Path, server: NamedServer, tracker: str
) -> None:
    made_by("somebody", tmp_path, tracker, server.url)
    variable, credential = TRACKERS[tracker]

    env = environment(
        tmp_path, XDG_STATE_HOME=str(tmp_path / "me"), **{credential: PASSWORD}
    )
    done = otel_bridge("drain", cwd=tmp_path, env=env)

    assert (done.returncode, server.requests) == (1, [])
    assert f"names the server {server.url}" in done.stdout
    assert f"set {variable}" in done.stdout
    assert "--trust-folders" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tracker", "variables"),
    [
        ("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:///theirs/mlflow.db"}),
        ("trackio", {"TRACKIO_DIR": "theirs"}),
        ("wandb", {"WANDB_MODE": "offline", "WANDB_DIR": "theirs"}),
    ],
)
def test_a_folder_of_somebody_else_does_not_choose_the_files_that_are_written(
    tmp_path: Path, tracker: str, variables: dict[str, str]
) -> None:
    (tmp_path / "theirs").mkdir()
    made_with("somebody", tmp_path, tracker, variables)

    done = otel_bridge(
        "drain",
        cwd=tmp_path,
        env=environment(tmp_path, XDG_STATE_HOME=str(tmp_path / "me")),
    )

    assert (done.returncode, list((tmp_path / "theirs").iterdir())) == (1, [])
    assert f"set {list(variables)[-1]}" in done.stdout
    assert "where you would write" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "tracker", ["otlp", pytest.param("mlflow", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    ("user", "options", "named"),
    [
        ("me", (), False),
        ("somebody", ("--trust-folders",), False),
        ("somebody", (), True),
    ],
)
def test_a_folder_is_followed_to_a_server_that_its_user_or_the_caller_named(
    tmp_path: Path,
    server: NamedServer,
    tracker: str,
    user: str,
    options: tuple[str, ...],
    named: bool,
) -> None:
    made_by(user, tmp_path, tracker, server.url)

    variable, credential = TRACKERS[tracker]
    variables = {credential: PASSWORD, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    if named:
        variables[variable] = server.url
    env = environment(tmp_path, XDG_STATE_HOME=str(tmp_path / "me"), **variables)
    otel_bridge("drain", *options, cwd=tmp_path, env=env)

    assert any(PASSWORD in request for request in server.requests)


@pytest.mark.slow
def test_what_run_left_goes_to_the_endpoint_of_run_and_not_to_its_receiver(
    tmp_path: Path, server: NamedServer
) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    env = environment(
        tmp_path,
        XDG_STATE_HOME=str(tmp_path / "me"),
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    of_run = {**env, "OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
    command = ("run", "--exporters", "otlp", "--", "python", train, "otlp")

    otel_bridge(*command, cwd=tmp_path, env=of_run)
    by_run = len(server.requests)
    otel_bridge("drain", cwd=tmp_path, env=env)

    assert len(server.requests) > by_run > 0


def test_a_seal_holds_for_its_run_its_exporter_and_its_variables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    destination_seal._user_key.cache_clear()
    variables = {"MLFLOW_TRACKING_URI": "http://tracker", "WANDB_ENTITY": "team"}

    sealed = destination_seal.sealed("r1", "mlflow", variables)
    other = {**sealed, "MLFLOW_TRACKING_URI": "http://elsewhere"}
    accepted = [
        destination_seal.is_sealed_here("r1", "mlflow", sealed),
        destination_seal.is_sealed_here("r2", "mlflow", sealed),
        destination_seal.is_sealed_here("r1", "wandb", sealed),
        destination_seal.is_sealed_here("r1", "mlflow", other),
        destination_seal.is_sealed_here("r1", "mlflow", variables),
    ]
    destination_seal._user_key.cache_clear()

    assert accepted == [True, False, False, False, False]
    assert (tmp_path / "otel-bridge.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["readable by others", "a link", "a folder", "short"])
def test_a_key_that_others_may_know_seals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    key = tmp_path / "otel-bridge.key"
    if how == "a link":
        (tmp_path / "elsewhere").write_bytes(bytes(32))
        key.symlink_to(tmp_path / "elsewhere")
    elif how == "a folder":
        key.mkdir()
    else:
        key.write_bytes(bytes(4 if how == "short" else 32))
        key.chmod(0o644 if how == "readable by others" else 0o600)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    destination_seal._user_key.cache_clear()

    sealed = destination_seal.sealed(
        "r1", "mlflow", {"MLFLOW_TRACKING_URI": "http://tracker"}
    )
    destination_seal._user_key.cache_clear()

    assert sealed == {"MLFLOW_TRACKING_URI": "http://tracker"}


def test_a_user_without_a_home_seals_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> NoReturn:
        raise KeyError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    destination_seal._user_key.cache_clear()

    sealed = destination_seal.sealed(
        "r1", "mlflow", {"MLFLOW_TRACKING_URI": "http://tracker"}
    )
    destination_seal._user_key.cache_clear()

    assert sealed == {"MLFLOW_TRACKING_URI": "http://tracker"}


@pytest.mark.parametrize(
    ("variable", "value", "is_server"),
    [
        ("MLFLOW_TRACKING_URI", "sqlite:////data/mlflow.db", False),
        ("MLFLOW_TRACKING_URI", "file:///data/mlruns", False),
        ("MLFLOW_TRACKING_URI", "postgresql+psycopg2://db/mlflow", True),
        ("MLFLOW_TRACKING_URI", "databricks", True),
        ("MLFLOW_TRACKING_URI", "https://mlflow.example", True),
        ("TRACKIO_DIR", "/data/trackio", False),
        ("TRACKIO_SPACE_ID", "team/space", True),
        ("WANDB_MODE", "online", False),
        ("WANDB_BASE_URL", "http://[", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector.example", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "10.0.0.1:4317", True),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "traces.example/v1/traces", True),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", False),
    ],
)
def test_a_server_is_distinguished_from_a_file(
    variable: str, value: str, is_server: bool
) -> None:
    assert destination_seal.names_server(variable, value) is is_server
