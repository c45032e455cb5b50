from __future__ import annotations

import pytest

from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import run_id_of
from otel_bridge.translation.decode.resources import (
    RunIdentity,
    attributes_of,
    producer_of,
    run_of,
    within,
)
from support.otlp.otlp_samples import resource


@pytest.mark.parametrize(
    ("attributes", "project", "name"),
    [
        (
            {"rl.project": "gsm8k", "rl.run.name": "ppo", "service.name": "x"},
            "gsm8k",
            "ppo",
        ),
        ({"rl.run.name": "ppo"}, "default", "ppo"),
        (
            {"nemo.run.id": "42", "service.namespace": "nemo", "service.name": "x"},
            "nemo",
            "42",
        ),
        ({"service.namespace": "team", "service.name": "server"}, "team", "server"),
        ({"service.name": "server"}, "default", "server"),
        ({"nemo.run.id": 42}, "default", "42"),
        ({}, "default", "unknown_service"),
    ],
)
def test_a_run_is_found_in_the_order_of_the_design(
    attributes: dict[str, object], project: str, name: str
) -> None:
    assert run_of(attributes) == RunIdentity(run_id_of(project, name), project, name)


def test_an_id_that_was_given_goes_before_all_names() -> None:
    assert run_of({"rl.run.id": "abc"}) == RunIdentity("abc", "default", "abc")
    assert run_of(
        {"rl.run.id": "abc", "rl.project": "p", "rl.run.name": "n"}
    ) == RunIdentity("abc", "p", "n")


def test_a_foreign_producer_gets_an_instance_that_is_its_own() -> None:
    one = producer_of({"service.name": "app", "service.instance.id": "a"})
    other = producer_of({"service.name": "app", "service.instance.id": "b"})

    assert (one.third_party, one.role, one.third_party_role) == (True, None, "app")
    assert one.instance.startswith("third-party:")
    assert one.instance != other.instance


def test_a_process_of_otel_bridge_has_its_role_from_us_alone() -> None:
    producer = producer_of(
        {"rl.instance.id": "i1", "service.name": "app", "rl.rank": 2, "rl.forked": True}
    )

    found = (
        producer.instance,
        producer.third_party,
        producer.role,
        producer.third_party_role,
        producer.rank,
        producer.forked,
    )
    assert found == ("i1", False, None, None, 2, True)


def test_an_sdk_inside_a_process_of_otel_bridge_belongs_to_its_run_and_says_itself_who_it_is() -> (
    None
):
    outer = {"rl.run.id": "abc", "rl.instance.id": "i1", "service.name": "default-name"}

    assert within(outer, {"service.name": "app"}) == {
        "rl.run.id": "abc",
        "service.name": "app",
    }


def test_a_resource_is_read_from_its_bytes_or_refused() -> None:
    attributes = {"a": "x", "b": 1, "c": [True, 2.5], "d": {"e": "f"}}

    assert attributes_of(resource(attributes).SerializeToString()) == attributes
    with pytest.raises(InvalidRecordError, match="resource of 2 bytes"):
        attributes_of(b"\x0a\xff")
