"""Sounds and films of a program -> the bytes of files. Files and their bytes stay as they are.

Samples become WAV. What pillow, numpy or an object of the program raises is raised, as of pictures.

Source of the first bytes: RFC 2361 and 9639, RFC 3533; ISO/IEC 14496-12 4.3; RFC 8794 4; ISO/IEC
11172-3 2.4.1.
"""

from __future__ import annotations

import io
import sys
import wave
from collections.abc import Sequence
from typing import Any

from otel_bridge.emit.media.pictures import (
    LimitedFile,
    MediaDropped,
    array_of,
    as_bytes,
    given_bytes,
    mime_by_start,
    pillow_image,
    scale_of,
)
from otel_bridge.values.scalars import number_of

WAV = "audio/wav"
GIF = "image/gif"
_DEFAULT_FPS = 4
_MAX_FRAMES = 10_000
# GIF89a 23: the delay of a frame has 16 bits, in hundredths of a second.
_MAX_FRAME_MS = 655_350
_FAST_OCTREE = 2
"""``PIL.Image.Quantize.FASTOCTREE``."""
_CHANNELS = frozenset({1, 3, 4})
_AUDIO: Sequence[tuple[bytes, str]] = (
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)
_VIDEO: Sequence[tuple[bytes, str]] = (
    (b"\x1aE\xdf\xa3", "video/webm"), (b"OggS", "video/ogg"), (b"GIF87a", GIF), (b"GIF89a", GIF),
)  # fmt: skip


def audio_bytes(
    value: object, sample_rate: object, limit_bytes: int
) -> tuple[str, bytes]:
    """Return MIME type and bytes of a sound.

    Raises:
        MediaDropped: It is not a sound, or too large.
    """
    data = given_bytes(value, limit_bytes)
    if data is None:
        return WAV, _wav(array_of(value, limit_bytes), sample_rate, limit_bytes)
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return WAV, data
    if data[:1] == b"\xff" and data[1:2] >= b"\xe0":
        return "audio/mpeg", data
    return mime_by_start(data, _AUDIO), data


def video_bytes(value: object, fps: object, limit_bytes: int) -> tuple[str, bytes]:
    """Return MIME type and bytes of a film; pixels become a GIF.

    Raises:
        MediaDropped: It is not a film, or too large.
    """
    data = given_bytes(value, limit_bytes)
    if data is None:
        return GIF, _gif(array_of(value, limit_bytes), fps, limit_bytes)
    if data[4:8] == b"ftyp":
        return "video/mp4", data
    return mime_by_start(data, _VIDEO), data


def _wav(samples: Any, sample_rate: object, limit_bytes: int) -> bytes:
    """Return samples as a WAV file of 16 bits.

    Raises:
        MediaDropped: There is no rate, the shape is not that of sound, or it is too large.
    """
    rate = number_of(sample_rate)
    if rate is None or not 0 < rate < 1 << 31 or samples.ndim not in {1, 2}:
        raise MediaDropped("media_format")
    if 2 * samples.size > limit_bytes:
        raise MediaDropped("media_too_large")
    # A row for each channel, as torchaudio has it.
    if samples.ndim == 2 and samples.shape[0] < samples.shape[1]:
        samples = samples.T
    data = _as_16_bits(samples).astype("<i2").tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(samples.shape[1] if samples.ndim == 2 else 1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(data)
    return file.getvalue()


def _as_16_bits(samples: Any) -> Any:
    """Return samples as numbers of 16 bits.

    Those of 8 and of 32 bits have the range of WAV and of numpy's integers; 32 bits that never
    exceed 16 are 16 bits in a wider type. NaN is silence.

    Raises:
        MediaDropped: They are booleans.
    """
    numpy = sys.modules["numpy"]
    if samples.dtype.kind == "f":
        with numpy.errstate(all="ignore"):
            return (
                numpy.nan_to_num(
                    samples.astype(numpy.float32), posinf=1.0, neginf=-1.0
                ).clip(-1, 1)
                * 32_767
            )
    if samples.dtype.kind == "b":
        raise MediaDropped("media_format")
    if samples.dtype == numpy.uint8:
        return (samples.astype(numpy.int16) - 128) * 256
    if (
        samples.dtype == numpy.int32
        and max(samples.max(), -int(samples.min())) > 1 << 15
    ):
        return samples >> 16
    return samples.clip(-32_768, 32_767)


def _gif(frames: Any, fps: object, limit_bytes: int) -> bytes:
    """Return frames as a GIF, which every browser plays and pillow writes.

    A rate that is not a number above 0 is 4 a second.

    Raises:
        MediaDropped: The shape is not that of a film, or it is too large.
    """
    if frames.ndim == 3:
        frames = frames[..., None]
    if frames.ndim != 4 or not frames.size or len(frames) > _MAX_FRAMES:
        raise MediaDropped("media_format")
    if frames.shape[1] in _CHANNELS and frames.shape[3] not in _CHANNELS:
        frames = frames.transpose(0, 2, 3, 1)
    if frames.shape[3] not in _CHANNELS:
        raise MediaDropped("media_format")
    scale = scale_of(frames)

    def shown(frame: Any) -> Any:
        image = pillow_image(as_bytes(frame, scale))
        # Pillow would choose the colours of a frame by median cut, which takes a second where there
        # are many.
        if image.mode == "L":
            return image
        return image.quantize(method=_FAST_OCTREE)

    if isinstance(fps, (int, float)) and fps > 0:
        rate = float(fps)
    else:
        rate = _DEFAULT_FPS
    # Browsers slow a frame of less than 20 ms down.
    duration_ms = min(max(round(1_000 / max(rate, 1e-3)), 20), _MAX_FRAME_MS)
    file = LimitedFile(limit_bytes)
    later_images = map(shown, frames[1:])
    shown(frames[0]).save(
        file,
        "GIF",
        save_all=True,
        append_images=later_images,
        duration=duration_ms,
        loop=0,
    )
    return file.getvalue()
