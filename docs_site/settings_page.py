"""Makes the page ``docs/settings.md`` from the declared settings; ``make docs`` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from otel_bridge import exporter, settings
from otel_bridge.settings import Setting

_TRACKERS = ("wandb", "mlflow", "trackio")

_HEAD = """\
# Settings

This page is for you when you look up a variable. It shows the default and the meaning of each. `make docs` generates
the page. `otel-bridge doctor` shows the same table with your values.

* An empty variable counts as unset.
* A value that cannot be parsed is an error at `init()` or at the start of a command.
* Flags are `1` or `0`. Sizes take units (`64MiB`). Times are in seconds. Lists are separated by commas.
* Do not set a variable marked *internal* yourself.

Each tracker's own variables choose its destination: see [exporters.md](exporters.md). The bridge reads variables in
the environment of the process that started it.
"""
_OURS = (*_TRACKERS, "console", "file", exporter.WEBHOOK, exporter.OTLP)
_CONTENT = """\
Every exporter has `OTEL_BRIDGE_<EXPORTER>_MESSAGE_CONTENT`, also one of your own
([rollouts.md](rollouts.md#what-one-tracker-gets)):
"""
_OTLP = """\
## Variables of other tools

otel-bridge also reads these variables:

| for | variables |
|---|---|
| OpenTelemetry | `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`, `OTEL_EXPORTER_OTLP_*` |
| rank and size of the job | `RANK`, `WORLD_SIZE`, `GROUP_RANK`, `SLURM_NODEID` |
| name of the run | `TORCHELASTIC_RUN_ID`, `SLURM_JOB_ID` of batch jobs |
| attempt | `TORCHELASTIC_RESTART_COUNT`, `SLURM_RESTART_COUNT` |
| identity of the run in W&B | `WANDB_{RUN_ID,ENTITY,PROJECT,NAME,RUN_GROUP,TAGS,NOTES,JOB_TYPE,RESUME,SWEEP_ID}` |
| identity of the run in MLflow | `MLFLOW_{RUN_ID,EXPERIMENT_NAME}` |
| identity of the run in Trackio | `TRACKIO_PROJECT`; `TRACKIO_SPACE_ID` (kept; the bridge writes to its own) |

The trackers' own libraries read their credentials. No credential is written into a run folder.
"""


def page() -> str:
    """Return the page as it should be."""
    core = _table(settings.declared())
    trackers = _table(setting for name in _TRACKERS for setting in exporter.load(name).settings)
    content = _table(settings.content_of(name) for name in exporter.available() if name in _OURS)
    return f"{_HEAD}\n{core}\n## Settings of one exporter\n\n{trackers}\n{_CONTENT}\n{content}\n{_OTLP}"


def _table(declared: Iterable[Setting[object]]) -> str:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {_shown(one.default)} | {one.doc} |" for one in declared]
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    if default is None or default in ("", (), {}):
        return "-"
    if isinstance(default, bool):
        return f"`{int(default)}`"
    if isinstance(default, tuple):
        return f"`{','.join(map(str, default))}`"
    if isinstance(default, int) and default >= 1 << 20 and default % (1 << 20) == 0:
        return f"`{default >> 30}GiB`" if default % (1 << 30) == 0 else f"`{default >> 20}MiB`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(page())
