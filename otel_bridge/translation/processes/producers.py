"""Segments and resources -> the producer: run, process and row decoder. Pure.

Bounded caches only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.errors import InvalidRecordError
from otel_bridge.translation.decode.attributes import mapping_of
from otel_bridge.translation.decode.resources import (
    Producer,
    attributes_of,
    producer_of,
    within,
)
from otel_bridge.translation.decode.row_decoder import RowDecoder
from otel_bridge.translation.processes.lifecycle import RunLifecycle
from otel_bridge.translation.processes.process import Process, ProcessStart
from otel_bridge.translation.processes.run_metadata import RunMetadata

_MAX_DECODERS = 64
"""Most decoders that are shared; each may hold some megabytes of learned shapes."""
_MAX_PRODUCERS = 1_024
PROCESS_KINDS = frozenset({"process", "launcher"})
"""Kinds of segments that one process wrote; segments of other kinds hold data of many processes."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Describes the segment that holds a frame.

    Attributes:
        instance_id: Instance id of the process, receiver or bridge that writes the segment.
        kind: ``process``, ``receiver``, ``bridge`` or ``launcher``.
        resource: Serialised ``Resource`` of the segment header; empty where records carry their
            own.
        role: Role in the segment header.
        start: Time at which the process joined the run; ``None`` where the segment holds several
            processes.
    """

    instance_id: str
    kind: str
    resource: bytes
    role: str | None = None
    start: ProcessStart | None = None


@dataclass(frozen=True, slots=True)
class ProducerContext:
    """Holds a producer with its process and the decoder of its rows."""

    source: SegmentInfo
    producer: Producer
    process: Process
    decoder: RowDecoder


class ProducerRegistry:
    """Holds the producers of one run."""

    def __init__(self, metadata: RunMetadata, lifecycle: RunLifecycle) -> None:
        self._metadata = metadata
        self._lifecycle = lifecycle
        self._decoders: dict[tuple[str | None, int], RowDecoder] = {}
        self._of_segments: dict[str, ProducerContext] = {}
        self._of_resources: dict[tuple[str, bytes], ProducerContext] = {}

    def of_segment(
        self, source: SegmentInfo, now_unix_ns: int
    ) -> ProducerContext | None:
        """Return the producer of a segment; ``None``: the segment belongs to another run.

        The result is kept for the segment, because this runs for each frame; ``None`` and an error
        are not, so that the caller counts each frame.

        Raises:
            InvalidRecordError: The resource of the segment cannot be read.
        """
        context = self._of_segments.get(source.instance_id)
        # Each segment has its own header, of which the last one holds.
        if context is not None and context.source is source:
            return context
        producer = producer_of(attributes_of(source.resource))
        context = self._context(source, producer, None, now_unix_ns)
        if context is not None:
            _bound(self._of_segments)
            self._of_segments[source.instance_id] = context
        return context

    def of_resource(
        self, source: SegmentInfo, resource: Resource, now_unix_ns: int
    ) -> ProducerContext | None:
        """Return the producer of a resource in a whole request.

        ``None``: the resource belongs to another run.

        A segment whose own header cannot be read still gives its records' resources. Never raises:
        an attribute of an unexpected type counts as missing.
        """
        # Deterministic, because the bytes are the key of the cache.
        data = resource.SerializeToString(deterministic=True)
        cache_key = (
            source.instance_id if source.kind in PROCESS_KINDS else source.kind,
            data,
        )
        context = self._of_resources.get(cache_key)
        if context is not None:
            return context
        attributes: Mapping[str, object] = mapping_of(resource.attributes)
        process: Process | None = None
        if source.kind in PROCESS_KINDS:
            try:
                outer = self.of_segment(source, now_unix_ns)
            except InvalidRecordError:
                # The records carry resources of their own, which suffice to place them.
                outer = None
            if outer is not None:
                attributes = within(outer.producer.attributes, attributes)
                process = outer.process
        context = self._context(source, producer_of(attributes), process, now_unix_ns)
        if context is not None:
            _bound(self._of_resources)
            self._of_resources[cache_key] = context
        return context

    def clear(self) -> None:
        """Clear the caches, because a process was forgotten."""
        self._of_segments.clear()
        self._of_resources.clear()

    def _context(
        self,
        source: SegmentInfo,
        producer: Producer,
        process: Process | None,
        now_unix_ns: int,
    ) -> ProducerContext | None:
        """Return producer, process and decoder; ``None``: the resource belongs to another run.

        *process* is that of the segment, of which a resource inside it is a part; ``None``: that of
        *producer*, a known or a new one.
        """
        if not self._metadata.mine(producer):
            return None
        if process is None:
            # A bridge reports only on processes of its own machine.
            kind = source.kind
            if kind == "bridge":
                kind = "process"
            start = None
            if source.kind in PROCESS_KINDS:
                start = source.start
            process = self._lifecycle.process(producer, kind, now_unix_ns, start=start)
        # The keys of merged rows name no rank.
        rank = 0 if producer.merge_world else producer.rank
        decoder = self._decoders.get((producer.role, rank))
        if decoder is None:
            decoder = RowDecoder(producer.role, rank)
            # Beyond the limit its process alone uses it.
            if len(self._decoders) < _MAX_DECODERS:
                self._decoders[producer.role, rank] = decoder
        return ProducerContext(source, producer, process, decoder)


def _bound(
    cache: dict[str, ProducerContext] | dict[tuple[str, bytes], ProducerContext],
) -> None:
    if len(cache) >= _MAX_PRODUCERS:
        # All at once: the entries are quickly made again, and no order of use must be kept.
        cache.clear()
