"""Introspection by the stand-in W&B server: up to 0.24 the SDK asks which fields a type has before it uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_ASKED: Final = re.compile(
    r"(?:(\w+)\s*:\s*)?__type\s*\(\s*name\s*:\s*(?:\"(\w+)\"|\$(\w+))\s*\)"
)
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Query": ("viewer", "serverInfo", "project", "artifact"),
    "Mutation": ("upsertBucket", "createArtifact", "commitArtifact"),
    "ServerInfo": ("cliVersionInfo", "latestLocalVersionInfo", "features"),
    "Project": ("internalId", "run", "runs", "artifact", "artifactType"),
    "Run": ("projectId", "historyKeys", "summaryMetrics"),
    "Artifact": ("ttlDurationSeconds", "ttlIsInherited", "aliases", "tags", "historyStep"),
    "CreateArtifactInput": (
        "entityName", "projectName", "artifactTypeName", "artifactCollectionName", "runName", "description", "digest",
        "digestAlgorithm", "metadata", "aliases", "tags", "historyStep", "distributedID", "clientID",
        "sequenceClientID", "enableDigestDeduplication", "ttlDurationSeconds",
    ),
}  # fmt: skip
"""What of each type the stand-in answers, as far as the SDK asks."""


def introspected(query: str, variables: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer to *query*; ``None`` when it asks for no type."""
    found: dict[str, Any] = {}
    for alias, name, variable in _ASKED.findall(query):
        fields = _FIELDS.get(name or str(variables.get(variable)))
        listed: list[dict[str, Any]] = [
            {"name": field, "args": []} for field in fields or ()
        ]
        found[alias or "__type"] = (
            None
            if fields is None
            else {"name": name, "fields": listed, "inputFields": listed}
        )
    return found or None
