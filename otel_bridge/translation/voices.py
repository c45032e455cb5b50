"""Segments and resources -> who speaks: run, process, and how its rows are read. Pure; bounded caches only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.errors import InvalidRecordError
from otel_bridge.translation.attributes import mapping_of
from otel_bridge.translation.identity import Speaker, attributes_of, speaker_of, within
from otel_bridge.translation.life import Life
from otel_bridge.translation.own_rows import Decoder
from otel_bridge.translation.process import Process
from otel_bridge.translation.run_facts import RunFacts

_MAX_DECODERS: Final = 64
_MAX_VOICES: Final = 1_024
PROCESS_KINDS: Final = frozenset({"process", "launcher"})
"""Kinds of segments that one process wrote; the others hold the words of many."""


@dataclass(frozen=True, slots=True)
class Source:
    """The segment that a frame stands in.

    Attributes:
        instance_id: Of the segment: the process's own, the receiver's, the bridge's.
        kind: ``process``, ``receiver``, ``bridge`` or ``launcher``.
        resource: Serialised ``Resource`` of its header; empty where records carry their own.
        role: Role of its header.
    """

    instance_id: str
    kind: str
    resource: bytes
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Voice:
    """Who speaks, and how its rows are read."""

    source: Source
    speaker: Speaker
    process: Process
    decoder: Decoder


class Voices:
    """Everyone who speaks in one run."""

    def __init__(self, facts: RunFacts, life: Life) -> None:
        self._facts, self._life = facts, life
        self._decoders: dict[tuple[str | None, int], Decoder] = {}
        self._of_segments: dict[str, Voice] = {}
        self._of_resources: dict[tuple[str, bytes], Voice] = {}
        self._of_bytes: dict[tuple[str, bytes], Voice] = {}

    def known(self, source: Source) -> Voice | None:
        """Return who writes a segment, when this very `Source` was asked for before."""
        voice = self._of_segments.get(source.instance_id)
        return voice if voice is not None and voice.source is source else None

    def of_segment(self, source: Source, now_unix_ns: int) -> Voice | None:
        """Return who writes a segment; ``None``: it belongs to another run.

        Raises:
            InvalidRecordError: Its resource cannot be read.
        """
        voice = self.known(source)
        if voice is None:
            speaker = speaker_of(attributes_of(source.resource))
            voice = self._voice(source, speaker, None, now_unix_ns)
            if voice is not None:
                _bound(self._of_segments)
                self._of_segments[source.instance_id] = voice
        return voice

    def of_resource_bytes(self, source: Source, data: bytes, now_unix_ns: int) -> Voice | None:
        """As `of_resource`, of a serialised resource; one that was asked for before is not read again.

        Raises:
            google.protobuf.message.DecodeError: It is no resource.
        """
        voice = self._of_bytes.get((source.instance_id, data))
        if voice is None:
            voice = self.of_resource(source, Resource.FromString(data), now_unix_ns)
            if voice is not None:
                _bound(self._of_bytes)
                self._of_bytes[source.instance_id, data] = voice
        return voice

    def of_resource(self, source: Source, resource: Resource, now_unix_ns: int) -> Voice | None:
        """Return who speaks in a resource of a whole request; ``None``: it belongs to another run."""
        data = resource.SerializeToString(deterministic=True)
        place = (source.instance_id if source.kind in PROCESS_KINDS else source.kind, data)
        voice = self._of_resources.get(place)
        if voice is not None:
            return voice
        attributes: dict[str, object] = dict(mapping_of(resource.attributes))
        process: Process | None = None
        if source.kind in PROCESS_KINDS:
            try:
                outer = self.of_segment(source, now_unix_ns)
            except InvalidRecordError:
                outer = None
            if outer is not None:
                attributes, process = within(outer.speaker.attributes, attributes), outer.process
        voice = self._voice(source, speaker_of(attributes), process, now_unix_ns)
        if voice is not None:
            _bound(self._of_resources)
            self._of_resources[place] = voice
        return voice

    def clear(self) -> None:
        """Forget who was known: a process was forgotten."""
        self._of_segments.clear()
        self._of_resources.clear()
        self._of_bytes.clear()

    def _voice(self, source: Source, speaker: Speaker, process: Process | None, now_unix_ns: int) -> Voice | None:
        if not self._facts.mine(speaker):
            return None
        if process is None:
            # What a bridge says of others it says of processes on its own machine.
            kind = "process" if source.kind == "bridge" else source.kind
            process = self._life.process(speaker, kind, now_unix_ns)
        decoder = self._decoders.get((speaker.role, speaker.rank))
        if decoder is None:
            _bound(self._decoders, _MAX_DECODERS)
            decoder = self._decoders[speaker.role, speaker.rank] = Decoder(speaker.role, speaker.rank)
        return Voice(source, speaker, process, decoder)


def _bound(
    cache: dict[str, Voice] | dict[tuple[str, bytes], Voice] | dict[tuple[str | None, int], Decoder],
    limit: int = _MAX_VOICES,
) -> None:
    if len(cache) >= limit:
        cache.clear()
