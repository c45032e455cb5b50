"""What ``run.env()`` shows a worker on another machine beside the run's name: the endpoint and its token."""

from __future__ import annotations

import pytest

from otel_bridge.emit.config.child_env import launcher_mark, variables_for_others

ENDPOINT = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://bridge:4317",
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
}


def test_a_process_that_forwards_reports_where_to_and_with_which_token() -> None:
    env = {**ENDPOINT, "OTEL_BRIDGE_TOKEN": "new,old", "HOME": "/root"}

    assert variables_for_others(env, ("otlp",)) == {
        **ENDPOINT,
        "OTEL_BRIDGE_TOKEN": "new,old",
    }


def test_a_process_that_delivers_itself_reports_of_no_endpoint() -> None:
    assert (
        variables_for_others({**ENDPOINT, "OTEL_BRIDGE_TOKEN": "t"}, ("wandb",)) == {}
    )


@pytest.mark.parametrize(
    ("host", "given"),
    [
        ("10.0.0.7", {"OTEL_BRIDGE_EXPORTERS": "otlp", "OTEL_BRIDGE_TOKEN": "t"}),
        ("127.0.0.1", None),
        ("127.0.0.2", None),
        ("LOCALHOST", None),
        ("[0:0:0:0:0:0:0:1]", None),
    ],
)
def test_a_launched_process_reports_of_the_launchers_receiver_where_others_reach_it(
    host: str, given: dict[str, str] | None
) -> None:
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{host}:4318"}
    env = {
        **address,
        "OTEL_BRIDGE_TOKEN": "t",
        "OTEL_BRIDGE_LAUNCHER": launcher_mark(),
    }

    assert variables_for_others(env, ()) == (
        {} if given is None else {**address, **given}
    )
