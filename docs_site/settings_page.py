"""The page ``docs/settings.md``, made of the declared settings; ``make docs`` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from otel_bridge import exporter, settings
from otel_bridge.settings import Setting

_TRACKERS = ("wandb", "mlflow", "trackio")

_HEAD = """\
# Settings

Made of the code by `make docs`; a test fails when it is stale. `otel-bridge doctor` shows the same with the values as
they are. An empty variable is an unset one. What cannot be parsed is an error at `init()` or when a command starts.
Flags are `1` or `0`; sizes take units (`64MiB`, `2g`); times are seconds; lists are parted by commas.

Where a tracker is, its own variables say: see [exporters.md](exporters.md). The bridge reads them, and its own
settings, in the environment of the process that started it.
"""
_OURS = (*_TRACKERS, "console", "file", exporter.WEBHOOK, exporter.OTLP)
_CONTENT = """\
Every exporter, one of your own too, has `OTEL_BRIDGE_<EXPORTER>_MESSAGE_CONTENT`
([rollouts.md](rollouts.md#privacy)):
"""
_OTLP = """\
## Others that are read

`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_*`, `RANK`, `WORLD_SIZE`, `GROUP_RANK`, `SLURM_NODEID`, `SLURM_JOB_ID`
of batch jobs, `TORCHELASTIC_RUN_ID`; for the run's identity in the trackers
`WANDB_{RUN_ID,ENTITY,PROJECT,NAME,RUN_GROUP,TAGS,NOTES,JOB_TYPE}`, `MLFLOW_{RUN_ID,EXPERIMENT_NAME}` and
`TRACKIO_{PROJECT,SPACE_ID}`. Credentials of trackers are left to their own libraries; none is written into a run
folder.
"""


def page() -> str:
    """The page as it should be."""
    core = _table(settings.declared())
    trackers = _table(setting for name in _TRACKERS for setting in exporter.load(name).declares)
    content = _table(settings.content_of(name) for name in exporter.available() if name in _OURS)
    return f"{_HEAD}\n{core}\n## Of one exporter\n\n{trackers}\n{_CONTENT}\n{content}\n{_OTLP}"


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
