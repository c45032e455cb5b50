"""Trinity's monitor, with a fake of the package: two roles in one run, rollouts from tables, an end that may repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    program,
    report_of,
    runs,
)
from support.trainers.framework_jobs import TRINITY, TRINITY_ROLES
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)


@pytest.mark.slow
def test_both_roles_are_one_run_with_an_axis_each(tmp_path: Path) -> None:
    done = run_program(tmp_path, TRINITY_ROLES)

    found = recorded(tmp_path)
    assert rows_of(found, "explorer/rollout/model_version") == [(1, 0), (2, 1), (3, 2)]
    assert rows_of(found, "explorer/explore/time/sync_interval") == [(3, 1.5)]
    assert rows_of(found, "trainer/actor/loss") == [(1, 0.5), (2, 1.0)]
    assert (config_in(found)["seed"], set(ends_of(found))) == (42, {"finished"})
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "math",
        "one",
    )
    assert "Step 2: {'actor/loss': 1.0}" in done.stdout


@pytest.mark.slow
def test_a_table_of_prompts_is_rollouts_and_another_one_is_a_table(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, TRINITY_ROLES)

    found = recorded(tmp_path)
    rollouts = [
        (one["role"], one["split"], one["step"], one["reward"])
        for one in rollouts_in(found)
    ]
    assert rollouts == [
        ("trainer", "train", 2, 1.0),
        ("trainer", "train", 2, 0.25),
        ("trainer", "train", 2, None),
    ]
    assert [one["content"] for one in rollouts_in(found)[0]["messages"]] == [
        "2+2?",
        "4",
    ]
    media = [one for one in found if "lengths" in str(one) and one["kind"] != "row"]
    assert len(media) == 1, [one["kind"] for one in found]


@pytest.mark.slow
def test_arguments_of_the_monitor_are_those_of_init_and_an_unknown_one_is_one_line(
    tmp_path: Path,
) -> None:
    code = """
one = monitor("trainer", {"tags": ["a"], "notes": "n", "base_url": "http://w", "api_key": None})
one.log({"loss": 1.0}, 1)
one.log({"loss": object()}, 2)
one.log_table("t", None, 2)
"""
    done = run_program(tmp_path, TRINITY + code)

    assert rows_of(recorded(tmp_path), "trainer/loss") == [(1, 1.0)]
    assert (
        done.stderr.count(
            "monitor_args: base_url= is not an argument of otel_bridge.init()"
        )
        == 1
    )
    assert "adapter_failed" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_run_of_the_program_is_used_with_the_roles_of_trinity_and_goes_on(
    tmp_path: Path,
) -> None:
    code = """
import otel_bridge
run = otel_bridge.init("mine", "own")
one = monitor("explorer")
one.log({"loss": 1.0}, 1)
one.close()
assert run.recording
run.log({"own": 2.0}, 1)
"""
    run_program(tmp_path, TRINITY + code)

    found = recorded(tmp_path)
    assert (rows_of(found, "explorer/loss"), rows_of(found, "own")) == (
        [(1, 1.0)],
        [(1, 2.0)],
    )


def test_a_constructor_that_failed_can_be_closed(tmp_path: Path) -> None:
    code = """
try:
    monitor("trainer", {}, unknown=1)
except TypeError as error:
    print(error)
one = MONITOR.get(PATH).__new__(MONITOR.get(PATH))
one.close()
del one
"""
    done = run_program(tmp_path, TRINITY + code)

    assert ("unexpected keyword argument 'unknown'" in done.stdout, done.stderr) == (
        True,
        "",
    )


@pytest.mark.slow
def test_a_setting_that_cannot_be_used_is_one_line_and_trinity_goes_on(
    tmp_path: Path,
) -> None:
    code = """
one = monitor("trainer", {"exporters": "wadnb"})
one.log({"loss": 1.0}, 1)
one.close()
print("on")
"""
    done = run_program(tmp_path, TRINITY + code)

    assert (
        done.stderr.count("otel-bridge: Trinity-RFT continues"),
        "on\n" in done.stdout,
    ) == (
        1,
        True,
    )
    assert "Step 1: {'loss': 1.0}" in done.stdout


def test_without_trinity_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "import otel_bridge.adapters.trinity"

    done = call(
        [PYTHON, program(tmp_path, "train.py", code)],
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert done.stderr.splitlines()[-1] == (
        "otel_bridge.errors.MissingExtraError: trinity cannot be imported; this adapter needs trinity-rft>=0.6;"
        " run: pip install 'trinity-rft>=0.6'"
    )
