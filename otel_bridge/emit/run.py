"""Defines `Run`, which ``otel_bridge.init()`` returns. No method raises.

Only what a signal handler of the program raises meanwhile passes through. Only `flush` and
`finish` wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.content.user_function import count_refused_with
from otel_bridge.emit import console
from otel_bridge.emit.arguments import (
    DEFAULT_FINISH_S,
    DEFAULT_FLUSH_S,
    INTERNAL_ERROR,
    EndStatus,
    counts_unknown,
    role_of,
    seconds_of,
    status_of,
)
from otel_bridge.emit.bridge_process.flush import DeliveryWaiter, FlushOutcome
from otel_bridge.emit.config.snapshot import RolloutOptions, RunStart
from otel_bridge.emit.config.tracker_ids import tracker_run_id
from otel_bridge.emit.phases.phase import Phase, phase_of
from otel_bridge.emit.process_end import status_after
from otel_bridge.emit.recorded_facts import RecordedFacts
from otel_bridge.emit.recording.process_segment import Checkpoint
from otel_bridge.emit.recording.recorder import Recorder
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.report import Report, read_report

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import RolloutTracer
    from otel_bridge.emit.encode.reductions import Reduction
    from otel_bridge.emit.rollouts.live import LiveRollout
    from otel_bridge.emit.rollouts.rollout import Rollout


class Run(RecordedFacts):
    """Records this process's part of a training job; `otel_bridge.init` returns it.

    Thread-safe; a forked child may continue to use it. As a context manager it ends the run, as
    ``failed`` after an exception. When nothing is recorded, every method still works.
    """

    def __init__(self, facts: RunStart, recorder: Recorder | None) -> None:
        """Prepare a run.

        Args:
            facts: How the run was begun.
            recorder: Appends the records; ``None`` when nothing is recorded.
        """
        super().__init__(facts, recorder)
        self._ended = False
        self._before_end: list[Callable[[Run], None]] = []
        self._rollout_options: RolloutOptions | None = None
        self._live_tracer: RolloutTracer | None = None
        if recorder is not None:
            # Saves one call per row. The method `log` below is used by runs that record nothing,
            # and documents it.
            self.log = recorder.log_row  # type: ignore[method-assign]

    # --- which run --------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """Return whether the run records.

        ``False`` with the exporter ``none`` and after the end of the run.
        """
        return self._recorder is not None and not self._ended

    @property
    def urls(self) -> dict[str, str]:
        """Return the address of the run by exporter, for the addresses that are known so far.

        Empty before a bridge has opened the run in a tracker: some addresses only the tracker
        knows.
        """
        report = self._report()
        if report is None:
            return {}
        return {
            name: exporter.url
            for name, exporter in report.exporters.items()
            if exporter.url
        }

    @counts_unknown
    def id_in(self, exporter: str) -> str | None:
        """Return the id that the run has in a tracker; ``None`` while the id is not known.

        ``None`` for good for an exporter without ids, such as ``file``.
        The call does not wait. MLflow assigns the id when the first row or rollout is written, so
        that the id is known after `flush`.

        Args:
            exporter: Name of the exporter, e.g. ``"mlflow"``.
        """
        identity = self.facts.identity
        return tracker_run_id(
            exporter,
            self.id,
            self.facts.env,
            self._report(),
            node_rank=identity.node_rank,
        )

    # --- rows and config --------------------------------------------------------------------------

    @counts_unknown
    def log(
        self,
        values: Mapping[str, object] | None = None,
        step: int | None = None,
        commit: bool | None = True,
        *,
        role: str | None = None,
        time_unix_ns: int | None = None,
        reduce: Mapping[str, Reduction] | None = None,
    ) -> None:
        """Record one row. Once this returns, the row survives a kill of this process.

        In a signal handler that interrupts another call, a row is appended when that call goes on,
        or by `finish`. Rows of ranks above 0 are ignored unless ``OTEL_BRIDGE_RANKS`` is ``all`` or
        ``merge``.

        Args:
            values: Numbers by key. Nested dicts are flattened with ``/``. Arrays and lists of
                numbers become distributions. Any other value is dropped and counted by its type
                (``none``, ``text``, ``object`` …), the rest of the row is recorded.
            step: Step of the role; ``None`` for its last step in this process + 1, from 0.
            commit: As in W&B: after ``False``, the next call without a step has the same step.
            role: Another role than the run's own.
            time_unix_ns: Wall time of a row that was logged before, e.g. in an import; ``None`` for
                now.
            reduce: By key, with ``OTEL_BRIDGE_RANKS=merge``, the value shown for all ranks:
                ``"mean"`` (default), ``"sum"``, ``"min"``, ``"max"``, or ``("mean", weight)`` with
                the weight of this rank.
        """
        # Of runs that record nothing; others have `Recorder.log_row` in its place (`__init__`).

    # --- rollouts ---------------------------------------------------------------------------------

    @counts_unknown
    def rollout(self, /, **fields: object) -> AbstractContextManager[LiveRollout]:
        """Open a live rollout: model and tool calls within the ``with`` block become its children.

        It never raises: where it cannot be opened, which is counted as ``internal_error``, the
        block runs and nothing of it is recorded.

        Args:
            fields: Any field of `Rollout` (``step``, ``group``, ``sample``, ``split``,
                ``policy_version``, …), and ``role``; other keys become metadata.

        Returns:
            The rollout, a `LiveRollout`, as a context manager. An exception of the block passes
            through.
        """
        try:
            from otel_bridge.emit.rollouts.live import LiveRollout  # noqa: PLC0415  # brings the OTel API

            return LiveRollout(self, fields)
        except any_error_but_signals():
            # Code of the user's fields, or no file can be opened for the import.
            self.count_drop(INTERNAL_ERROR)
            # The program's block runs all the same, with a stand-in that records nothing.
            return cast("LiveRollout", _UnopenedRollout())

    @counts_unknown
    def log_rollouts(
        self,
        finished: Iterable[Rollout | Mapping[str, Any]] | None = None,
        step: int | None = None,
        *,
        split: str | None = None,
        role: str | None = None,
        state: str | None = None,
    ) -> None:
        """Record finished rollouts; only those that are kept for their step leave the process.

        What is not a rollout is counted as ``rollout_no_mapping``, a kept one that raises when it
        is read as ``rollout_unreadable``. If iterating over *finished* raises, nothing of the call
        is recorded, which is counted as ``internal_error``.

        Args:
            finished: `Rollout` objects, or mappings with its fields; other keys become metadata.
            step: The consuming step of rollouts that name none; ``None`` for the role's last step.
            split: Split of rollouts that name none.
            role: Another role than the run's own.
            state: Why the trainer does not use them, e.g. ``filtered``: they count under this name,
                apart from the others of their split.
        """
        from otel_bridge.emit.rollouts.batch import log_rollouts  # noqa: PLC0415  # few programs have rollouts

        log_rollouts(self, finished, step=step, split=split, role=role, state=state)

    @counts_unknown
    def log_generations(
        self,
        /,
        prompts: Any = None,
        responses: Any = None,
        rewards: Any = None,
        **columns: Any,
    ) -> None:
        """Record finished rollouts from parallel lists, with one value for each sample.

        Any list may be missing, short, or hold ``None``. Without a list of prompts the rollouts
        have none; an empty list gives no rollouts. One value in place of a list applies to all
        samples. If reading a list raises, nothing of the call is recorded, which is counted as
        ``internal_error``.

        Args:
            prompts: Texts or messages.
            responses: Texts or messages.
            rewards: Numbers, a list of numbers for each sample, or ``{name: list}``.
            columns: ``groups``, ``ids``, ``policy_versions``, ``advantages``, ``finish_reasons``,
                ``errors``, ``metadata``, …; for the whole call ``step``, ``split``, ``role``,
                ``model``. The reference of the documentation has all of them. An unknown name is
                counted as ``rollout_unknown_column``.
        """
        from otel_bridge.emit.rollouts.generations import log_generations  # noqa: PLC0415

        log_generations(
            self, prompts=prompts, responses=responses, rewards=rewards, **columns
        )

    @counts_unknown
    def log_reward(
        self,
        rollout_id: Rollout | str | None = None,
        value: object = None,
        name: str = "reward",
        explanation: str | None = None,
        *,
        role: str | None = None,
        step: int | None = None,
    ) -> None:
        """Record an evaluation of a rollout, before or after that rollout is recorded, from any process.

        One without an id is counted as ``evaluation_id``, one without a usable value as
        ``evaluation_value``.

        Args:
            rollout_id: The rollout, your own id of it, or its trace id.
            value: A number; a text is a label.
            name: ``reward``, ``advantage``, or a part's name.
            explanation: Reason for the value.
            role: Role of the rollout, when it is not this run's.
            step: Step of the rollout, when known.
        """
        from otel_bridge.emit.rollouts.events import EvaluationContext, log_values  # noqa: PLC0415

        log_values(
            self,
            [(rollout_id, value)],
            EvaluationContext(name, role, step, explanation),
        )

    @counts_unknown
    def log_rewards(
        self,
        values: Mapping[str, object] | None = None,
        name: str = "reward",
        *,
        role: str | None = None,
        step: int | None = None,
    ) -> None:
        """Record one evaluation for each of many rollouts; see `log_reward`.

        Anything but a mapping is counted as ``evaluation_not_a_mapping``.

        Args:
            values: Numbers or labels by rollout id.
            name: ``reward``, ``advantage``, or a part's name.
            role: Role of the rollouts, when it is not this run's.
            step: Step of the rollouts, when known.
        """
        from otel_bridge.emit.rollouts.events import EvaluationContext, log_values  # noqa: PLC0415

        if isinstance(values, Mapping):
            log_values(self, list(values.items()), EvaluationContext(name, role, step))
        else:
            self.count_drop("evaluation_not_a_mapping")

    @counts_unknown
    def train_on(
        self,
        step: int | None = None,
        rollouts: object = None,
        *,
        unused: Mapping[str, object] | None = None,
        role: str | None = None,
    ) -> None:
        """Record which rollouts a training step consumed: any process's, kept or sampled out, also more than once.

        Trackers show the steps on each rollout, and one row a step: staleness, age, number of uses,
        reward of what was consumed and of what was generated. A rollout is known by its `id`, so
        each needs one: others are counted as ``train_rollout_id``, and what names no rollouts as
        ``train_no_rollouts``.

        Args:
            step: The training step; ``None`` for that of the role's next row.
            rollouts: `Rollout` objects, live rollouts, mappings with ``id``, ids, or the parallel
                lists of `log_generations` as a mapping with ``ids``.
            unused: Reason to rollouts that are left out for good: ``{"stale": […], "filtered":
                […]}``.
            role: Another role than the run's own.
        """
        from otel_bridge.emit.lineage.train_on import train_on  # noqa: PLC0415  # rare: not on the way of `import`

        train_on(self, step, rollouts, unused=unused, role=role_of(role))

    @counts_unknown
    def annotate(
        self,
        rollouts: object = None,
        step: int | None = None,
        *,
        role: str | None = None,
        decode: Callable[[Any], Any] | None = None,
        **streams: object,
    ) -> None:
        """Record values of each sampled token of rollouts: any process's, kept or sampled out, before or after them.

        Trackers show one row a step over all tokens: how far engine and trainer differ, entropy,
        what was masked. What cannot be used is counted as ``token_…``; nothing is recorded without
        a rollout that has an id, or without a stream of numbers.

        Args:
            rollouts: A `Rollout` or an id; many of them; or parallel lists as a mapping with
                ``ids``.
            step: The training step; ``None`` for that of the role's next row.
            role: Another role than the run's own.
            decode: Function from token ids to text, for the token view.
            streams: ``logprobs`` (of the engine), ``trainer_logprobs``, ``entropies``,
                ``advantages``, ``is_masked``, ``is_clipped``, ``token_ids``, ``tokens`` (texts),
                ``loss_mask``, or any other name. For one rollout an array or list with an entry for
                each token, ``None`` for no value; for many one of these each.
        """
        from otel_bridge.emit.tokens.annotate import annotate  # noqa: PLC0415  # rare, as `train_on`

        annotate(self, rollouts, streams, step=step, role=role_of(role), decode=decode)

    # --- phases -----------------------------------------------------------------------------------

    @counts_unknown
    def phase(
        self, name: str = "phase", step: int | None = None, *, role: str | None = None
    ) -> Phase:
        """Measure a phase of a step: ``with run.phase("generate", step=7):``, or as a decorator.

        Phases of all ranks are recorded. Trackers show one row a step over all ranks.

        Args:
            name: Name of the phase; a name of few different texts, as it becomes a key of metrics.
            step: Step of the phase; ``None`` for that of the phase around it, else for that of the
                role's next row.
            role: Another role than the run's own.
        """
        return phase_of(self, name, step, role)

    # --- for the modules of emission --------------------------------------------------------------

    def append(
        self,
        signal: int,
        payload: bytes,
        *,
        time_unix_ns: int | None = None,
        whole: bool = False,
    ) -> None:
        """Append one encoded record; a *whole* one is a request with its own resources.

        Thread-safe, never raises. After the end of the run it is counted as ``ended``.
        """
        if self._recorder is not None:
            self._recorder.append(signal, payload, time_unix_ns, whole=whole)

    def count_after_end(self) -> None:
        """Count a record that comes after the end of the run, or during it; the first one is reported."""
        if self._recorder is not None:
            self._recorder.count_after_end()

    @property
    def has_ended(self) -> bool:
        """Return whether this process's part of the run has ended."""
        return self._ended

    @property
    def rollout_options(self) -> RolloutOptions:
        """Return the options of rollouts and of their content, as they were at ``init()``.

        That has checked them. They are read at the first rollout: most runs have none.
        """
        if self._rollout_options is None:
            count_refused_with(self.count_drop)
            self._rollout_options = RolloutOptions.read(self.facts.env)
        return self._rollout_options

    @property
    def live_tracer(self) -> RolloutTracer:
        """Return the tracer of live rollouts, created at the first one."""
        if self._live_tracer is None:
            from otel_bridge.emit.rollouts.live_spans import LiveTracer  # noqa: PLC0415  # imports the OTel SDK

            self._live_tracer = LiveTracer(self)
        return self._live_tracer

    @property
    def recorder(self) -> Recorder | None:
        """Return what appends the run's records; ``None`` when nothing is recorded."""
        return self._recorder

    def next_event_seq(self) -> int:
        """Return the number of this process's next event; 0 when nothing is recorded."""
        if self._recorder is None:
            return 0
        return self._recorder.next_event_seq()

    def last_step(self, role: str | None = None) -> int | None:
        """Return the last step of *role* (default: the run's own) in this process.

        ``None`` before its first, and when nothing is recorded.
        """
        if self._recorder is None:
            return None
        return self._recorder.last_step(role or self.role)

    def next_step(self, role: str | None = None) -> int:
        """Return the step of the next row of *role* (default: the run's own) that names none.

        0 when nothing is recorded.
        """
        if self._recorder is None:
            return 0
        return self._recorder.next_step(role or self.role)

    def after_fork(self) -> None:
        """Begin the child's own part of the run in a forked child."""
        if self._recorder is not None:
            self._recorder.after_fork()

    # --- end --------------------------------------------------------------------------------------

    @counts_unknown
    def flush(self, timeout_s: float = DEFAULT_FLUSH_S) -> bool:
        """Wait until everything logged so far is written; return whether it is.

        Trackers that are blocked or failing are not waited for. True at once where nothing was
        logged, false when *timeout_s* is over, or when no bridge can be started; so too where none
        may be, as records are only kept (``OTEL_BRIDGE_OFFLINE``, no exporter).

        Args:
            timeout_s: Longest wait in seconds, 10 by default.
        """
        timeout_s = seconds_of(timeout_s, DEFAULT_FLUSH_S)
        recorder = self._recorder
        if recorder is None:
            return True
        checkpoint = recorder.flush()
        return (
            checkpoint is None
            or self._wait(recorder, checkpoint, timeout_s, end=False).written
        )

    @counts_unknown
    def finish(
        self,
        status: EndStatus | str | int | None = None,
        timeout_s: float = DEFAULT_FINISH_S,
        *,
        exit_code: int | None = None,
    ) -> None:
        """End this process's part of the run, once; a second call does nothing.

        Wait at most *timeout_s* and report what remains. What is logged afterwards is counted as
        ``ended``.

        Args:
            status: ``finished`` (the default), ``failed`` or ``killed``, a tracker's word for one
                (``success``, ``aborted``), or an exit code. Anything else counts as ``failed``.
            timeout_s: Longest wait for delivery in seconds, 30 by default. What is not delivered by
                then stays on the disk, and one printed line names what delivers it.
            exit_code: *status* by the name that it has in W&B.
        """
        end = status_of(exit_code if status is None else status)
        timeout_s = seconds_of(timeout_s, DEFAULT_FINISH_S)
        if (wait := self.end_part(end)) is not None:
            wait(timeout_s)

    def call_before_end(self, call: Callable[[Run], None]) -> None:
        """Call *call* before this process's part ends; the one added last is called first.

        It must not raise: the end would not be recorded, and the process would count as killed.
        """
        self._before_end.append(call)

    def end_part(self, status: EndStatus) -> Callable[[float], None] | None:
        """Record the end of this process's part, once.

        Return what waits for its delivery at most some seconds. ``None`` when nothing is to be
        awaited: it has ended before, records nothing, or is of a forked child.
        """
        recorder = self._recorder
        if self._ended:
            return None
        # First, so that a call before the end that ends the run itself does not come here again.
        self._ended = True
        checkpoint = None
        try:
            for call in reversed(self._before_end):
                call(self)
        finally:
            # An interrupt meanwhile passes through, and no later call comes here again: without an
            # end the process would count as killed.
            if recorder is not None:
                checkpoint = recorder.end(status)
        # A forked child does not wait: its records are in its segment, which the bridge delivers.
        if recorder is None or checkpoint is None or recorder.forked:
            return None
        return partial(self._report_end, recorder, checkpoint, status)

    def _report_end(
        self,
        recorder: Recorder,
        checkpoint: Checkpoint,
        status: EndStatus,
        timeout_s: float,
    ) -> None:
        """Wait for the delivery of what the end is part of, and print what was delivered and what remains.

        A `KeyboardInterrupt` ends the wait, and passes through: all records are on the disk.
        """
        outcome = self._wait(recorder, checkpoint, timeout_s, end=True)
        remains = (*outcome.remains, *self._what_next(recorder, outcome))
        console.notify(
            *console.ended(
                self.facts.identity,
                status,
                checkpoint.rows,
                outcome.report,
                remains,
                printed_drops=recorder.drops.last_printed,
            )
        )

    def _what_next(self, recorder: Recorder, outcome: FlushOutcome) -> list[str]:
        """Return lines on what happens to records that are not delivered, and what to do.

        Empty if all are.
        """
        folder = recorder.folder
        lines: list[str] = []
        if not outcome.written or outcome.in_state("retrying"):
            delivered_by = recorder.starter.goes_on()
            report = self._report()
            chosen = bool(self.facts.choice.names or (report and report.exporters))
            lines.append(console.rest_is_kept(folder, delivered_by, chosen=chosen))
            # One command delivers all that remains, also what blocked exporters lack.
            if delivered_by is None:
                return lines
        blocked = outcome.in_state("blocked")
        if blocked:
            lines.append(console.blocked_is_kept(folder.base, blocked))
        return lines

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(status_after(error))

    def _report(self) -> Report | None:
        """Return the bridge's last report.

        ``None`` before the first, or when nothing is recorded.
        """
        if self._recorder is None:
            return None
        return read_report(self._recorder.folder)

    def _wait(
        self, recorder: Recorder, checkpoint: Checkpoint, timeout_s: float, *, end: bool
    ) -> FlushOutcome:
        """Wait for delivery up to *checkpoint*, and with *end* for the run's own end.

        Return the outcome. The end of a run that a launcher keeps open is not awaited, except where
        the run ends with its own processes.
        """
        facts = self.facts
        waiter = DeliveryWaiter(
            recorder.folder,
            recorder.starter,
            facts.choice.names,
            checkpoint,
            end=end,
            launched=not facts.ends_by_itself,
        )
        return waiter.wait(timeout_s)


class _UnopenedRollout:
    """Takes the place of a live rollout that could not be opened: it and all that is called on it record nothing."""

    recording = False

    def __getattr__(self, name: str) -> _UnopenedRollout:
        # Python asks for these itself, to copy or to pickle an object, and takes any answer.
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_arguments: object, **_keywords: object) -> _UnopenedRollout:
        return self

    def __enter__(self) -> _UnopenedRollout:
        return self

    def __exit__(self, *_error: object) -> None:
        return None
