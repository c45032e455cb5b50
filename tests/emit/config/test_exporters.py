from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_bridge.emit.config.child_env import (
    launcher_alive,
    launcher_environment,
    launcher_mark,
)
from otel_bridge.emit.config.exporters import (
    RequestedDestinations,
    choose,
    every_destination,
    variables_of_choice,
)
from otel_bridge.errors import ConfigError

_CWD = Path("/work")


def chosen(
    argument: object, env: dict[str, str], *, launched: bool = False
) -> dict[str, tuple[str, ...]]:
    return dict(choose(argument, env, _CWD, launched=launched).by_signal)


def everywhere(*names: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(("metrics", "traces", "logs"), names)


def test_an_argument_goes_before_our_variable() -> None:
    assert chosen("console,file", {"OTEL_BRIDGE_EXPORTERS": "file"}) == everywhere(
        "console", "file"
    )
    assert chosen(["file"], {}) == everywhere("file")
    assert chosen(None, {"OTEL_BRIDGE_EXPORTERS": "file, console,file"}) == everywhere(
        "file", "console"
    )


def test_the_variable_of_a_signal_goes_before_the_argument() -> None:
    env = {
        "OTEL_METRICS_EXPORTER": "file",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "prometheus",
    }

    assert chosen("console", env) == {
        "metrics": ("file",),
        "traces": (),
        "logs": ("console",),
    }


def test_nothing_named_is_nothing_chosen() -> None:
    assert choose(None, {}, _CWD) == RequestedDestinations(everywhere(), {})


def test_none_stands_alone() -> None:
    with pytest.raises(
        ConfigError,
        match="exporters none,file: expected none alone, or trackers without it",
    ):
        choose("none,file", {}, _CWD)


def test_none_is_a_choice() -> None:
    assert choose(
        "none", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, _CWD
    ) == RequestedDestinations(everywhere(), {}, True)
    assert choose([], {"OTEL_BRIDGE_EXPORTERS": "file"}, _CWD) == RequestedDestinations(
        everywhere(), {}, True
    )


def test_an_endpoint_that_is_all_that_is_set_chooses_otlp() -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@collector:4318/x?token=1"}

    assert choose(None, env, _CWD) == RequestedDestinations(
        everywhere("otlp"),
        {"otlp": {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318/x"}},
    )
    assert chosen("file", env) == everywhere("file")
    assert chosen(None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}) == {
        "metrics": (),
        "traces": ("otlp",),
        "logs": (),
    }


@pytest.mark.parametrize("argument", [None, "console", []])
@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_BRIDGE_EXPORTERS": "file"},
        {"OTEL_TRACES_EXPORTER": "file"},
        {"OTEL_BRIDGE_EXPORTERS": "file", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_METRICS_EXPORTER": "file", "OTEL_LOGS_EXPORTER": "prometheus"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"},
    ],
)
def test_a_child_chooses_the_same_exporters_for_each_signal(
    argument: object, env: dict[str, str]
) -> None:
    of_child = {**env, **variables_of_choice(argument, env)}

    assert chosen(None, of_child) == chosen(argument, env)


def test_stock_names_of_otlp_are_ours() -> None:
    assert chosen(None, {"OTEL_METRICS_EXPORTER": "otlp_proto_grpc"})["metrics"] == (
        "otlp",
    )


def test_names_are_all_of_any_signal() -> None:
    choice = choose(
        None,
        {"OTEL_METRICS_EXPORTER": "file", "OTEL_TRACES_EXPORTER": "console,file"},
        _CWD,
    )

    assert choice.names == ("file", "console")


@pytest.mark.parametrize(
    "argument", ["trakio", 3, {"metrics": 3}, ["file", 3], b"file"]
)
def test_an_unknown_name_or_type_is_an_error(argument: object) -> None:
    with pytest.raises(ConfigError):
        choose(argument, {}, _CWD)


def test_under_a_launcher_it_chooses() -> None:
    env = {
        **launcher_environment({"metrics": ("file",), "traces": ("console",)}),
        "OTEL_METRICS_EXPORTER": "otlp",
    }

    assert chosen("file,console", env, launched=True) == {
        "metrics": ("file",),
        "traces": ("console",),
        "logs": (),
    }


def test_a_launcher_that_reports_no_signals_chooses_for_all() -> None:
    assert chosen(None, {"OTEL_BRIDGE_EXPORTERS": "file"}, launched=True) == everywhere(
        "file"
    )


def test_under_a_launcher_its_destinations_apply_whatever_the_program_has_set_since() -> (
    None
):
    launcher_env = {"TRACKIO_DIR": "/launcher"}
    destinations = choose("trackio", launcher_env, _CWD).destinations
    env = {
        **launcher_env,
        **launcher_environment(everywhere("trackio"), destinations),
        "TRACKIO_SPACE_ID": "someone/space",
    }

    launched = choose(None, env, Path("/elsewhere"), launched=True)
    alone = choose("trackio", env, _CWD)

    assert launched.destinations == {"trackio": {"TRACKIO_DIR": "/launcher"}}
    assert alone.destinations == {"trackio": {"TRACKIO_SPACE_ID": "someone/space"}}


def test_a_launcher_without_exporters_names_where_each_would_deliver() -> None:
    env = {"TRACKIO_DIR": "/launcher", "WANDB_MODE": "neither of its modes"}

    destinations = every_destination(env, _CWD)

    assert destinations["trackio"] == {"TRACKIO_DIR": "/launcher"}
    assert not {"wandb", "otlp"} & set(destinations)


def test_a_launcher_lives_while_its_pid_and_start_time_are_those_it_said() -> None:
    mark = launcher_mark()

    assert mark.startswith(f"{os.getpid()}:")
    assert launcher_alive({"OTEL_BRIDGE_LAUNCHER": mark})
    assert not launcher_alive({"OTEL_BRIDGE_LAUNCHER": f"{os.getpid()}:1"})
    assert not launcher_alive({"OTEL_BRIDGE_LAUNCHER": "99999999:5"})
    assert not launcher_alive({"OTEL_BRIDGE_LAUNCHER": "what"})
    assert not launcher_alive({})


def test_less_text_for_one_exporter_is_reported_to_its_bridge_and_checked_at_the_start() -> (
    None
):
    env = {
        "OTEL_BRIDGE_EXPORTERS": "file,console",
        "OTEL_BRIDGE_FILE_MESSAGE_CONTENT": "truncate:9",
    }

    assert choose(None, env, _CWD).message_content == {"file": "truncate:9"}
    with pytest.raises(
        ConfigError,
        match="OTEL_BRIDGE_CONSOLE_MESSAGE_CONTENT='none': expected full, off or truncate:N",
    ):
        choose(None, {**env, "OTEL_BRIDGE_CONSOLE_MESSAGE_CONTENT": "none"}, _CWD)
    with pytest.raises(ConfigError, match="otlp forwards segments unchanged"):
        choose("otlp", {"OTEL_BRIDGE_OTLP_MESSAGE_CONTENT": "off"}, _CWD)
