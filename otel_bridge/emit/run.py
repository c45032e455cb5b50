"""`Run`: what ``otel_bridge.init()`` returns. No method raises; only `flush` and `finish` wait for trackers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from otel_bridge import semconv
from otel_bridge.emit import lines
from otel_bridge.emit.config_values import config_of
from otel_bridge.emit.elsewhere import endpoint_for_others
from otel_bridge.emit.exporters import Choice
from otel_bridge.emit.identity import Identity
from otel_bridge.emit.run_settings import RunSettings
from otel_bridge.emit.sink import Mark, Sink
from otel_bridge.emit.tracker_ids import tracker_run_id
from otel_bridge.emit.waiting import Outcome, Waiting
from otel_bridge.journal.report import Report, read_report
from otel_bridge.settings import RANKS

if TYPE_CHECKING:
    from otel_bridge.emit.live import LiveRollout
    from otel_bridge.emit.rollout import Rollout

EndStatus: TypeAlias = Literal["finished", "failed", "killed"]
_STATUSES: Final = ("finished", "failed", "killed")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run was begun with.

    Attributes:
        identity: Which run, and who speaks.
        choice: The exporters.
        settings: Every setting, read once.
        env: Environment it was begun in.
        cwd: Working folder it was begun in.
        child_environment: What children and workers elsewhere are told.
    """

    identity: Identity
    choice: Choice
    settings: RunSettings
    env: Mapping[str, str]
    cwd: Path
    child_environment: Mapping[str, str]


