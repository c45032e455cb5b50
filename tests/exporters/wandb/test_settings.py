"""Where W&B is, by its own variables; nothing of it is imported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import caution_of, shown_by
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb.settings import WandbSettings, entity_of, project_of, run_id_of

CWD = Path("/home/ada/job")


def test_offline_its_folder_is_the_destination_and_the_view_and_wandb_sync_uploads_it() -> (
    None
):
    settings = WandbSettings.from_environment(
        {"WANDB_MODE": "offline", "WANDB_DIR": "out", "WANDB_API_KEY": "k"}, CWD
    )

    assert dict(settings.destination) == {
        "WANDB_MODE": "offline",
        "WANDB_DIR": "/home/ada/job/out",
    }
    run = run_info(Path("/runs"))
    assert settings.view(run) == "/home/ada/job/out/wandb"
    assert (
        shown_by(settings, run)[1]
        == f"wandb sync /home/ada/job/out/wandb/offline-run-*-{run.id}*"
    )


def test_an_offline_run_that_cannot_be_shared_is_said_at_the_start() -> None:
    offline = {"WANDB_MODE": "offline"}
    shared = WandbSettings.from_environment(
        {**offline, "OTEL_BRIDGE_WANDB_SHARED": "1", "OTEL_BRIDGE_ROLES": "trainer"},
        CWD,
    )

    assert caution_of(WandbSettings.from_environment(offline, CWD)) == ""
    assert caution_of(shared) == (
        "wandb: an offline run cannot be shared, each machine writes one of its own, all in one group"
    )


def test_online_names_the_server_without_the_key_and_shows_the_page() -> None:
    environment = {
        "WANDB_BASE_URL": "https://api.wandb.example/",
        "WANDB_ENTITY": "team",
        "WANDB_API_KEY": "secret",
    }

    settings = WandbSettings.from_environment(environment, CWD)

    assert dict(settings.destination) == {
        "WANDB_MODE": "online", "WANDB_BASE_URL": "https://api.wandb.example", "WANDB_ENTITY": "team",
    }  # fmt: skip
    run = run_info(Path("/runs"))
    assert settings.view(run) == f"https://wandb.example/team/gsm8k/runs/{run.id}"
    assert WandbSettings.from_environment({}, CWD).view(run) == ""  # no entity is known


@pytest.mark.parametrize(
    "base_url", ["api.wandb.example", "http://[::1", "https://ada:secret@host:https"]
)
def test_an_address_that_no_client_can_use_is_an_error_at_the_start(
    base_url: str,
) -> None:
    with pytest.raises(ConfigError, match="expected http") as raised:
        WandbSettings.from_environment({"WANDB_BASE_URL": base_url}, CWD)

    assert "secret" not in str(raised.value)


def test_a_limit_of_zero_for_the_end_of_a_run_is_not_the_lack_of_one() -> None:
    settings = WandbSettings.from_environment(
        {"OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S": "0"}, CWD
    )

    assert settings.limits.finish_timeout_s == 1.0


def test_a_folder_in_an_unknown_home_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"WANDB_DIR='~unknown-user/runs'.*absolute"):
        WandbSettings.from_environment({"WANDB_DIR": "~unknown-user/runs"}, CWD)


@pytest.mark.parametrize(
    ("base_url", "app_url"),
    [
        ("", "https://wandb.ai"),
        ("https://api.wandb.ai", "https://wandb.ai"),
        ("https://api.example.com", "https://app.example.com"),
        ("http://user:word@localhost:8080", "http://localhost:8080"),
    ],
)
def test_the_page_is_where_wandb_shows_it(base_url: str, app_url: str) -> None:
    settings = WandbSettings(base_url=base_url, entity="team")
    run = run_info(Path("/runs"))

    assert settings.view(run) == f"{app_url}/team/gsm8k/runs/{run.id}"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WANDB_MODE": "disabled"}, "WANDB_MODE=disabled: .* choose none"),
        ({"WANDB_MODE": "shared"}, "WANDB_MODE=shared: .* expected online or offline"),
        (
            {"WANDB_MODE": "sideways"},
            "WANDB_MODE='sideways': expected online or offline",
        ),
        (
            {"WANDB_RESUME": "perhaps"},
            "WANDB_RESUME='perhaps': expected one of allow, must, never, auto",
        ),
        (
            {"OTEL_BRIDGE_WANDB_POLL_S": "soon"},
            "OTEL_BRIDGE_WANDB_POLL_S='soon': expected a number of seconds",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(
    environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        WandbSettings.from_environment(environment, CWD)

    assert re.match(said, str(refused.value))


def test_identity_is_the_emitters_and_each_further_machine_has_a_run_of_its_own() -> (
    None
):
    settings = WandbSettings.from_environment({"WANDB_ENTITY": "of-the-bridge"}, CWD)
    plain = run_info(Path("/runs"), project="a/b:c")
    named = run_info(
        Path("/runs"),
        identity={"rl.wandb.run_id": "mine", "rl.wandb.entity": "ours"},
        node_rank=2,
    )
    gathered = run_info(Path("/runs"), node_rank=2, local=False, entity="argument")

    assert (
        run_id_of(plain, settings),
        project_of(plain),
        entity_of(plain, settings),
    ) == (
        plain.id,
        "a-b-c",
        "of-the-bridge",
    )
    assert (
        run_id_of(named, settings),
        project_of(named),
        entity_of(named, settings),
    ) == (
        "mine-n2",
        "gsm8k",
        "ours",
    )
    assert (run_id_of(gathered, settings), entity_of(gathered, settings)) == (
        gathered.id,
        "argument",
    )


def test_what_uploads_a_run_does_not_need_what_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_settings: WandbSettings, run: object) -> str:
        raise LookupError(run)

    settings = WandbSettings.from_environment({"WANDB_MODE": "offline"}, CWD)
    run = run_info(Path("/runs"))
    both = shown_by(settings, run)
    monkeypatch.setattr(WandbSettings, "view", fail)
    without_view = shown_by(settings, run)
    monkeypatch.setattr(WandbSettings, "upload", fail)

    assert all(both)
    assert without_view == ("", both[1])
    assert shown_by(settings, run) == ("", "")
