"""The conformance suite as tests: one recorded job, the real bridge, what the tracker's own API shows of it."""

# the name of a test says what it tests
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeAlias

import pytest

from otel_bridge.exporter import RunInfo
from support.conformance.job import WIDE_KEYS, ConformanceJob, recorded_job
from support.conformance.play import lay, play
from support.conformance.truth import KeptKinds, Shown, compare

ReadShown: TypeAlias = Callable[[RunInfo], Shown]
"""What a tracker shows of a run, through its own API."""


class ConformanceSuite:
    """Tests that a tracker shows the same as every other one; a subclass defines `environment` and `read`.

    Attributes:
        target: ``module:attribute`` of the exporter.
        keeps: What the tracker keeps at all.
        kills: Records after which bridges are killed, one bridge each, before the last one ends the work.
        wide_keys: Keys of the job's one very wide row.
    """

    target: ClassVar[str] = ""
    keeps: ClassVar[KeptKinds] = KeptKinds()
    kills: ClassVar[tuple[int, ...]] = (1, 23, 50)
    wide_keys: ClassVar[int] = WIDE_KEYS

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        """Variables that say where the exporter delivers."""
        raise NotImplementedError("define the fixture `environment`")

    @pytest.fixture
    def read(self) -> ReadShown:
        """Return what the tracker shows of a run, through its own API."""
        raise NotImplementedError("define the fixture `read`")

    @pytest.fixture
    def job(self) -> ConformanceJob:
        """The recorded job, as a run of this test alone."""
        return recorded_job(f"recorded-{os.urandom(4).hex()}", wide_keys=self.wide_keys)

    def test_the_recorded_job_is_shown_as_it_was(
        self,
        job: ConformanceJob,
        environment: Mapping[str, str],
        read: ReadShown,
        tmp_path: Path,
    ) -> None:
        folder = lay(job, tmp_path / "runs")

        play(self.target, environment, folder)

        compare(
            read(RunInfo(job.run_id, job.project, job.name, folder.path)),
            job.truth,
            self.keeps,
        )

    def test_the_recorded_job_is_shown_as_it_was_after_bridges_were_killed(
        self, environment: Mapping[str, str], read: ReadShown, tmp_path: Path
    ) -> None:
        job = recorded_job(f"killed-{os.urandom(4).hex()}", wide_keys=20)
        folder = lay(job, tmp_path / "runs")

        for kill_at in self.kills:
            play(self.target, environment, folder, kill_at=kill_at)
        play(self.target, environment, folder)

        compare(
            read(RunInfo(job.run_id, job.project, job.name, folder.path)),
            job.truth,
            self.keeps,
        )
