"""The example exporter of TensorBoard: the public contract is enough for a tracker that we have no code for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    TENSORS,
    EventAccumulator,
)
from tensorboard.util.tensor_util import make_ndarray

from otel_bridge.exporter import Exporter, RunInfo
from otel_bridge.testing.contents import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_configs,
)
from otel_bridge.testing.contract import ReadBack, WriterContract
from support.conformance.suite import ConformanceSuite, ReadShown
from support.conformance.truth import KeptKinds, Shown
from support.trainers.command_runs import call, ended, environment

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples/exporter_tensorboard"
FILES = (
    "otel_bridge_tensorboard.py",
    "otel_bridge_tensorboard_events.py",
    "pyproject.toml",
)


@pytest.fixture(scope="module", autouse=True)
def _plugin_is_found() -> Iterator[None]:
    """Children find the example's modules as they would find installed ones."""
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


def shown(folder: Path) -> Contents:
    """What TensorBoard's own reader shows of a run's folder: a folder below it for each role."""
    contents, configs = Contents(), {}
    for place in sorted(
        {file.parent for file in folder.rglob("events.out.tfevents.*")}
    ):
        role = None if place == folder else unquote(place.name)
        reader = EventAccumulator(str(place), size_guidance={TENSORS: 0})
        reader.Reload()
        for tag in reader.Tags()["tensors"]:
            kind = reader.SummaryMetadata(tag).plugin_data.plugin_name
            for event in reader.Tensors(tag):
                _add(
                    contents,
                    configs,
                    role,
                    (kind, tag, event.step),
                    make_ndarray(event.tensor_proto),
                    event.wall_time,
                )
    return Contents(
        contents.scalars,
        contents.distributions,
        contents.rollouts,
        contents.evaluations,
        flat_configs(configs.items()),
    )


def _add(contents, configs, role, where, value, wall_time) -> None:
    kind, tag, step = where
    key = f"{role}/{tag}" if role else tag
    if kind == "scalars":
        contents.scalars.append(
            HeldScalar(key, step, value.item(), round(wall_time * 1000))
        )
    elif kind == "histograms":
        if value.size:
            count = int(value[:, 2].sum())
            contents.distributions.append(
                HeldDistribution(key, step, value[0][0], value[-1][1], count)
            )
    else:
        text = value.item().decode()
        if tag == "config":
            configs[role] = json.loads(text.strip("`\n"))
            return
        facts = json.loads(text.splitlines()[0].strip("`"))
        if tag.endswith("_late"):
            if facts["value"] is not None:
                contents.evaluations.append(
                    (facts["id"], facts["name"], facts["value"])
                )
        else:
            messages = len(re.findall(r"(?m)^\*\*\w+\*\*: ", text))
            contents.rollouts.append(
                HeldRollout(facts["id"], facts["reward"], messages)
            )


class TestWriter(WriterContract):
    target = "otel_bridge_tensorboard:exporter"
    keeps_status = False

    @pytest.fixture
    def exporter(self) -> Exporter:
        import otel_bridge_tensorboard

        return otel_bridge_tensorboard.exporter

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {"OTEL_BRIDGE_TENSORBOARD_DIR": str(tmp_path / "tensorboard")}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        return lambda run: shown(tmp_path / "tensorboard" / run.id)


@pytest.mark.long
class TestConformance(ConformanceSuite):
    target = "otel_bridge_tensorboard:exporter"
    keeps = KeptKinds(status=False)

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {"OTEL_BRIDGE_TENSORBOARD_DIR": str(tmp_path / "tensorboard")}

    @pytest.fixture
    def read(self, tmp_path: Path) -> ReadShown:
        return lambda run: Shown(shown(tmp_path / "tensorboard" / run.id))


def test_roles_are_folders_of_their_own_and_the_bytes_are_one_run(
    tmp_path: Path,
) -> None:
    from otel_bridge_tensorboard import exporter

    from otel_bridge.testing import deliver, samples
    from otel_bridge.testing.memory import MemoryTable

    run = samples.run_info(tmp_path, "a run")
    settings = exporter.read_settings({}, tmp_path)
    writer = exporter.open(run, settings, MemoryTable(tmp_path / "memory"))
    deliver(
        writer,
        samples.placed(
            [samples.row(1, role=role) for role in ("trainer", "../up", None)]
        ),
    )
    writer.close()

    folder = tmp_path / "tensorboard" / run.id
    assert sorted(str(file.parent.relative_to(folder)) for file in folder.rglob("events*")) == [
        "%2E%2E%2Fup", ".", "trainer"]  # fmt: skip
    assert settings.view(RunInfo(run.id, run.project, run.name, run.folder)).endswith(
        run.id
    )


@pytest.mark.slow
def test_it_is_installed_by_pip_and_chosen_by_its_name(tmp_path: Path) -> None:
    site, copied = tmp_path / "site", tmp_path / "exporter_tensorboard"
    copied.mkdir()
    for name in FILES:
        (copied / name).write_bytes((PLUGIN / name).read_bytes())
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*install, "--target", str(site), str(copied)],
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    env = environment(
        tmp_path, OTEL_BRIDGE_EXPORTERS="tensorboard", PYTHONPATH=str(site)
    )

    done = call(
        [sys.executable, str(ROOT / "examples/train.py")], cwd=tmp_path, env=env
    )

    ended(tmp_path / ".otel-bridge")
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert (done.returncode, len(shown(folder).scalars)) == (0, 200), done.stderr
