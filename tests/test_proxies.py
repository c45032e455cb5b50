"""A proxy of the environment gets nothing that is for this machine, and keeps all exceptions that its user made."""

from __future__ import annotations

import pytest
from requests.utils import get_environ_proxies

from otel_bridge.otlp.proxies import direct_variables

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    "name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "https_proxy", "grpc_proxy"]
)
def test_this_machine_and_the_named_host_are_reached_without_each_kind_of_proxy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, PROXY)
    for variable, value in direct_variables({name: PROXY}, "10.0.0.7").items():
        monkeypatch.setenv(variable, value)

    hosts = ["127.0.0.1", "localhost", "[::1]", "10.0.0.7"]

    assert [
        get_environ_proxies(f"http://{host}:4318/v1/metrics") for host in hosts
    ] == [{}] * 4
    if name != "grpc_proxy":  # requests does not read it
        assert PROXY in get_environ_proxies("http://tracker.example/").values()


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY", "no_grpc_proxy"])
def test_exceptions_that_the_user_made_stay(name: str) -> None:
    variables = direct_variables({"http_proxy": PROXY, name: "tracker.example, .lan"})

    assert variables[name] == "tracker.example,.lan,127.0.0.1,localhost,::1"


def test_an_exception_of_everything_stays_as_it_is() -> None:
    assert set(direct_variables({"http_proxy": PROXY, "NO_PROXY": "*"}).values()) == {
        "*"
    }


def test_without_a_proxy_no_variable_is_set() -> None:
    assert direct_variables({"NO_PROXY": "tracker.example", "HTTP_PROXY": ""}) == {}
