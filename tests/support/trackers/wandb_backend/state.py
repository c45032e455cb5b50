"""What the stand-in W&B server was sent: runs with their history lines, config, metric definitions; artifacts.

Pure data and the rules by which a write changes it, as the real server's answers to the SDK let one see them:
history lines are put at the offset they name, config and ``_wandb.m`` are replaced whole by every upsert.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import zlib
from dataclasses import dataclass, field
from typing import Any, Final, cast

from otel_bridge.records import Json
from support.trackers.wandb_offline import MetricDefinition

HISTORY_FILE: Final = "wandb-history.jsonl"
SUMMARY_FILE: Final = "wandb-summary.json"
EVENTS_FILE: Final = "wandb-events.jsonl"
OUTPUT_FILE: Final = "output.log"
_STATES: Final = {0: "finished", 255: "killed"}
_HIDDEN: Final = 2
"""Number of the option ``hidden`` in a definition's list of options (wandb_telemetry.proto)."""


@dataclass(slots=True)
class Upsert:
    """One ``UpsertBucket``: when it came (seconds since the server began) and its variables."""

    at_s: float
    variables: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The config that it carried, ``{}`` when none."""
        return cast("dict[str, Any]", json.loads(self.variables.get("config") or "{}"))

    @property
    def metrics(self) -> dict[str, MetricDefinition] | None:
        """The metric definitions that it carried, ``None`` when it carried no config."""
        return definitions_of(self.config) if self.variables.get("config") else None


@dataclass(slots=True)
class WandbRun:
    """One run as it was received.

    Attributes:
        lines: History lines as they came, ``None`` where a gap was left.
        state: ``running``, ``finished``, ``failed`` or ``killed``.
        exit_code: Of the last completed writer; ``None`` while running.
        uploaded: Name to content of the files put.
        overwritten: Lines that came again for an offset that was taken, with other content.
        derived: Last value of each key, as the server derives it from the lines.
        clients: In shared mode, each writer's id to how many lines it has sent.
        own_steps: In shared mode, lines for which a writer brought a ``_step`` of its own: the server gives it.
        sweep: Name of the sweep that it belongs to.
    """

    entity: str
    project: str
    id: str
    storage_id: str
    display_name: str = ""
    group: str = ""
    job_type: str = ""
    notes: str = ""
    host: str = ""
    tags: list[str] = field(default_factory=list[str])
    raw_config: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: list[str | None] = field(default_factory=list["str | None"])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    alerts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    state: str = "running"
    exit_code: int | None = None
    stopped: bool = False
    heartbeat_unix_s: float = 0.0
    upserts: list[Upsert] = field(default_factory=list[Upsert])
    uploaded: dict[str, bytes] = field(default_factory=dict[str, bytes])
    overwritten: list[tuple[int, str, str]] = field(
        default_factory=list[tuple[int, str, str]]
    )
    derived: dict[str, Any] = field(default_factory=dict[str, Any])
    clients: dict[str, int] = field(default_factory=dict[str, int])
    own_steps: int = 0
    sweep: str = ""

    @property
    def history(self) -> list[dict[str, Json]]:
        """The history lines, parsed; ``NaN`` and infinities as floats."""
        return [
            cast("dict[str, Json]", json.loads(line))
            for line in self.lines
            if line is not None
        ]

    @property
    def config(self) -> dict[str, Json]:
        """The user's config."""
        return {
            key: _value(value)
            for key, value in self.raw_config.items()
            if key != "_wandb"
        }

    @property
    def internal_config(self) -> dict[str, Any]:
        """Wandb's own part of the config."""
        return internal_of(self.raw_config)

    @property
    def metrics(self) -> dict[str, MetricDefinition]:
        """The metric definitions as last sent."""
        return definitions_of(self.raw_config)

    def upsert(self, upsert: Upsert) -> None:
        """Take a mutation; what it leaves out stays."""
        given = upsert.variables
        self.upserts.append(upsert)
        self.display_name = given.get("displayName") or self.display_name
        self.group = given.get("groupName") or self.group
        self.job_type = given.get("jobType") or self.job_type
        self.notes = given.get("notes") or self.notes
        self.host = given.get("host") or self.host
        self.sweep = given.get("sweep") or self.sweep
        if given.get("tags"):
            self.tags = list(given["tags"])
        if given.get("config"):
            self.raw_config = upsert.config

    def stream(self, body: dict[str, Any], client: str = "") -> None:
        """Take one filestream request.

        Args:
            body: The request.
            client: In shared mode, the id of the writer: its lines are put behind all that are there, and its offset
                counts its own.
        """
        files = cast("dict[str, Any]", body.get("files") or {})
        history = files.get(HISTORY_FILE)
        if history:
            take = self._put_lines if not client else self._append_lines
            take(int(history["offset"]), cast("list[str]", history["content"]), client)
            for line in cast("list[str]", history["content"]):
                self.derived |= cast("dict[str, Any]", json.loads(line))
        summary = files.get(SUMMARY_FILE)
        if summary and summary["content"]:
            self.summary = cast("dict[str, Any]", json.loads(summary["content"][-1]))
        if body.get("complete"):
            self.exit_code = int(body.get("exitcode") or 0)
            self.state = _STATES.get(self.exit_code, "failed")

    def _append_lines(self, offset: int, content: list[str], client: str) -> None:
        sent = self.clients.get(client, 0)
        for line in content[max(sent - offset, 0) :]:
            parsed = cast("dict[str, Any]", json.loads(line))
            self.own_steps += "_step" in parsed
            self.lines.append(json.dumps({**parsed, "_step": len(self.lines)}))
        self.clients[client] = max(sent, offset + len(content))

    def _put_lines(self, offset: int, content: list[str], _client: str) -> None:
        self.lines += [None] * (offset - len(self.lines))
        for at, line in enumerate(content, offset):
            if at == len(self.lines):
                self.lines.append(line)
                continue
            before = self.lines[at]
            if before is not None and before != line:
                self.overwritten.append((at, before, line))
            self.lines[at] = line


