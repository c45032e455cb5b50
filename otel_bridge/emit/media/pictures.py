"""What a program calls an image -> the bytes of an image file, with what is installed and already imported.

Files and their bytes stay as they are, so that nothing is lost or spent by encoding them again. Source of the first
bytes: PNG specification 5.2; ITU-T T.81 B.1.1; GIF89a 17; RFC 9649.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, Final, cast

from otel_bridge.emit.media.png import png_of
from otel_bridge.journal.files import read_regular

PNG: Final = "image/png"
_MAX_PIXEL_FACTOR: Final = 8
"""Most bytes of pixels for a byte of the limit: beyond it, no compression helps, and the loop would wait for it."""
_CHANNELS: Final = frozenset({1, 2, 3, 4})


class MediaDropped(Exception):  # noqa: N818  # an outcome, caught in this package
    """Raised when a medium cannot be recorded; the text is the reason of the drop."""


def file_bytes(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Return the content of a file of the program.

    Raises:
        MediaDropped: The file does not exist, or is larger than *limit_bytes*.
    """
    try:
        if Path(path).stat().st_size > limit_bytes:
            raise MediaDropped("media_too_large")
        return read_regular(os.path.realpath(path), limit_bytes)
    except OSError as exc:
        raise MediaDropped("media_file") from exc


def image_bytes(value: object, limit_bytes: int) -> tuple[str, bytes]:
    """Return MIME type and bytes of an image file.

    Raises:
        MediaDropped: It is not an image, or too large.
    """
    if isinstance(value, (str, os.PathLike)):
        value = file_bytes(cast("str", value), limit_bytes)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(cast("bytes", value))
        return _mime_of(data), data
    figure: Any = value
    if callable(getattr(figure, "savefig", None)):
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return PNG, file.getvalue()
    if type(figure).__module__.partition(".")[0] == "PIL":
        return PNG, _of_pil(figure)
    return PNG, png_of(_pixels(figure, limit_bytes))


def _mime_of(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return PNG
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise MediaDropped("media_format")


def _of_pil(image: Any) -> bytes:
    if image.mode not in {"1", "L", "LA", "P", "RGB", "RGBA"}:
        image = image.convert("RGB")
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _pixels(value: Any, limit_bytes: int) -> Any:
    """Return *value* as a numpy array of uint8, shape (height, width, channels)."""
    array = array_of(value, limit_bytes)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise MediaDropped("media_format")
    first, last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
    if first and (_is_torch(value) or not last):
        array = array.transpose(1, 2, 0)
    if array.shape[2] not in _CHANNELS:
        raise MediaDropped("media_format")
    return as_bytes(array)


def array_of(value: Any, limit_bytes: int) -> Any:
    """Return numbers of the program as a numpy array that is not empty; numpy is its own, not imported here.

    Raises:
        MediaDropped: They are not numbers, or too many for *limit_bytes*.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or getattr(value, "shape", None) is None:
        raise MediaDropped("media_format")
    array = _of_tensor(value) if _is_torch(value) else numpy.asarray(value)
    if array.dtype.kind not in "fiub" or not array.size:
        raise MediaDropped("media_format")
    if array.size > limit_bytes * _MAX_PIXEL_FACTOR:
        raise MediaDropped("media_too_large")
    return array


def _is_torch(value: Any) -> bool:
    return callable(getattr(value, "detach", None))


def _of_tensor(value: Any) -> Any:
    value = value.detach().cpu()
    try:
        return value.numpy()
    except TypeError:  # bfloat16
        return value.float().numpy()


def as_bytes(array: Any) -> Any:
    """Return numbers as uint8: floats up to 1 are shares of 255, booleans 0 and 255."""
    numpy = sys.modules["numpy"]
    if array.dtype == numpy.uint8:
        return array
    if array.dtype.kind == "b":
        return array.astype(numpy.uint8) * 255
    if array.dtype.kind == "f":
        array = numpy.nan_to_num(array.astype(numpy.float32), posinf=255.0, neginf=0.0)
        if array.max() <= 1.0:
            array = array * 255.0
        array = array.round()
    return array.clip(0, 255).astype(numpy.uint8)
