"""Every example does what its documentation says."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import Exporter
from otel_bridge.testing.contents import Contents, HeldScalar
from otel_bridge.testing.contract import ReadBack, WriterContract
from support.conformance.suite import ConformanceSuite, ReadShown
from support.conformance.truth import KeptKinds, Shown
from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    records,
    values,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PLUGIN = EXAMPLES / "exporter_csv"


def python(
    example: str, *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return call([sys.executable, str(EXAMPLES / example)], cwd=cwd, env=env)


def test_the_ten_lines_of_the_readme_give_a_hundred_rows(tmp_path: Path) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")

    done = python("train.py", cwd=tmp_path, env=env)

    shown = values(only_folder(tmp_path / ".otel-bridge"))
    assert (done.returncode, done.stderr.count("otel-bridge:")) == (
        0,
        4,
    )  # begin and end, each with an address
    assert shown["loss"] == [(step, math.exp(-step / 30)) for step in range(1, 101)]


def test_three_programs_started_by_hand_are_one_run_with_three_step_counters(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    roles = [
        [sys.executable, str(EXAMPLES / f"roles/{role}.py")]
        for role in ("trainer", "explorer", "evaluator")
    ]

    started = [
        subprocess.Popen(role, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
        for role in roles
    ]
    codes = [process.wait(120) for process in started]

    report = ended(tmp_path / ".otel-bridge")
    rollouts = [
        line
        for line in records(only_folder(tmp_path / ".otel-bridge"))
        if line["kind"] == "rollout"
    ]
    assert codes == [0, 0, 0]
    assert report.steps == {
        "trainer/step": 50,
        "explorer/step": 30,
        "evaluator/step": 5,
    }
    assert (report.status, report.drops, report.rollouts) == ("finished", {}, 30)
    assert {len(rollout["spans"]) for rollout in rollouts} == {2}


@pytest.mark.slow
def test_a_program_without_code_of_otel_bridge_lands_in_the_run_of_its_launcher(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path)
    program = str(EXAMPLES / "stock_otel.py")

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        sys.executable,
        program,
        cwd=tmp_path,
        env=env,
    )

    folder = only_folder(tmp_path / ".otel-bridge")
    rollouts = [line for line in records(folder) if line["kind"] == "rollout"]
    assert done.returncode == 0, done.stderr
    assert values(folder)["loss"] == [(step, 1.0 / step) for step in range(1, 11)]
    assert [rollout["step"] for rollout in rollouts] == list(range(1, 11))
    assert {
        message["content"] for rollout in rollouts for message in rollout["messages"]
    } == {
        "2 + 2?",
        "4",
    }


@pytest.fixture(scope="module", autouse=True)
def _plugin_is_found() -> Iterator[None]:
    """Children find the example's module as they would find an installed one."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(PLUGIN), before) if part
    )
    sys.path.insert(0, str(PLUGIN))
    yield
    sys.path.remove(str(PLUGIN))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


class TestCsvExporter(WriterContract):
    target = "otel_bridge_csv:exporter"
    keeps_status = False
    keeps_config = False
    keeps_rollouts = False
    keeps_evaluations = False
    keeps_distributions = False

    @pytest.fixture
    def exporter(self) -> Exporter:
        import otel_bridge_csv

        return otel_bridge_csv.exporter  # type: ignore[no-any-return]

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {"OTEL_BRIDGE_CSV_DIR": str(tmp_path / "csv")}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        return lambda run: numbers_in(tmp_path / "csv" / f"{run.id}.csv")


class TestCsvConformance(ConformanceSuite):
    target = "otel_bridge_csv:exporter"
    keeps = KeptKinds(
        status=False,
        config=False,
        rollouts=False,
        evaluations=False,
        distributions=False,
    )

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {"OTEL_BRIDGE_CSV_DIR": str(tmp_path / "csv")}

    @pytest.fixture
    def read(self, tmp_path: Path) -> ReadShown:
        return lambda run: Shown(numbers_in(tmp_path / "csv" / f"{run.id}.csv"))


def numbers_in(path: Path) -> Contents:
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    return Contents(
        [
            HeldScalar(
                key,
                int(step) if step else None,
                float(value),
                int(time_ns) // 1_000_000,
            )
            for key, step, time_ns, value in lines
        ]
    )


@pytest.mark.slow
def test_the_example_exporter_is_installed_by_pip_and_chosen_by_its_name(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    copied = tmp_path / "exporter_csv"
    copied.mkdir()
    for name in ("otel_bridge_csv.py", "pyproject.toml"):
        (copied / name).write_bytes((PLUGIN / name).read_bytes())
    subprocess.run(
        [*install, "--target", str(site), str(copied)],
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="csv", PYTHONPATH=str(site))

    done = python("train.py", cwd=tmp_path, env=env)

    (file,) = (tmp_path / "csv").iterdir()
    assert (done.returncode, len(file.read_text("utf-8").splitlines())) == (0, 200), (
        done.stderr
    )
