"""One recorded job, played to any exporter through the real bridge, and compared with what its tracker shows.

Subclass `ConformanceSuite` with the exporter's ``target`` and the fixtures ``environment`` (variables that say where it
delivers) and ``read`` (`RunInfo` -> `Shown`, through the tracker's own API). It imports pytest.
"""

from __future__ import annotations

from otel_bridge.testing.conformance.job import ConformanceJob, JobFrame, Segment, recorded_job
from otel_bridge.testing.conformance.play import lay, play
from otel_bridge.testing.conformance.suite import ConformanceSuite, ReadShown
from otel_bridge.testing.conformance.truth import ExpectedRun, KeptKinds, Shown, compare

__all__ = [
    "ConformanceJob",
    "ConformanceSuite",
    "ExpectedRun",
    "JobFrame",
    "KeptKinds",
    "ReadShown",
    "Segment",
    "Shown",
    "compare",
    "lay",
    "play",
    "recorded_job",
]