class Run:
    """One training job, as this process sees it. Thread-safe; a forked child may go on using it.

    Args:
        facts: What it was begun with.
        sink: Where its records go; ``None``: nothing is recorded and everything works.
    """

    def __init__(self, facts: RunFacts, sink: Sink | None) -> None:
        self.facts = facts
        self._sink = sink
        self._ended = False
        self.on_end: Callable[[Run], None] | None = None
        # Rows of rank 0 only, unless all are asked for: means over one rank are not shown as if over all.
        all_ranks = facts.identity.rank == 0 or facts.settings.read(RANKS) == "all"
        if sink is not None:
            # One call less for each row; `log` below stands for runs that record nothing, and for the reader.
            self.log = sink.row if all_ranks else sink.pass_row  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"<otel_bridge.Run {self.project}/{self.name} id={self.id} role={self.role}>"

    # --- which run ----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Run id, the same in every process and after a restart."""
        return self.facts.identity.id

    @property
    def name(self) -> str:
        """Display name."""
        return self.facts.identity.name

    @property
    def project(self) -> str:
        """Project (MLflow: experiment)."""
        return self.facts.identity.project

    @property
    def role(self) -> str | None:
        """Who speaks in this process."""
        return self.facts.identity.role

    @property
    def settings(self) -> RunSettings:
        """Every setting as it stood at ``init()``."""
        return self.facts.settings

    @property
    def recording(self) -> bool:
        """False when no exporter was chosen, or the run has ended."""
        return self._sink is not None and not self._ended

    @property
    def urls(self) -> dict[str, str]:
        """Exporter to the address of the run, as far as they are known by now."""
        report = self._report()
        return {} if report is None else {name: one.url for name, one in report.exporters.items() if one.url}

    def id_in(self, exporter: str) -> str | None:
        """Return the id that the run has in a tracker, e.g. ``"mlflow"``; ``None`` while it is not known.

        Waits for nothing: MLflow names its runs itself, and it opens one when the first row or rollout is written, so
        that it is known after `flush`.
        """
        identity = self.facts.identity
        return tracker_run_id(exporter, self.id, self.facts.env, self._report(), node_rank=identity.node_rank)

    def env(self, role: str | None = None) -> dict[str, str]:
        """Return the variables that put a worker elsewhere into this run, e.g. for Ray's ``runtime_env``.

        With an endpoint they hold its address and token: do not print them.
        """
        told = dict(self.facts.child_environment)
        if told:
            told |= endpoint_for_others(self.facts.env, self.facts.choice.names)
        if role is not None:
            told["OTEL_BRIDGE_ROLE"] = role
        return told

    # --- rows and config ----------------------------------------------------------------------------------------------

    def log(self, values: Mapping[str, object], step: int | None = None, *, role: str | None = None) -> None:
        """Record one row; when this returns, a kill of this process loses it no more.

        Of ranks above 0 rows are taken with ``OTEL_BRIDGE_RANKS=all`` only.

        Args:
            values: Numbers by key. Nested dicts are flattened with ``/``; arrays and lists of numbers become
                distributions; anything else is left out and counted.
            step: Step of the role; ``None``: its last one in this process + 1, from 0.
            role: Another role than the run's own.
        """

    def log_config(self, config: object) -> None:
        """Record hyperparameters, of rank 0: a nested mapping, dataclass or namespace. Secrets are struck out."""
        if self._sink is None or self.facts.identity.rank:
            return
        try:
            body = config_of(config, self.count_drop)
        except Exception:  # noqa: BLE001  # code of the user's own objects
            self.count_drop("internal_error")
            return
        if body:
            self._sink.event(semconv.EVENT_CONFIG, {}, body)

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def rollout(self, **fields: object) -> AbstractContextManager[LiveRollout]:
        """Open a live rollout: what is called inside becomes its children.

        Args:
            fields: Any field of `Rollout` (``step``, ``group``, ``sample``, ``split``, ``policy_version``, …), and
                ``role``; other keys become metadata.
        """
        from otel_bridge.emit import rollouts  # noqa: PLC0415  # only programs with rollouts pay for it

        return rollouts.open_rollout(self, **fields)

    def log_rollouts(
        self,
        finished: Iterable[Rollout | Mapping[str, Any]] | None,
        *,
        step: int | None = None,
        split: str | None = None,
        role: str | None = None,
    ) -> None:
        """Record finished rollouts; at most the cap of a step leaves the process.

        Args:
            finished: `Rollout` objects, or mappings with its fields; other keys become metadata.
            step: The consuming step of those that name none; ``None``: the role's last.
            split: Split of those that name none.
            role: Another role than the run's own.
        """
        from otel_bridge.emit import rollouts  # noqa: PLC0415

        rollouts.log_rollouts(self, finished, step=step, split=split, role=role)

    def log_generations(self, **columns: Any) -> None:
        """Record finished rollouts given as parallel lists (``prompts=``, ``responses=``, ``rewards=``, …)."""
        from otel_bridge.emit import rollouts  # noqa: PLC0415

        rollouts.log_generations(self, **columns)

    def log_reward(
        self,
        rollout_id: str,
        value: object,
        name: str = "reward",
        explanation: str | None = None,
        *,
        role: str | None = None,
        step: int | None = None,
    ) -> None:
        """Record a value of a rollout that is finished or will come, from any process.

        Args:
            rollout_id: The user's id of the rollout, or its trace id.
            value: A number; a text is a label.
            name: ``reward``, ``advantage``, or a part's name.
            explanation: Why.
            role: Role of the rollout, when it is not this run's.
            step: Step of the rollout, where known.
        """
        from otel_bridge.emit import rollouts  # noqa: PLC0415

        rollouts.log_reward(self, rollout_id, value, name=name, explanation=explanation, role=role, step=step)

    def log_rewards(
        self, values: Mapping[str, object], name: str = "reward", *, role: str | None = None, step: int | None = None
    ) -> None:
        """Record one value for each of many rollouts, by rollout id; as `log_reward`."""
        from otel_bridge.emit import rollouts  # noqa: PLC0415

        rollouts.log_rewards(self, values, name=name, role=role, step=step)

    # --- for the modules of emission ----------------------------------------------------------------------------------

    def append(self, signal: int, payload: bytes, *, time_unix_ns: int | None = None, whole: bool = False) -> None:
        """Append one encoded record (a *whole* one: a request with its own resources). Thread-safe, never raises."""
        if self._sink is not None:
            self._sink.append(signal, payload, time_unix_ns, whole=whole)

    def count_drop(self, reason: str, n: int = 1) -> None:
        """Count *n* drops by *reason*; said at most once a minute."""
        if self._sink is not None:
            self._sink.count(reason, n)

    def next_event_seq(self) -> int:
        """Return the number of this process's next event."""
        return 0 if self._sink is None else self._sink.next_event_seq()

    def last_step(self, role: str | None = None) -> int | None:
        """Return the last step of *role* (default: the run's own) in this process."""
        return None if self._sink is None else self._sink.last_step(role or self.role)

    def after_fork(self) -> None:
        """Begin anew in a forked child."""
        if self._sink is not None:
            self._sink.after_fork()

    # --- end ----------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all so far is written; true when it is, in every tracker that is neither blocked nor failing."""
        sink = self._sink
        if sink is None:
            return True
        mark = sink.flush()
        return mark is None or self._wait(sink, mark, timeout_s, end=False).written

    def finish(self, status: EndStatus = "finished", timeout_s: float = 30.0) -> None:
        """End this process's part of the run, once; wait at most *timeout_s* and say what remains.

        Args:
            status: ``finished``, ``failed`` or ``killed``.
            timeout_s: How long to wait for delivery.
        """
        sink = self._sink
        if self._ended:
            return
        self._ended = True
        if self.on_end is not None:
            self.on_end(self)
        if sink is None:
            return
        mark = sink.end(status if status in _STATUSES else "failed")
        if mark is None or sink.forked:
            return
        outcome = self._wait(sink, mark, timeout_s, end=True)
        remains = outcome.remains
        if not outcome.written:
            remains = (*remains, f"the rest is kept; deliver it with: otel-bridge drain {sink.folder.base}")
        lines.say(lines.ended(self.facts.identity, status, mark.rows, outcome.report, remains))

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        good = kind is None or (isinstance(error, SystemExit) and error.code in {None, 0})
        self.finish("finished" if good else "failed")

    def finish_at_exit(self) -> None:
        """End the run when the interpreter ends: failed after an uncaught exception, else finished."""
        interactive = hasattr(sys, "ps1")
        failed = getattr(sys, "last_value", None) is not None and not interactive
        self.finish("failed" if failed else "finished")

    def _report(self) -> Report | None:
        return None if self._sink is None else read_report(self._sink.folder)

    def _wait(self, sink: Sink, mark: Mark, timeout_s: float, *, end: bool) -> Outcome:
        return Waiting(sink.folder, sink.keeper, self.facts.choice.names, mark, end=end).wait(timeout_s)
