"""Makes the page ``docs/settings.md`` from the declared settings; ``make docs`` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from otel_bridge import exporter, settings
from otel_bridge.settings import Setting

_TRACKERS = {"wandb": "W&B", "mlflow": "MLflow", "trackio": "Trackio"}

_HEAD = """\
# Settings

`otel-bridge doctor --all` shows the same settings with your values. `make docs` generates this page.

* An empty variable counts as unset. The default `-` means that the variable is unset.
* A value that cannot be parsed is an error at `init()` or at the start of a command.
* Flags are `1` or `0`. Sizes take units (`64MiB`). Times are in seconds. Lists are separated by commas.

Each section says who reads its variables. Set them there:

* **A training program that starts its own bridge:** set all variables for the program. The bridge inherits them.
* **`otel-bridge run`:** set all variables for `run`, which is the bridge. The program inherits them.
* **`otel-bridge serve` and `otel-bridge drain`:** set what the bridge reads for the command, which is the bridge. Set
  what the training program reads for the program.

Each tracker's own variables choose its destination: see [exporters.md](exporters.md).
"""
_CONTENT = """\
Every exporter has `OTEL_BRIDGE_<EXPORTER>_MESSAGE_CONTENT`, also one of your own
([rollouts.md](rollouts.md#what-one-tracker-gets)):
"""
_OTLP = """\
## OTLP

The exporter `otlp` has no variables of its own. It reads OpenTelemetry's `OTEL_EXPORTER_OTLP_*`
([exporters.md](exporters.md#otlp)), and `OTEL_BRIDGE_TOKEN` for an otel-bridge at the other end.
"""
_OTHERS = """\
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


@dataclass(frozen=True)
class Section:
    """Groups settings that serve one task.

    Attributes:
        title: Heading.
        text: Who reads them, and where the task is described.
        settings: The settings, in the order of the page.
    """

    title: str
    text: str
    settings: Sequence[Setting[object]]


SECTIONS: Sequence[Section] = (
    Section(
        "The run",
        "The training program reads them, except the owner role, which the bridge reads. "
        "[Which run](emitting-reference.md#which-run) has the order of the sources.",
        (
            settings.PROJECT,
            settings.RUN_NAME,
            settings.RUN_ID,
            settings.NEW_RUN,
            settings.ROLE,
            settings.OWNER_ROLE,
            settings.NODE_RANK,
            settings.ATTEMPT,
        ),
    ),
    Section(
        "Exporters",
        "The training program and every command that delivers read them "
        "([exporters.md](exporters.md#choose-exporters)).",
        (
            settings.EXPORTERS,
            settings.METRICS_EXPORTER,
            settings.TRACES_EXPORTER,
            settings.LOGS_EXPORTER,
            settings.BRIDGE_PYTHON,
        ),
    ),
    Section(
        "What the training program records",
        "The training program reads them ([emitting.md](emitting.md)).",
        (
            settings.RANKS,
            settings.SYSTEM_METRICS_S,
            settings.SCRAPE,
            settings.SCRAPE_S,
            settings.MEDIA_BYTES,
            settings.MAX_MEDIA_PER_STEP,
            settings.QUIET,
        ),
    ),
    Section(
        "Captured loggers and Lightning",
        "The training program reads them ([capture.md](capture.md), [Lightning](frameworks/lightning.md)).",
        (settings.CAPTURE_MODE, settings.LIGHTNING),
    ),
    Section(
        "Rollouts",
        "The training program and the bridge read them ([rollouts.md](rollouts.md#which-are-kept)).",
        (
            settings.MAX_ROLLOUTS_PER_STEP,
            settings.MAX_ROLLOUTS_PER_STEP_EVAL,
            settings.ROLLOUT_SELECTION,
            settings.ROLLOUT_KEY,
            settings.ROLLOUT_BYTES,
        ),
    ),
    Section(
        "Content policy",
        "The training program reads them: they decide which text leaves it ([rollouts.md](rollouts.md#privacy)). The "
        "bridge reads `OTEL_BRIDGE_REDACT` too, for third-party producers.",
        (settings.MESSAGE_CONTENT, settings.REDACT, settings.CAPTURE_MESSAGE_CONTENT),
    ),
    Section(
        "Alerts",
        "The bridge reads them ([alerts.md](alerts.md)).",
        (settings.ALERTS, settings.ALERT_WEBHOOK, settings.FEATURED),
    ),
    Section(
        "Run folders",
        "The training program, the bridge and the commands read them ([run-folder.md](run-folder.md)).",
        (settings.DIR, settings.OFFLINE, settings.SEGMENT_BYTES, settings.MAX_BYTES),
    ),
    Section(
        "Limits of a run",
        "The bridge reads them ([guarantees.md](guarantees.md#limits)).",
        (
            settings.MAX_KEYS,
            settings.MAX_OPEN_TRACES,
            settings.MAX_OPEN_TRACE_BYTES,
            settings.TIMELINE_BYTES,
            settings.TOKEN_BYTES,
            settings.CUMULATIVE_HISTOGRAMS,
        ),
    ),
    Section(
        "Waiting times",
        "The bridge reads them, and `run` and `serve` read the last one. "
        "[When a step closes](rollouts.md#when-a-step-closes) explains those of rollouts.",
        (
            settings.POLL_S,
            settings.ROW_WAIT_S,
            settings.TRACE_GRACE_S,
            settings.TRACE_TIMEOUT_S,
            settings.STEP_WATERMARK_S,
            settings.STEP_STARTUP_S,
            settings.STEP_TIMEOUT_S,
            settings.END_OF_STREAM_WAIT_S,
            settings.LIVENESS_TIMEOUT_S,
            settings.END_GRACE_S,
            settings.RETRY_AFTER_EXIT_S,
            settings.DRAIN_TIMEOUT_S,
        ),
    ),
    Section(
        "Receiver and service",
        "`serve` reads them, and so does the receiver of `run` ([service.md](service.md)). Clients read the token.",
        (
            settings.TOKEN,
            settings.TLS_CERT,
            settings.TLS_KEY,
            settings.TLS_CLIENT_CA,
            settings.FSYNC,
            settings.REQUEST_BYTES,
            settings.MAX_REQUESTS,
            settings.MAX_RATE,
            settings.MAX_RUNS,
            settings.MAX_OPEN_RUNS,
            settings.STALL_S,
        ),
    ),
)
"""Every setting of the core once, but those of the exporter ``file`` and the internal ones."""
_FILE = Section(
    "File",
    "The exporter `file` reads it ([exporters.md](exporters.md#console-file-and-webhook)).",
    (settings.FILE_BYTES,),
)


def page() -> str:
    """Return the page as it should be."""
    parts = [_HEAD]
    for section in SECTIONS:
        parts.append(_chapter(section))
        if settings.MESSAGE_CONTENT in section.settings:
            names = (*_TRACKERS, "console", "file", exporter.WEBHOOK, exporter.OTLP)
            parts += [
                _CONTENT,
                _table(
                    settings.content_of(name)
                    for name in exporter.available()
                    if name in names
                ),
            ]
    for name, title in _TRACKERS.items():
        text = f"The bridge reads them, and [{title}'s own variables]({name}.md#where-it-writes)."
        parts.append(_chapter(Section(title, text, exporter.load(name).settings)))
    parts += [_OTLP, _chapter(_FILE), _OTHERS, _internal()]
    return "\n".join(parts)


def _chapter(section: Section) -> str:
    return f"## {section.title}\n\n{section.text}\n\n{_table(section.settings)}"


def _internal() -> str:
    text = "otel-bridge sets them for its own processes. Do not set them yourself."
    return _chapter(
        Section(
            "Internal variables",
            text,
            [one for one in settings.declared() if one.internal],
        )
    )


def _table(declared: Iterable[Setting[object]]) -> str:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for one in declared:
        default = one.written(one.default)
        lines.append(
            f"| `{one.name}` | {f'`{default}`' if default else '-'} | {one.doc} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