@dataclass(slots=True)
class WandbArtifact:
    """One version of an artifact; `entries` is its whole manifest once committed."""

    id: str
    entity: str
    project: str
    name: str
    type: str
    client_id: str
    run_id: str
    digest: str
    base_id: str | None = None
    incremental: bool = False
    committed: bool = False
    version: int = -1
    manifest_key: str = ""
    entries: dict[str, Any] = field(default_factory=dict[str, Any])


class WandbStore:
    """All runs and artifacts; every method is called under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: dict[tuple[str, str, str], WandbRun] = {}
        self.artifacts: dict[str, WandbArtifact] = {}
        self.blobs: dict[str, bytes] = {}
        """Storage key to what was uploaded there."""
        self.expected: dict[str, tuple[str, str]] = {}
        """Storage key of a run's file to (run id, file name)."""
        self.views: dict[tuple[str, str, str], dict[str, str]] = {}
        """Entity, project and name of a saved view to its ``displayName`` and ``spec``."""

    def find(self, entity: str, project: str, run_id: str) -> WandbRun | None:
        """Return a run, ``None`` when there is none."""
        return self.runs.get((entity, project, run_id))

    def by_id(self, run_id: str) -> WandbRun:
        """Return the one run with this id, in whatever project; raises `KeyError`."""
        found = [run for (_, _, name), run in self.runs.items() if name == run_id]
        if len(found) != 1:
            raise KeyError(
                f"{len(found)} runs are called {run_id!r}; known: {sorted(key[2] for key in self.runs)}"
            )
        return found[0]

    def put_blob(self, key: str, content: bytes) -> None:
        """Take an uploaded file."""
        self.blobs[key] = content
        if key in self.expected:
            run_id, name = self.expected[key]
            self.by_id(run_id).uploaded[name] = content

    def commit(self, artifact: WandbArtifact) -> None:
        """Make *artifact* the latest version of its sequence; an incremental one holds its base's entries too."""
        manifest = cast(
            "dict[str, Any]", json.loads(self.blobs.get(artifact.manifest_key, b"{}"))
        )
        base = self.artifacts.get(artifact.base_id or "")
        inherited = (
            dict(base.entries) if artifact.incremental and base is not None else {}
        )
        artifact.entries = inherited | cast(
            "dict[str, Any]", manifest.get("contents", {})
        )
        artifact.version = sum(
            other.committed for other in self.sequence(artifact.name)
        )
        artifact.committed = True
        whole: dict[str, Any] = {
            "version": 1,
            "storagePolicy": "wandb-storage-policy-v1",
            "storagePolicyConfig": {},
        }
        self.blobs[f"manifest-{artifact.id}"] = json.dumps(
            manifest | whole | {"contents": artifact.entries}
        ).encode()  # fmt: skip

    def sequence(self, name: str) -> list[WandbArtifact]:
        """Return the versions of the artifact *name*, oldest first, uncommitted ones included."""
        return [
            artifact for artifact in self.artifacts.values() if artifact.name == name
        ]

    def latest(self, name: str) -> WandbArtifact | None:
        """Return the latest committed version of the artifact *name*."""
        committed = [artifact for artifact in self.sequence(name) if artifact.committed]
        return (
            max(committed, key=lambda artifact: artifact.version) if committed else None
        )

    def table(self, run_id: str, key: str) -> list[dict[str, Json]]:
        """Return what a run's page shows of its incremental table: the rows of committed increments that lines name.

        An increment whose artifact was committed and whose line never came (its writer was killed between) is not
        shown there; it stays in the artifact.
        """
        rows: list[dict[str, Json]] = []
        for line in self.by_id(run_id).history:
            value = line.get(key)
            if (
                isinstance(value, dict)
                and value.get("_type") == "incremental-table-file"
            ):
                rows += self._increment(str(value["artifact_path"]))
        return rows

    def _increment(self, path: str) -> list[dict[str, Json]]:
        client_id, _, name = path.removeprefix("wandb-client-artifact://").partition(
            "/"
        )
        found = [
            artifact
            for artifact in self.artifacts.values()
            if artifact.client_id == client_id
        ]
        if not found or not found[0].committed:
            return []
        table: Any = json.loads(self.blobs[str(found[0].entries[name]["digest"])])
        return [
            dict(zip(table["columns"], cells, strict=True)) for cells in table["data"]
        ]


