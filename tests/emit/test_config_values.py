from __future__ import annotations

import argparse
import dataclasses
import datetime
import enum
import random
from pathlib import Path

import numpy as np
import pytest

from otel_bridge.emit.config_values import config_of
from otel_bridge.emit.secrets import secret_by_name, strike_out


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Model:
    layers: int = 2
    hf_token: str = "abcdefgh"


def taken(config: object) -> tuple[object, list[str]]:
    drops: list[str] = []
    return config_of(config, drops.append), drops


def test_plain_values_stay_and_others_become_plain() -> None:
    config = {
        "lr": 1e-3,
        "steps": 10,
        "bf16": True,
        "none": None,
        "path": Path("/data"),
        "color": Color.RED,
        "when": datetime.date(2026, 1, 2),
        "seed": np.int64(3),
        "betas": (0.9, np.float32(0.5)),
        "array": np.arange(3),
        "large": np.zeros((100, 100)),
        "function": random.randint,
        "class": Model,
        "object": object(),
        "bytes": b"abc",
        7: "seven",
        "model": Model(),
        "big": 1 << 70,
    }

    cleaned, drops = taken(config)

    assert cleaned == {
        "lr": 1e-3,
        "steps": 10,
        "bf16": True,
        "none": None,
        "path": "/data",
        "color": "red",
        "when": "2026-01-02",
        "seed": 3,
        "betas": [0.9, 0.5],
        "array": [0, 1, 2],
        "large": "<ndarray of shape 100x100>",
        "function": "<builtins.method>",
        "class": f"{Model.__module__}.Model",
        "object": "<builtins.object>",
        "bytes": "<3 bytes>",
        "7": "seven",
        "model": {"layers": 2, "hf_token": "[redacted]"},
        "big": 1 << 70,
    }
    assert drops == []


@pytest.mark.parametrize("config", [argparse.Namespace(lr=1.0), Model(hf_token="")])
def test_namespaces_and_dataclasses_are_configs(config: object) -> None:
    assert taken(config)[0] == vars(config)


@pytest.mark.parametrize("config", [None, 3, "lr=1", [1]])
def test_what_is_no_mapping_is_counted(config: object) -> None:
    assert taken(config) == ({}, ["config_not_a_mapping"])


def test_cycles_and_depth_are_cut() -> None:
    looped: dict[str, object] = {"a": 1}
    looped["self"] = looped
    deep: object = 1
    for _ in range(40):
        deep = [deep]

    assert taken(looped) == ({"a": 1, "self": "[cycle]"}, [])
    assert taken({"deep": deep})[1] == ["config_clipped"]


def test_size_is_bounded() -> None:
    many, drops = taken({f"k{number}": "x" * 20_000 for number in range(20_000)})

    assert isinstance(many, dict)
    assert len(many) <= 10_000
    assert sum(len(str(value)) for value in many.values()) < 1.2 * (1 << 20)
    assert drops == ["config_clipped"]


@pytest.mark.parametrize(
    "key",
    [
        "password", "db_password", "WANDB_API_KEY", "apiKey", "openai.api-key", "aws_secret_access_key", "hf_token",
        "auth_token", "AccessToken", "private_key", "credentials", "Authorization", "client_secret",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name(key: str) -> None:
    assert secret_by_name(key, "correct horse")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pad_token", "<|endoftext|>"),
        ("eos_token", "</s>"),
        ("max_new_tokens", 512),
        ("tokenizer", "gpt2"),
        ("token_budget", "auto"),
        ("key", "loss"),
        ("monitor_key", "eval/reward"),
        ("secretary", "anna"),
        ("use_auth_token", True),
        ("keyboard", "qwerty"),
    ],
)
def test_what_only_sounds_like_a_secret_stays(key: str, value: object) -> None:
    assert not secret_by_name(key, value)


@pytest.mark.parametrize(
    ("text", "struck"),
    [
        ("hf_" + "a" * 34, "[redacted]"),
        ("use sk-" + "A1" * 12 + " here", "use [redacted] here"),
        ("ghp_" + "a" * 36, "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("postgres://me:pa55word@db/x", "postgres://[redacted]@db/x"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [redacted]"),
        ("https://x/?token=abc123def&a=1", "https://x/?token=[redacted]&a=1"),
        ("--max_tokens=512000 --lr 1", "--max_tokens=512000 --lr 1"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "[redacted]"),
        ("meta-llama/Llama-3-8B", "meta-llama/Llama-3-8B"),
    ],
)
def test_a_secret_is_known_by_its_shape(text: str, struck: str) -> None:
    assert strike_out(text) == struck
    assert taken({"a": [text]})[0] == {"a": [struck]}
