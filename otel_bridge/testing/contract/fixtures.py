"""What all tests of the contract share: fixtures, switches, a kill."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, TypeAlias

import pytest

from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
)
from otel_bridge.records import (
    Distribution,
    Evaluation,
    Record,
    RolloutRecord,
    Row,
    run_id_of,
)
from otel_bridge.testing.child import kill_writer
from otel_bridge.testing.contents import Contents
from otel_bridge.testing.contract.compare import same, same_scalars
from otel_bridge.testing.delivery import deliver, open_writer
from otel_bridge.testing.memory import MemoryTable

ReadBack: TypeAlias = Callable[[RunInfo], Contents]
"""What a tracker holds of a run, read through its own API."""
Open: TypeAlias = Callable[..., RunWriter]
"""Open a writer of the test's run; keywords change fields of `RunInfo`."""


class ContractFixtures:
    """Provides switches and fixtures; a subclass defines `exporter`, `environment` and `read_back`.

    Attributes:
        target: ``module:attribute`` of the exporter; empty: kills are played by leaving a writer
            behind.
        keeps_status: The tracker shows finished, failed and killed.
        keeps_alerts: Its read-back shows alerts.
        keeps_config: It shows the run's config.
        keeps_rollouts: It shows rollouts.
        keeps_evaluations: It shows evaluations.
        keeps_distributions: It shows distributions with minimum and maximum.
        keeps_stepless: It shows rows without a step.
        keeps_rewound_rows: Two values of one key and step are both there.
        keeps_odd_keys: Every key of `samples.ODD_KEYS` is shown, under whatever name.
    """

    target: ClassVar[str] = ""
    keeps_status: ClassVar[bool] = True
    keeps_alerts: ClassVar[bool] = True
    keeps_config: ClassVar[bool] = True
    keeps_rollouts: ClassVar[bool] = True
    keeps_evaluations: ClassVar[bool] = True
    keeps_distributions: ClassVar[bool] = True
    keeps_stepless: ClassVar[bool] = True
    keeps_rewound_rows: ClassVar[bool] = True
    keeps_odd_keys: ClassVar[bool] = True

    def leaves_open(self, writer: RunWriter) -> bool:  # noqa: ARG002  # for subclasses
        """Return whether the installed tracker shows the run of a closed writer as running."""
        return self.keeps_status

    # --- fixtures ---------------------------------------------------------------------------------
    @pytest.fixture
    def exporter(self) -> Exporter:
        """The exporter under test."""
        raise NotImplementedError("define the fixture `exporter`")

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        """Variables that say where the exporter delivers."""
        raise NotImplementedError("define the fixture `environment`")

    @pytest.fixture
    def read_back(self) -> ReadBack:
        """Return what the tracker holds of a run, through its own API.

        Empty `Contents` for an unknown run.
        """
        raise NotImplementedError("define the fixture `read_back`")

    @pytest.fixture
    def run(self, tmp_path: Path) -> RunInfo:
        """A run of this test alone."""
        # Random too: pytest reuses the names of its folders, and a store may outlive a session.
        name = f"{tmp_path.name}-{os.urandom(4).hex()}"
        run_id = run_id_of("contract", name)
        return RunInfo(
            id=run_id, project="contract", name=name, folder=tmp_path / "runs" / run_id
        )

    @pytest.fixture
    def memory(self, tmp_path: Path) -> WriterMemory:
        """The writer's memory; in a file, so that it outlives a kill."""
        return MemoryTable(tmp_path / "memory.db")

    @pytest.fixture
    def settings(
        self, exporter: Exporter, environment: Mapping[str, str], tmp_path: Path
    ) -> ExporterSettings:
        """Settings of the exporter."""
        return exporter.read_settings(environment, tmp_path)

    @pytest.fixture
    def opened(
        self,
        exporter: Exporter,
        settings: ExporterSettings,
        run: RunInfo,
        memory: WriterMemory,
    ) -> Open:
        """Open a writer of `run` with `memory`; keywords change fields of the run."""
        run.folder.mkdir(parents=True, exist_ok=True)

        def again(**changes: object) -> RunWriter:
            changed = dataclasses.replace(run, **changes)  # type: ignore[arg-type]  # fields of RunInfo by name
            return open_writer(exporter, changed, settings, memory)

        return again

    # --- for the tests ----------------------------------------------------------------------------
    def kill_after(
        self,
        opened: Open,
        records: Sequence[Record],
        run: RunInfo,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        """Write *records*, one a call, and die without a word.

        In a child process killed with SIGKILL when `target` is set; else the writer is just left
        behind.

        Raises:
            AssertionError: The child ended otherwise, as by an error of the writer.
        """
        if not self.target:
            writer = opened()
            durable = writer.durable()
            for record in records:
                # Left without close(): what a writer holds back then is lost, as by a kill.
                deliver(writer, [record], held=durable)
            return
        # One record a call: each call has returned before the kill.
        calls = [[record] for record in records]
        kill_writer(self.target, environment, run, folder / "memory.db", calls)

    def holds(self, contents: Contents, records: Sequence[Record]) -> None:
        """Compare rows, rollouts, distributions and the evaluation of `samples.job`, doubles counted.

        Kinds that the tracker does not keep are left out. Raises `AssertionError` as `same`.
        """
        rows: list[Row] = []
        rollouts: list[RolloutRecord] = []
        evaluations: list[tuple[str, str, float | None]] = []
        for record in records:
            if isinstance(record, Row):
                rows.append(record)
            elif isinstance(record, RolloutRecord):
                rollouts.append(record)
            elif isinstance(record, Evaluation):
                evaluations.append((record.rollout_id, record.name, record.value))
        same_scalars(contents, rows)
        if self.keeps_rollouts:
            self.same_rollouts(contents, rollouts)
        if self.keeps_evaluations:
            same(contents.evaluations, evaluations, "evaluations")
        if self.keeps_distributions:
            self._same_distributions(contents, rows)

    def _same_distributions(self, contents: Contents, rows: Iterable[Row]) -> None:
        """Compare key and step of every distribution, doubles counted.

        Raises `AssertionError` as `same`.
        """
        expected: Counter[tuple[str, int | None]] = Counter()
        for row in rows:
            for key, value in row.values.items():
                if isinstance(value, Distribution):
                    expected[key, row.step] += 1
        actual = Counter(map(attrgetter("key", "step"), contents.distributions))
        same(actual, expected, "distributions")

    def same_rollouts(
        self, contents: Contents, rollouts: Iterable[RolloutRecord]
    ) -> None:
        """Compare id, reward, messages and spans of every rollout, doubles counted.

        A number of messages or spans that the tracker does not show (``None``) fits any. Raises
        `AssertionError` as `same`.
        """
        actual_in_order = sorted(contents.rollouts, key=attrgetter("id"))
        expected_in_order = sorted(rollouts, key=attrgetter("id"))
        same(
            Counter(rollout.id for rollout in actual_in_order),
            Counter(rollout.id for rollout in expected_in_order),
            "rollouts",
        )
        for actual, rollout in zip(actual_in_order, expected_in_order, strict=True):
            same(actual.reward, rollout.reward, f"reward of {rollout.id}")
            same(
                actual.messages in {None, len(rollout.messages)},
                True,
                f"messages of {rollout.id}: {actual.messages}",
            )
            same(
                actual.spans in {None, len(rollout.spans)},
                True,
                f"spans of {rollout.id}: {actual.spans}",
            )
