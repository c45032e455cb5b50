"""Records what Trinity-RFT logs, by a monitor that the configuration names by its class path.

.. code-block:: yaml

    monitor:
      monitor_type: otel_bridge.adapters.trinity.OtelBridgeMonitor

Explorer and trainer each have a monitor, in their own processes. Both belong to one run, as two
roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import (
    FrameworkRun,
    RunNames,
    checked_arguments,
    guarded,
)
from otel_bridge.emit.process_end import status_now
from otel_bridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    class Monitor:
        """Declares the members of ``trinity.utils.monitor.Monitor`` that this adapter uses."""

        def __init__(
            self, project: str, name: str, role: str, config: Any = None
        ) -> None: ...

        def format_data_str(self, data: dict[str, Any], step: int) -> str:
            """Return the line that Trinity's monitors print for *data*."""
            ...

    get_logger: Callable[..., Any]
else:
    Monitor = framework_class("trinity.utils.monitor:Monitor", "trinity-rft>=0.6")
    get_logger = framework_class("trinity.utils.log:get_logger", "trinity-rft>=0.6")

_ARGUMENTS = (
    "exporters",
    "tags",
    "notes",
    "entity",
    "job_type",
    "dir",
    "system_metrics",
)
"""Arguments of ``otel_bridge.init()`` that are shown to users of Trinity."""


class OtelBridgeMonitor(Monitor):
    """Records what one role of Trinity logs. No method raises.

    Args:
        project: Project.
        group: Group of runs.
        name: Name of the run, which all roles share.
        role: Role of this process.
        config: Trinity's whole configuration; its ``monitor.monitor_args`` are arguments of ``otel_bridge.init()``.
    """

    def __init__(
        self, project: str, group: str, name: str, role: str, config: Any = None
    ) -> None:
        super().__init__(project, name, role, config)
        self._role = role
        self._console: Any = get_logger(__name__, in_ray_actor=True)
        names = RunNames(project, name, role, None, _arguments(group, config))
        self._recording = FrameworkRun("Trinity-RFT", names, config)
        self._recording.begin()

    @guarded
    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:  # noqa: ARG002, FBT  # the signature
        """Record one row, and print it as Trinity's own monitors do.

        A failure of either is counted as ``adapter_failed``.
        """
        run = self._recording.begin()
        # Explorer and trainer count steps of their own, so each needs an axis, in any run.
        run.log(data, step, role=run.role or self._role)
        self._console.info(self.format_data_str(data, step))

    @guarded
    def log_table(self, table_name: str, experiences_table: Any, step: int) -> None:
        """Record a data frame: rollouts when it has columns of prompts and responses, else a table of one row.

        Cells that cannot be recorded are counted as ``not_captured`` with their column, a table
        that cannot be read as ``adapter_failed``.
        """
        from otel_bridge.capture.tables import RolloutTable, split_of  # noqa: PLC0415  # only the trainer has tables
        from otel_bridge.emit.media.values import Table  # noqa: PLC0415

        run = self._recording.begin()
        role = run.role or self._role
        # Missing values of pandas are empty cells.
        cells = experiences_table.to_numpy(dtype=object).tolist()
        table = RolloutTable.of(list(experiences_table.columns), cells)
        if table is None:
            run.log({table_name: Table(dataframe=experiences_table)}, step, role=role)
            return

        def count(column: str, kind: str) -> None:
            run.count_drop("not_captured", key=f"{table_name}: {column} ({kind})")

        for rollouts in table.rollouts(cells, count):
            own_step = step if rollouts.step is None else rollouts.step
            run.log_generations(
                **rollouts.columns, step=own_step, split=split_of(table_name), role=role
            )

    def close(self) -> None:
        """End this role's part of the run. Trinity calls this more than once, and after a constructor that failed.

        Only the first call waits for delivery, as `Run.finish` does.
        """
        recording: FrameworkRun | None = getattr(self, "_recording", None)
        if recording is not None:
            recording.finish(status_now())

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return the ``monitor_args`` of a configuration that gives none."""
        return dict.fromkeys(_ARGUMENTS)


def _arguments(group: str | None, config: Any) -> dict[str, Any]:
    """Return arguments of ``init()``; an unknown one is named on stderr and ignored.

    Those that are ``None`` are left out: Trinity fills in `OtelBridgeMonitor.default_args`.
    """
    from otel_bridge.emit.console import notify  # noqa: PLC0415

    monitor_args: Mapping[str, Any] = (
        getattr(getattr(config, "monitor", None), "monitor_args", None) or {}
    )
    arguments: dict[str, Any] = {"group": group or None}
    for name, value in monitor_args.items():
        if value is None:
            continue
        try:
            # One by one: an unknown argument costs only itself.
            arguments |= checked_arguments({name: value})
        except ConfigError as exc:
            notify(
                f"Trinity-RFT: monitor.monitor_args: {exc}; it is ignored", always=True
            )
    return arguments
