from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.errors import ConfigError
from otel_bridge.testing import samples
from otel_bridge.text.addresses import without_credentials
from otel_bridge_mlflow.settings import MlflowSettings

CWD = Path("/work dir/job")


def read(uri: str | None = None, **env: str) -> MlflowSettings:
    return MlflowSettings.from_environment(
        env if uri is None else {"MLFLOW_TRACKING_URI": uri, **env}, CWD
    )


@pytest.mark.parametrize(
    ("uri", "destination"),
    [
        (None, "sqlite:////work dir/job/mlflow.db"),
        ("  ", "sqlite:////work dir/job/mlflow.db"),
        ("sqlite:///runs.db", "sqlite:////work dir/job/runs.db"),
        ("sqlite:///../runs.db", "sqlite:////work dir/runs.db"),
        ("sqlite:////data/runs.db", "sqlite:////data/runs.db"),
        ("http://localhost:5000/", "http://localhost:5000"),
        ("https://host/mlflow", "https://host/mlflow"),
        ("https://ada:secret@host:8443/mlflow", "https://host:8443/mlflow"),
        ("https://host/mlflow?token=abc&team=rl", "https://host/mlflow?team=rl"),
        ("postgresql://ada:secret@db:5432/mlflow", "postgresql://db:5432/mlflow"),
        (
            "postgresql+psycopg2://ada:p@db/mlflow?sslmode=require&password=x",
            "postgresql+psycopg2://db/mlflow?sslmode=require",
        ),
    ],
)
def test_the_destination_is_absolute_and_holds_no_credentials(
    uri: str | None, destination: str
) -> None:
    settings = read(uri)

    assert settings.destination == {"MLFLOW_TRACKING_URI": destination}
    assert read(destination).destination == settings.destination


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("./mlruns", "file store"),
        ("/data/mlruns", "file store"),
        ("file:///data/mlruns", "file store"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("databricks", "workspaces of Databricks; use sqlite:///mlflow.db or"),
        ("databricks-uc", "workspaces of Databricks"),
        ("databricks://profile", "workspaces of Databricks"),
        ("ftp://ada:secret@host", "expected sqlite"),
        ("http://ada:secret@[::1", "expected sqlite"),
        ("https://ada:secret@host:https", "expected sqlite"),
        ("sqlite:////data/a%20b/mlflow.db", "'%20' has another meaning"),
    ],
)
def test_a_store_that_cannot_hold_a_run_is_refused_with_the_reason(
    uri: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        read(uri)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["what?", "50%25"])
def test_a_working_folder_that_a_database_s_address_cannot_name_is_refused_unless_the_store_is_elsewhere(
    tmp_path: Path, name: str
) -> None:
    cwd = tmp_path / name
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI=sqlite:////FOLDER/"):
        MlflowSettings.from_environment({}, cwd)

    elsewhere = MlflowSettings.from_environment(
        {"MLFLOW_TRACKING_URI": "sqlite:////data/m.db?timeout=5"}, cwd
    )
    assert elsewhere.uri == "sqlite:////data/m.db?timeout=5"


def test_malformed_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="OTEL_BRIDGE_MLFLOW_WAL"):
        read(OTEL_BRIDGE_MLFLOW_WAL="maybe")

    with pytest.raises(ConfigError, match="OTEL_BRIDGE_MLFLOW_TIMEOUT_S"):
        read(OTEL_BRIDGE_MLFLOW_TIMEOUT_S="soon")


def test_the_view_is_the_command_or_the_address(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path)

    assert (
        read().view(run)
        == "mlflow ui --backend-store-uri 'sqlite:////work dir/job/mlflow.db'"
    )
    assert read("http://ada:secret@localhost:5000").view(run) == "http://localhost:5000"


def test_the_password_stays_in_the_address_that_is_used() -> None:
    assert (
        read("http://ada:secret@localhost:5000").uri
        == "http://ada:secret@localhost:5000"
    )


def test_an_address_without_anything_to_hide_is_left_as_it_is() -> None:
    assert (
        without_credentials("sqlite:////a/b.db?timeout=3")
        == "sqlite:////a/b.db?timeout=3"
    )
