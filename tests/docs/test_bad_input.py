"""The page on bad input, row by row, in a real program: what is counted, and that the rest arrives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    program,
    records,
    values,
)

pytestmark = pytest.mark.slow

BAD = """
    import collections.abc, enum, os, threading
    import numpy as np
    import otel_bridge

    run = otel_bridge.init("bad", "input", role="r", exporters="file")

    class Raises:
        def __str__(self): raise RuntimeError
        def __float__(self): raise RuntimeError

    class RaisingMapping(collections.abc.Mapping):
        def __getitem__(self, key): raise KeyError(key)
        def __iter__(self): return iter(["a"])
        def __len__(self): return 1

    cyclic = {"inside": 1.0}
    cyclic["self"] = cyclic
    deep = {"x": 1.0}
    for _ in range(40):
        deep = {"d": deep}
    bad = [
        {Raises(): 1.0}, {"": 1.0}, {"k" * 5000: 1.0}, {"rl.row": 1.0}, {"a": {"b": 1.0}, "a/b": 2.0},
        {"v": None}, {"v": "text"}, {"v": object()}, {"v": 1j}, {"v": Raises()}, {"v": [1.0, float("nan")]},
        {"v": []}, {"v": np.zeros(4_000_001)},
        {"v": 10**400}, {"v": RaisingMapping()}, cyclic, deep,
    ]
    for step, values in enumerate(bad):
        run.log({**values, "good": float(step)}, step=step)
    run.log(None)
    run.log({"wide/%d" % n: float(n) for n in range(10_000)}, step=20)
    infinite = float("inf")
    run.log({"odd": float("nan"), "up": infinite, "down": -infinite, "big": 1 << 63, "half\\ud800": 1.0}, step=21)
    for step in (np.int32(30), 31.0, 32.5, -3, 30, 1 << 70):
        run.log({"steps": 1.0}, step=step)
    for step in (float("nan"), "soon"):
        run.log({"steps": 2.0}, step=step)

    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    run.log_rollouts([{"messages": talk, "id": "plain", "reward": 1.0}], step=40)
    run.log_rollouts(["no rollout"], step=41)
    run.log_rollouts([{"messages": [7, *talk], "id": "odd message"}], step=42)
    run.log_rollouts([{"messages": talk, "reward": "high", "id": "odd reward"}], step=43)
    run.log_rollouts([{"messages": talk, "step": "soon", "id": "odd step"}], step=44)
    run.log_rollouts([{"messages": [{"role": "user", "content": "x" * 100_000_000}, talk[1]], "id": "huge"}], step=45)
    run.log_generations(prompts=["p", ""], responses=["one", "two"], rewards=[1.0], step=46, colour="red")
    def broken(tokens): raise RuntimeError
    run.log_generations(response_token_ids=[[1, 2]], decode=broken, step=47)
    run.log_reward("plain", object())
    run.log_rewards([1.0])
    run.log_config(7)
    run.log_config({"text": "x" * 20_000})
    run.finish()
    run.log({"late": 1.0})
"""


def test_each_bad_input_is_counted_by_its_reason_and_the_rest_arrives(
    tmp_path: Path,
) -> None:
    script = program(tmp_path, "bad.py", BAD)

    done = call([sys.executable, script], cwd=tmp_path, env=environment(tmp_path))

    base = tmp_path / ".otel-bridge"
    report, shown = ended(base), values(only_folder(base))
    rollouts = [
        line for line in records(only_folder(base)) if line["kind"] == "rollout"
    ]
    assert done.returncode == 0, done.stderr
    assert report.drops == {
        "bad_key": 1, "empty_key": 1, "long_key": 1, "reserved_key": 1, "same_key": 1, "none": 1, "text": 1,
        "object": 1, "complex": 1, "unreadable_value": 2, "not_finite_in_distribution": 1, "empty_distribution": 1,
        "too_many_numbers": 1, "too_large_int": 1, "cyclic": 1, "too_deep": 1,
        "not_a_mapping": 1, "fractional_step": 1, "bad_step": 3, "rollout_no_mapping": 1, "rollout_message": 1,
        "rollout_reward": 1, "rollout_step": 1, "rollout_unknown_column": 1, "rollout_short_list": 1,
        "rollout_empty_prompt": 1, "rollout_decode": 1, "evaluation_value": 1, "evaluation_not_a_mapping": 1,
        "config_not_a_mapping": 1, "clipped": 1,
    }  # fmt: skip
    assert shown["r/good"] == [(step, float(step)) for step in range(17)]
    assert [shown[f"r/wide/{n}"] for n in range(10_000)] == [
        [(20, float(n))] for n in range(10_000)
    ]
    assert [shown[f"r/{key}"] for key in ("odd", "up", "down", "big", "half?")] == [
        [(21, "NaN")], [(21, "Infinity")], [(21, "-Infinity")], [(21, 2.0**63)], [(21, 1.0)],
    ]  # fmt: skip
    assert shown["r/steps"] == [
        (30, 1.0),
        (31, 1.0),
        (32, 1.0),
        (-3, 1.0),
        (30, 1.0),
        (31, 1.0),
        (32, 2.0),
        (33, 2.0),
    ]
    assert {rollout["step"]: rollout["clipped_bytes"] > 0 for rollout in rollouts} == {
        40: False, 42: False, 43: False, 44: False, 45: True, 46: False, 47: False,
    }  # fmt: skip
    assert "after finish()" in done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"OTEL_BRIDGE_EXPORTERS": "trackoi"},
            "exporter 'trackoi' is not known; choose from",
        ),
        (
            {"OTEL_BRIDGE_OFFLINE": "maybe"},
            "OTEL_BRIDGE_OFFLINE='maybe': expected 1 or 0",
        ),
        (
            {"OTEL_BRIDGE_MAX_BYTES": "much"},
            "OTEL_BRIDGE_MAX_BYTES='much': expected a number of bytes",
        ),
        (
            {"OTEL_BRIDGE_DIR": "/dev/null/x"},
            "set OTEL_BRIDGE_DIR to a writable folder",
        ),
        ({"OTEL_BRIDGE_RUN_ID": "a/b"}, "run id 'a/b': expected"),
        (
            {"OTEL_BRIDGE_MAX_MEDIA_PER_STEP": "-1"},
            "OTEL_BRIDGE_MAX_MEDIA_PER_STEP='-1': expected an integer of 0 or more",
        ),
        ({"OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP_EVAL": "few"}, "expected an integer"),
        ({"RANK": "first"}, "RANK='first': expected an integer"),
    ],
)
def test_bad_configuration_is_an_error_at_init_that_says_what_to_do(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    code = """
        import otel_bridge
        try:
            otel_bridge.init("bad", "configuration")
        except otel_bridge.ConfigError as exc:
            print(exc)
    """

    env = environment(tmp_path, **{"OTEL_BRIDGE_EXPORTERS": "file", **variables})
    done = call(
        [sys.executable, program(tmp_path, "bad.py", code)], cwd=tmp_path, env=env
    )

    assert said in done.stdout, done.stdout + done.stderr
