"""Addresses lose their credentials, and nothing else."""

from __future__ import annotations

import pytest

from otel_bridge.text.addresses import is_loopback, without_credentials


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:s3cr3t@host:4318/base", "http://host:4318/base"),
        ("https://s3cr3t@host", "https://host"),
        ("http://me:s3@cr3t@host:4318", "http://host:4318"),
        ("http://me:s3/cr3t?@host:4318/a", "http://host:4318/a"),
        (
            "http://me:5/s3cr3t@host/a",
            "http://me:5/s3cr3t@host/a",
        ),  # a port, and a path with an @
        ("me:s3cr3t@host:4317", "host:4317"),
        (
            "postgresql://me:s3cr3t@db/mlflow?sslmode=require&password=s3cr3t",
            "postgresql://db/mlflow?sslmode=require",
        ),
        ("http://host/?write_token=s3cr3t#top", "http://host/#top"),
        (
            "http://host/?X-Amz-Signature=s3cr3t&a=1&api%5Fkey=s3cr3t",
            "http://host/?a=1",
        ),
        ("http://host/?Cookie=s3cr3t&jwt=s3cr3t&a=1", "http://host/?a=1"),
        ("http://[::1]:4318/a@b", "http://[::1]:4318/a@b"),
        ("http://me:s3cr3t@[::1]:4318/a@b", "http://[::1]:4318/a@b"),
        ("http://host:4318/@team/runs", "http://host:4318/@team/runs"),
        ("http://host/@team/runs", "http://host/@team/runs"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        (
            "sqlite:////data/me@home/mlflow.db?timeout=5",
            "sqlite:////data/me@home/mlflow.db?timeout=5",
        ),
        ("/data/me@home/a:b", "/data/me@home/a:b"),
        ("localhost:4317", "localhost:4317"),
        ("ada/trackio", "ada/trackio"),
        ("offline", "offline"),
        ("http://", "http://"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_credentials(address: str, shown: str) -> None:
    assert without_credentials(address) == shown


@pytest.mark.parametrize(
    ("host", "is_of_this_machine"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.2", True),
        ("0:0:0:0:0:0:0:1", True),
        ("0.0.0.0", False),  # all networks
        ("node1", False),
        ("", False),
    ],
)
def test_an_address_of_loopback_in_any_form_is_of_this_machine(
    host: str, is_of_this_machine: bool
) -> None:
    assert is_loopback(host) is is_of_this_machine
