from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import random
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from otel_bridge.emit.config.hyperparameters import config_of
from support.trainers.emit_samples import run_in, seen_in


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Model:
    layers: int = 2
    hf_token: str = "abcdefgh"


def taken(config: object) -> tuple[object, list[str]]:
    drops: list[str] = []
    return config_of(
        config, lambda reason, _number, key: drops.append(f"{reason} {key}".strip())
    ), drops


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
        "function": "random.Random.randint",
        "class": f"{Model.__module__}.Model",
        "object": "<builtins.object>",
        "bytes": "abc",
        "7": "seven",
        "model": {"layers": 2, "hf_token": "[redacted]"},
        "big": 1 << 70,
    }
    assert drops == ["clipped large", "described object"]


class Arguments(argparse.Namespace):
    """Namespace of a program's own class, as `parse_args(namespace=…)` takes it."""


class Partial(functools.partial[str]):
    pass


@pytest.mark.parametrize(
    "config", [argparse.Namespace(lr=1.0), Arguments(lr=1.0), Model(hf_token="")]
)
def test_namespaces_and_dataclasses_are_configs(config: object) -> None:
    assert taken(config)[0] == vars(config)


@pytest.mark.parametrize("config", [None, 3, "lr=1", [1]])
def test_what_is_not_a_mapping_is_counted(config: object) -> None:
    assert taken(config) == ({}, [f"config_not_a_mapping {type(config).__name__}"])


def test_cycles_and_depth_are_cut() -> None:
    looped: dict[str, object] = {"a": 1}
    looped["self"] = looped
    deep: object = 1
    for _ in range(40):
        deep = [deep]

    assert taken(looped) == ({"a": 1, "self": "[cycle]"}, [])
    assert taken({"deep": deep})[1] == ["clipped deep"]


def test_size_is_bounded() -> None:
    many, drops = taken({f"k{number}": "x" * 20_000 for number in range(20_000)})

    assert isinstance(many, dict)
    assert len(many) <= 10_000
    assert sum(len(str(value)) for value in many.values()) < 1.2 * (1 << 20)
    assert drops == ["clipped k10000"]


class Hostile(Mapping[str, object]):
    """A mapping whose `items` does what it is given, and whose entry ``bad`` raises."""

    def __init__(self, items: Any = None) -> None:
        self._items = items

    def items(self) -> Any:
        return super().items() if self._items is None else self._items()

    def __getitem__(self, key: str) -> object:
        if key == "bad":
            raise ValueError("sk-proj-" + "a1B2" * 12)
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(("lr", "bad", "steps"))

    def __len__(self) -> int:
        return 3


class Raises:
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def to_dict(self) -> dict[str, object]:
        raise RuntimeError("no dict")


class Recursive(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        return Recursive()

    def __iter__(self) -> Iterator[str]:
        return iter(("deeper",))

    def __len__(self) -> int:
        return 1


def test_an_omegaconf_entry_that_cannot_be_read_costs_that_entry() -> None:
    config = OmegaConf.create({
        "lr": 1, "m": "???", "ref": "${nowhere.at.all}", "good": "${lr}", "betas": [0.9, "???", "${lr}"],
        "optim": {"name": "adam", "steps": "???"}, "api_key": "secret-of-mine",
    })  # fmt: skip

    assert taken(config) == (
        {
            "lr": 1, "m": "???", "ref": "${nowhere.at.all}", "good": 1, "betas": [0.9, "???", 1],
            "optim": {"name": "adam", "steps": "???"}, "api_key": "[redacted]",
        },
        ["unreadable_value m"],
    )  # fmt: skip


def test_a_run_is_begun_with_a_config_of_hydra(tmp_path: Path) -> None:
    with run_in(
        tmp_path,
        config=OmegaConf.create({"trainer": {"lr": 1, "devices": [0, 1]}, "m": "???"}),
    ):
        pass

    (seen,) = seen_in(tmp_path)
    assert seen.event("rl.run.config").body == {
        "trainer": {"lr": 1, "devices": [0, 1]},
        "m": "???",
    }
    assert seen.event("rl.dropped").body == {"unreadable_value": 1}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (Hostile(), {"lr": 1, "bad": "[unreadable]", "steps": 1}),
        (Hostile(lambda: [1, 2]), {"lr": 1, "bad": "[unreadable]", "steps": 1}),
        (Hostile(lambda: None), {"lr": 1, "bad": "[unreadable]", "steps": 1}),
        (Raises(), {}),
        (collections.deque([1, 2]), [1, 2]),
        ({"a": 1}.values(), [1]),
        (iter([1]), "<builtins.list_iterator>"),
        (np.dtype("float32"), "float32"),
        (np.float32, "numpy.float32"),
        (decimal.Decimal("0.10"), 0.1),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime.timedelta(seconds=90), "0:01:30"),
        (re.compile("^layer"), "^layer"),
        (functools.partial(json.dumps, indent=2), "partial(json.dumps)"),
        (Partial(json.dumps, indent=2), "partial(json.dumps)"),
        (len, "builtins.len"),
        (json, "json"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_one_bad_entry_costs_itself_and_small_values_are_text(
    given: object, shown: object
) -> None:
    assert taken({"lr": 1, "given": given, "steps": 2})[0] == {
        "lr": 1,
        "given": shown,
        "steps": 2,
    }


def test_a_config_that_goes_on_for_ever_is_cut() -> None:
    cleaned, drops = taken({"lr": 1, "deep": Recursive()})

    assert (str(cleaned).count("deeper"), drops) == (
        15,
        [f"clipped deep{15 * '.deeper'}"],
    )


@pytest.mark.parametrize(
    ("kind", "text"), [("dtype", "torch.bfloat16"), ("device", "cuda:0")]
)
def test_data_types_and_devices_of_torch_are_text(kind: str, text: str) -> None:
    shown = type(
        kind,
        (),
        {
            "__module__": "torch",
            "__str__": lambda _self: text,
            "__repr__": lambda _self: "no",
        },
    )()

    assert taken({"given": shown})[0] == {"given": text}


def test_rows_and_metadata_lose_only_the_entry_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    config = OmegaConf.create({"loss": 0.5, "m": "???", "shape": [1.0, 3.0]})
    with run_in(tmp_path) as run:
        run.log(config, step=1)
        run.log({"actor": Hostile()}, step=2)
        run.log_rollouts(
            [{"messages": "hi", "metadata": config, "rewards": Hostile()}], step=2
        )

    (seen,) = seen_in(tmp_path)
    assert [sorted(row.values) for row in seen.rows] == [
        ["loss", "shape"],
        ["actor/lr", "actor/steps"],
    ]
    assert seen.event("rl.dropped").body == {"unreadable_value": 3, "rollout_reward": 1}


def test_keys_beyond_the_characters_of_a_config_are_counted() -> None:
    drops: list[tuple[str, int, str]] = []
    config = {f"{number:05}" + "k" * 10_000: number for number in range(200)}

    recorded = config_of(config, lambda *drop: drops.append(drop))

    assert sum(map(len, recorded)) < (1 << 20) + 10_005
    ((reason, number, key),) = drops
    assert (reason, number, key[:5]) == (
        "clipped",
        200 - len(recorded),
        f"{len(recorded):05}",
    )
