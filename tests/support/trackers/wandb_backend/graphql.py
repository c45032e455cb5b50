"""GraphQL of the stand-in W&B server: operation name -> answer, as far as the SDK asks.

Answers hold more fields than asked for; the SDK takes what it knows. An operation that is not known is answered with
an error and noted, so that a new SDK shows at once what it needs.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from support.trackers.wandb_backend.introspection import introspected
from support.trackers.wandb_backend.state import (
    Upsert,
    WandbArtifact,
    WandbRun,
    WandbStore,
    definitions_of,
)
from support.trackers.wandb_backend.sweeps import Sweeps

Variables: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]
ENTITY: Final = "stand-in"
_CLI_VERSION: Final = {"max_cli_version": "9.9.9"}
_CREATED: Final = "2026-01-01T00:00:00Z"


class Resolver:
    """Answers operations on a store.

    Args:
        store: What was received.
        url: Base of the server, for upload addresses.
        clock_s: Seconds since the server began.
    """

    def __init__(
        self, store: WandbStore, url: Callable[[], str], clock_s: Callable[[], float]
    ) -> None:
        self._store, self._url, self._clock_s = store, url, clock_s
        self.features: tuple[str, ...] = ()
        """Server features that are switched on, e.g. ``EXPAND_DEFINED_METRIC_GLOBS``."""
        self.lists_artifacts = True
        """Whether the versions of an artifact can be listed."""
        self.sweeps = Sweeps(store, ENTITY)
        self.unknown: list[tuple[str, str]] = []
        """Operations that nobody answers: name, query."""
        self._known: dict[str, Callable[[Variables], Answer]] = {
            "UpsertBucket": self._upsert_bucket,
            "RunResumeStatus": self._resume_status,
            "RunStoppedStatus": self._stopped_status,
            "ServerFeaturesQuery": self._server_features,
            "OrganizationCoreWeaveOrganizationID": lambda _: {
                "entity": {"organization": None}
            },
            "OrgFeatureFlags": lambda _: {"organization": None},
            "ServerInfo": lambda _: {
                "serverInfo": {
                    "cliVersionInfo": _CLI_VERSION,
                    "latestLocalVersionInfo": None,
                }
            },
            "": _viewer,  # up to wandb 0.27: `query { viewer { id } }`, to validate a key
            "Viewer": _viewer,
            "GetDefaultEntity": _viewer,
            "Run": self._run,
            "GetRun": self._run,
            "RunHistoryKeys": self._run,
            "RunFullHistory": self._full_history,
            "RunSampledHistory": self._sampled_history,
            "Runs": self._runs,
            "NotifyScriptableRunAlert": self._alert,
            "View": self._views,
            "UpsertView2": self._upsert_view,
            "UpsertSweep": self.sweeps.upsert,
            "CreateAgent": self.sweeps.create_agent,
            "Heartbeat": self.sweeps.heartbeat,
            "GetSweep": self.sweeps.get,
            "GetSweepState": self.sweeps.get,
            "SweepWithRuns": self.sweeps.get,
            "CreateRunFiles": self._create_run_files,
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": self._create_manifest,
            "UpdateArtifactManifest": self._update_manifest,
            "CreateArtifactFiles": self._create_artifact_files,
            "CommitArtifact": self._commit_artifact,
            "UseArtifact": lambda _: {"useArtifact": {"artifact": {"id": "used"}}},
            "ClientIDMapping": self._client_id_mapping,
            "ArtifactByID": self._artifact_by_id,
            "ArtifactMembershipByName": self._membership,
            "ProjectArtifact": self._membership,
            "ProjectArtifacts": self._versions,
            "ArtifactType": self._artifact_type,
            "FetchArtifactManifest": self._manifest_of,
        }

    def answer(self, operation: str, query: str, variables: Variables) -> Answer:
        """Return the whole GraphQL response."""
        asked_types = introspected(query, variables)
        if asked_types is not None:
            return {"data": asked_types}
        known = self._known.get(operation)
        if known is None:
            self.unknown.append((operation, query))
            return {
                "data": None,
                "errors": [
                    {
                        "message": f"the stand-in does not know the operation {operation!r}"
                    }
                ],
            }
        with self._store.lock:
            return {"data": known(variables)}

    # --- runs ---------------------------------------------------------------------------------------------------------
    def _upsert_bucket(self, given: Variables) -> Answer:
        entity, project = (
            given.get("entity") or ENTITY,
            given.get("project") or "uncategorized",
        )
        run_id = str(given.get("name") or f"run{len(self._store.runs)}")
        key = (str(entity), str(project), run_id)
        inserted = key not in self._store.runs
        run = self._store.runs.setdefault(
            key, WandbRun(*key, storage_id=f"storage-{'-'.join(key)}")
        )
        if given.get("config"):  # a writer attaches or goes on
            run.state, run.exit_code = "running", None
        run.heartbeat_unix_s = time.time()
        run.upsert(Upsert(self._clock_s(), dict(given)))
        return {"upsertBucket": {"bucket": _bucket(run), "inserted": inserted}}

    def _resume_status(self, given: Variables) -> Answer:
        run = self._find(given)
        entity, project = given.get("entity") or ENTITY, given.get("project") or ""
        model = {
            "id": "model",
            "name": project,
            "entity": {"id": "entity", "name": entity},
            "bucket": None,
        }
        if run is None:
            return {"model": model}
        return {"model": {**model, "bucket": _bucket(run)}}

    # --- saved views, as wandb-workspaces asks for them ---------------------------------------------------------------
    def _views(self, given: Variables) -> Answer:
        key = (str(given["entityName"]), str(given["name"]), str(given["viewName"]))
        view = self._store.views.get(key)
        edges = [] if view is None else [{"node": {"id": key[2], **view}}]
        return {"project": {"allViews": {"edges": edges}}}

    def _upsert_view(self, given: Variables) -> Answer:
        key = (str(given["entityName"]), str(given["projectName"]), str(given["name"]))
        inserted = key not in self._store.views
        self._store.views[key] = {
            "displayName": given["displayName"],
            "spec": given["spec"],
        }
        view = {"id": key[2], "name": key[2]}
        return {"upsertView": {"view": view, "inserted": inserted}}

    def _stopped_status(self, given: Variables) -> Answer:
        run = self._store.find(
            str(given.get("entityName")),
            str(given.get("projectName")),
            str(given.get("runId")),
        )
        return {"project": {"run": {"stopped": bool(run and run.stopped)}}}

    def _run(self, given: Variables) -> Answer:
        run = self._find(given)
        return {
            "project": {"internalId": "1", "run": None if run is None else _bucket(run)}
        }

    def _full_history(self, given: Variables) -> Answer:
        run = self._find(given)
        found = (
            None
            if run is None
            else {
                **_bucket(run),
                "history": [line for line in run.lines if line is not None],
            }
        )
        return {"project": {"internalId": "1", "run": found}}

    def _sampled_history(self, given: Variables) -> Answer:
        """Return the lines that have all keys of a sample; none is left out."""
        run = self._find(given)
        if run is None:
            return {"project": {"run": None}}
        wanted = [set(json.loads(spec).get("keys") or []) for spec in given["specs"]]
        sampled = [
            [row for row in run.history if keys <= row.keys()] for keys in wanted
        ]
        return {"project": {"run": {"sampledHistory": sampled}}}

    def _server_features(self, _: Variables) -> Answer:
        return {
            "serverInfo": {
                "features": [
                    {"name": name, "isEnabled": True} for name in self.features
                ]
            }
        }

    def _runs(self, given: Variables) -> Answer:
        wanted = (given.get("entity") or ENTITY, given.get("project"))
        filters = json.loads(given.get("filters") or "{}")
        name = filters.get("name")
        sweep = next(
            (one["sweep"] for one in filters.get("$and", ()) if "sweep" in one), None
        )
        runs = [
            run
            for key, run in self._store.runs.items()
            if key[:2] == wanted
            and name in {None, run.id}
            and sweep in {None, run.sweep, f"sweep-of-{run.sweep}"}
        ]
        edges = [{"node": _bucket(run), "cursor": run.id} for run in runs]
        found = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
        return {
            "project": {
                "internalId": "1",
                "runCount": len(runs),
                "readOnly": False,
                "runs": found,
            }
        }

    def _alert(self, given: Variables) -> Answer:
        run = self._store.find(
            str(given["entityName"] or ENTITY),
            str(given["projectName"]),
            str(given["runName"]),
        )
        if run is not None:
            run.alerts.append(dict(given))
        return {"notifyScriptableRunAlert": {"success": run is not None}}

    def _find(self, given: Variables) -> WandbRun | None:
        return self._store.find(
            str(given.get("entity") or ENTITY),
            str(given.get("project")),
            str(given.get("name")),
        )

    def _create_run_files(self, given: Variables) -> Answer:
        files: list[Answer] = []
        for name in given["files"]:
            key = f"run-{given['run']}/{name}"
            self._store.expected[key] = (str(given["run"]), str(name))
            files.append({"name": name, "uploadUrl": self._address(key)})
        return {
            "createRunFiles": {
                "runID": given["run"],
                "uploadHeaders": [],
                "files": files,
            }
        }

    # --- artifacts ----------------------------------------------------------------------------------------------------
    def _create_artifact(self, given: Variables) -> Answer:
        asked = given["input"]
        artifact = WandbArtifact(
            id=base64.b64encode(
                f"Artifact:{len(self._store.artifacts)}".encode()
            ).decode(),  # wandb up to 0.27 decodes it
            entity=asked["entityName"],
            project=asked["projectName"],
            name=asked["artifactCollectionName"],
            type=asked["artifactTypeName"],
            client_id=asked.get("clientID") or "",
            run_id=asked.get("runName") or "",
            digest=asked["digest"],
        )
        latest = self._store.latest(artifact.name)
        self._store.artifacts[artifact.id] = artifact
        sequence = {
            "id": artifact.name,
            "latestArtifact": {"id": latest.id} if latest else None,
        }
        return {
            "createArtifact": {
                "artifact": {
                    "id": artifact.id,
                    "state": "PENDING",
                    "artifactSequence": sequence,
                }
            }
        }

    def _create_manifest(self, given: Variables) -> Answer:
        artifact = self._store.artifacts[given["artifactID"]]
        artifact.base_id = given.get("baseArtifactID")
        artifact.incremental = given.get("manifestType") == "INCREMENTAL"
        artifact.manifest_key = f"upload-manifest-{artifact.id}"
        return {
            "createArtifactManifest": {"artifactManifest": self._manifest(artifact)}
        }

    def _update_manifest(self, given: Variables) -> Answer:
        artifact = self._store.artifacts[
            str(given["artifactManifestID"]).removeprefix("of-")
        ]
        return {
            "updateArtifactManifest": {"artifactManifest": self._manifest(artifact)}
        }

    def _manifest(self, artifact: WandbArtifact) -> Answer:
        file = {
            "id": "file",
            "name": "wandb_manifest.json",
            "uploadUrl": self._address(artifact.manifest_key),
        }
        return {
            "id": f"of-{artifact.id}",
            "file": {**file, "displayName": file["name"], "uploadHeaders": []},
        }

    def _create_artifact_files(self, given: Variables) -> Answer:
        edges: list[Answer] = []
        asked = given.get("input") or given  # wandb 0.31 and before
        for spec in asked["artifactFiles"]:
            key = _digest_of(spec)
            upload: Answer = {
                "uploadUrl": self._address(key),
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
            }
            node: Answer = {
                "id": key,
                "name": spec["name"],
                "displayName": spec["name"],
                "storagePath": key,
                **upload,
            }
            node["artifact"] = {"id": spec["artifactID"]}
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _commit_artifact(self, given: Variables) -> Answer:
        artifact = self._store.artifacts[given["artifactID"]]
        self._store.commit(artifact)
        return {
            "commitArtifact": {
                "artifact": {"id": artifact.id, "digest": artifact.digest}
            }
        }

    def _client_id_mapping(self, given: Variables) -> Answer:
        found = [
            a
            for a in self._store.artifacts.values()
            if a.client_id == given["clientID"]
        ]
        return {"clientIDMapping": {"serverID": found[0].id} if found else None}

    def _artifact_by_id(self, given: Variables) -> Answer:
        artifact = self._store.artifacts.get(given["id"])
        return {"artifact": artifact and _artifact(artifact)}

    def _membership(self, given: Variables) -> Answer:
        name, _, _ = str(given["name"]).partition(":")
        artifact = self._store.latest(name)
        if artifact is None:
            return {"project": {"artifactCollectionMembership": None, "artifact": None}}
        whole = _artifact(artifact)
        membership = {
            "__typename": "ArtifactCollectionMembership", "id": f"m-{artifact.id}", "versionIndex": artifact.version,
            "createdAt": _CREATED, "aliases": [{"__typename": "ArtifactAlias", "id": "latest", "alias": "latest"}],
            "artifactCollection": {"__typename": "ArtifactSequence", **whole["artifactSequence"]}, "artifact": whole,
        }  # fmt: skip
        return {
            "project": {"artifactCollectionMembership": membership, "artifact": whole}
        }

    def _versions(self, given: Variables) -> Answer:
        name, first = str(given["collection"]), int(given.get("perPage") or 50)
        committed = [
            artifact for artifact in self._store.sequence(name) if artifact.committed
        ]
        if not committed or not self.lists_artifacts:
            return {"project": {"artifactType": {"artifactCollection": None}}}
        newest = sorted(committed, key=lambda artifact: -artifact.version)
        after = int(given.get("cursor") or 0)
        edges = [
            {"version": f"v{found.version}", "node": _artifact(found)}
            for found in newest[after : after + first]
        ]
        page = {
            "__typename": "PageInfo",
            "endCursor": str(after + first),
            "hasNextPage": after + first < len(newest),
        }
        listed = {"totalCount": len(newest), "edges": edges, "pageInfo": page}
        held = {"__typename": "ArtifactSequence", "artifacts": listed}
        return {"project": {"artifactType": {"artifactCollection": held}}}

    def _artifact_type(self, given: Variables) -> Answer:
        found = self._store.sequence(str(given.get("name", "")).partition(":")[0])
        artifact = {"artifactType": {"name": found[0].type}} if found else None
        return {"project": {"artifact": artifact}}

    def _manifest_of(self, given: Variables) -> Answer:
        address = self._address(f"manifest-{given['id']}")
        return {"artifact": {"currentManifest": {"file": {"directUrl": address}}}}

    def _address(self, key: str) -> str:
        return f"{self._url()}/storage/{key.encode().hex()}"


def _bucket(run: WandbRun) -> Answer:
    """Return all fields of a run that anything of the SDK asks for, but its history: that may be long."""
    internal = run.internal_config
    last = [line for line in run.lines[-1:] if line is not None]
    keys = sorted(run.derived)
    return {
        "id": run.storage_id,
        "projectId": "1",
        "name": run.id,
        "displayName": run.display_name or run.id,
        "description": None,
        "notes": run.notes or None,
        "group": run.group or None,
        "jobType": run.job_type or None,
        "tags": run.tags,
        "state": run.state,
        "sweepName": run.sweep or None,
        "commit": None,
        "readOnly": False,
        "createdAt": _CREATED,
        "heartbeatAt": time.strftime(
            "%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.heartbeat_unix_s)
        ),
        "host": run.host,
        "config": json.dumps(run.raw_config),
        "wandbConfig": json.dumps({"t": internal["t"]}) if "t" in internal else None,
        "summaryMetrics": json.dumps(run.derived | run.summary),
        "systemMetrics": "{}",
        "historyLineCount": len(run.lines),
        "logLineCount": 0,
        "eventsLineCount": 0,
        "historyTail": json.dumps(last),
        "eventsTail": "[]",
        "historyKeys": {
            "lastStep": len(run.lines) - 1,
            "sets": [],
            "keys": {key: {} for key in keys},
        },
        "user": {"name": ENTITY, "username": ENTITY},
        "project": {
            "id": "project",
            "name": run.project,
            "entity": {"id": "entity", "name": run.entity},
        },
        "files": {"edges": []},
        "metrics": sorted(definitions_of(run.raw_config)),
    }


def _artifact(artifact: WandbArtifact) -> Answer:
    project = {
        "id": "project",
        "internalId": "1",
        "name": artifact.project,
        "entity": {"name": artifact.entity},
    }
    return {
        "__typename": "Artifact",
        "id": artifact.id,
        "artifactSequence": {
            "__typename": "ArtifactSequence",
            "name": artifact.name,
            "project": project,
        },
        "versionIndex": artifact.version,
        "artifactType": {"name": artifact.type},
        "description": None,
        "metadata": "{}",
        "ttlDurationSeconds": -2,
        "ttlIsInherited": False,
        "tags": [],
        "historyStep": None,
        "state": "COMMITTED" if artifact.committed else "PENDING",
        "size": 1,
        "digest": artifact.digest,
        "digestAlgorithm": "MANIFEST_MD5",
        "commitHash": artifact.id,
        "fileCount": len(artifact.entries),
        "createdAt": _CREATED,
        "updatedAt": _CREATED,
        "aliases": [],
    }


def _digest_of(spec: Variables) -> str:
    return str(spec["md5"])


def _viewer(_: Variables) -> Answer:
    teams = {"edges": [{"node": {"name": ENTITY}}]}
    return {
        "viewer": {
            "id": "viewer", "entity": ENTITY, "username": ENTITY, "email": "stand-in@example.com", "flags": "{}",
            "admin": False, "name": ENTITY, "teams": teams, "apiKeys": {"edges": []}, "deletedAt": None,
        }
    }  # fmt: skip