def artifact_name(run_id: str, key: str) -> str:
    """Return the name of the artifact behind a run's incremental table (``sanitize_artifact_name`` of wandb)."""
    name = f"run-{run_id}-incr-{key}"
    cleaned = re.sub(r"[^a-zA-Z0-9_\-.]+", "", name)
    if cleaned == name:
        return name
    suffix = (
        base64.urlsafe_b64encode(zlib.crc32(name.encode()).to_bytes(4, "big"))
        .rstrip(b"=")
        .decode()
    )
    return f"{cleaned}-{suffix}"


def internal_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return wandb's own part of a raw config."""
    held = cast("dict[str, Any]", config.get("_wandb") or {})
    return cast("dict[str, Any]", held.get("value") or {})


def definitions_of(config: dict[str, Any]) -> dict[str, MetricDefinition]:
    """Return the metric definitions in a raw config: ``_wandb.value.m``, keys are numbers of protobuf fields."""
    entries = cast("list[dict[str, Any]]", internal_of(config).get("m") or [])
    names = [
        str(entry.get("1") or entry.get("2") or "").replace("\\.", ".")
        for entry in entries
    ]
    found: dict[str, MetricDefinition] = {}
    for name, entry in zip(names, entries, strict=True):
        axis_at = entry.get("5")
        axis = (
            names[axis_at - 1]
            if isinstance(axis_at, int) and 0 < axis_at <= len(names)
            else ""
        )
        found[name] = MetricDefinition(
            name,
            str(entry.get("4") or axis),
            _HIDDEN in (entry.get("6") or []),
            glob="2" in entry,
        )
    return found


def _value(item: object) -> Json:
    return (
        cast("Json", cast("dict[str, Any]", item).get("value"))
        if isinstance(item, dict)
        else cast("Json", item)
    )
