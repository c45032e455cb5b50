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
