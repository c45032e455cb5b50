"""Tests of settings: a number that cannot be meant is an error that names it, whichever setting it is."""

from __future__ import annotations

from typing import Any

import pytest

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge.settings import Setting
from otel_bridge_wandb import settings as wandb_settings

_ENDS = ("_S", "_BYTES", "_RANK", "_ATTEMPT")
_NUMBERS = [
    setting
    for setting in settings.declared()
    if setting.name.endswith(_ENDS) or setting.name.startswith("OTEL_BRIDGE_MAX_")
]
_OFF_BELOW_ZERO: list[Setting[Any]] = [
    settings.MAX_ROLLOUTS_PER_STEP,
    settings.MAX_ROLLOUTS_PER_STEP_EVAL,
]


def test_every_kind_of_number_is_among_those_that_are_tried() -> None:
    found = {type(setting.default) for setting in _NUMBERS}

    assert found >= {int, float}
    assert len({setting.name for setting in _NUMBERS}) > 25


@pytest.mark.parametrize("setting", _NUMBERS, ids=lambda setting: setting.name)
@pytest.mark.parametrize(
    "value",
    ["-1", "-0.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5000, "²", "1e10"],
)
def test_a_number_that_cannot_be_meant_is_an_error_that_names_setting_value_and_what_is_expected(
    setting: Setting[object], value: str
) -> None:
    if value == "-1" and setting in _OFF_BELOW_ZERO:
        return
    with pytest.raises(ConfigError, match="expected a") as raised:
        setting.read({setting.name: value})

    assert str(raised.value).startswith(f"{setting.name}={value!r}: expected a")


@pytest.mark.parametrize("setting", _OFF_BELOW_ZERO, ids=lambda setting: setting.name)
def test_a_number_of_rollouts_below_zero_is_none(setting: Setting[object]) -> None:
    assert setting.read({setting.name: "-1"}) == 0


@pytest.mark.parametrize(
    "setting",
    [
        settings.POLL_S,
        settings.STALL_S,
        settings.MAX_KEYS,
        wandb_settings.POLL_S,
        wandb_settings.STALL_S,
    ],
    ids=lambda setting: setting.name,
)
def test_zero_is_an_error_where_it_means_nothing(setting: Setting[object]) -> None:
    with pytest.raises(ConfigError, match=f"{setting.name}='0': expected .* above 0"):
        setting.read({setting.name: "0"})


@pytest.mark.parametrize(
    "setting", settings.declared(), ids=lambda setting: setting.name
)
def test_a_default_is_shown_as_the_variable_would_have_it(
    setting: Setting[object],
) -> None:
    shown = setting.written(setting.default)

    assert setting.read({setting.name: shown}) == setting.default


def test_values_are_shown_as_variables_have_them() -> None:
    read: list[tuple[Setting[object], str]] = [
        (settings.MAX_BYTES, "1536MiB"),
        (settings.SEGMENT_BYTES, "1000"),
        (settings.POLL_S, "0.125"),
        (settings.ROW_WAIT_S, "7"),
        (settings.QUIET, "1"),
        (settings.REDACT, "email,mine:function"),
        (settings.LAUNCHER_EXPORTERS, "metrics=mlflow,otlp;traces=trackio"),
    ]

    assert [one.written(one.read({one.name: text})) for one, text in read] == [
        text for _, text in read
    ]


def test_zero_rollouts_are_none_and_not_an_error() -> None:
    assert (
        settings.MAX_ROLLOUTS_PER_STEP.read({"OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP": "0"})
        == 0
    )
    assert (
        settings.MAX_ROLLOUTS_PER_STEP.read({"OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP": "-1"})
        == 0
    )


@pytest.mark.parametrize(
    "policy", ["truncate:²", "truncate:-3", "truncate:0", "truncate:" + "9" * 5000]
)
def test_a_number_of_characters_that_cannot_be_meant_is_an_error(policy: str) -> None:
    with pytest.raises(ConfigError, match="expected full, off or truncate:N"):
        settings.MESSAGE_CONTENT.read({"OTEL_BRIDGE_MESSAGE_CONTENT": policy})


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_timeout_of_forwarding_that_cannot_be_meant_is_an_error(value: str) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318",
        "OTEL_EXPORTER_OTLP_TIMEOUT": value,
    }

    with pytest.raises(ConfigError, match=r"TIMEOUT=.*: expected a number of seconds"):
        endpoint_for("metrics", env)


@pytest.mark.parametrize(
    ("raw", "addresses"),
    [
        ("http://a:8000", ("http://a:8000/metrics",)),
        (
            "https://a/x/metrics, http://[::1]:80/",
            ("https://a/x/metrics", "http://[::1]:80/metrics"),
        ),
    ],
)
def test_addresses_of_engines_get_the_usual_path(
    raw: str, addresses: tuple[str, ...]
) -> None:
    assert settings.SCRAPE.read({"OTEL_BRIDGE_SCRAPE": raw}) == addresses


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("10.0.0.1:8000", "expected addresses such as http://10.0.0.1:8000/metrics"),
        ("http://a:x", "expected addresses such as"),
        ("ftp://a:1", "expected addresses such as"),
        ("http://ada:secret@a:1", "expected addresses without user and password"),
        ("http://a:1/metrics,http://a:1/other", "expected one address of a:1"),
        (",".join(f"http://a:{port}" for port in range(1, 66)), "at most 64 addresses"),
    ],
)
def test_addresses_of_engines_that_cannot_be_read_are_errors_at_the_start(
    raw: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings.SCRAPE.read({"OTEL_BRIDGE_SCRAPE": raw})


@pytest.mark.parametrize(
    "raw", ["http://a:1,http://ada:hunter2@b:1", "htp://ada:hunter2@b:1"]
)
def test_an_error_of_a_setting_shows_no_password_of_an_address(raw: str) -> None:
    with pytest.raises(ConfigError, match="b:1") as raised:
        settings.SCRAPE.read({"OTEL_BRIDGE_SCRAPE": raw})

    assert "hunter2" not in str(raised.value)


def test_more_featured_keys_than_a_person_watches_are_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match="expected at most 12 keys, got 13"):
        settings.FEATURED.read({"OTEL_BRIDGE_FEATURED": ",".join(map(str, range(13)))})


def test_a_token_that_no_header_can_hold_is_an_error_without_the_token() -> None:
    with pytest.raises(ConfigError, match="expected printable ASCII") as raised:
        settings.TOKEN.read({"OTEL_BRIDGE_TOKEN": "tök3n"})

    assert "k3n" not in str(raised.value)
