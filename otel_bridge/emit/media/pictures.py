"""What a program calls an image -> the bytes of an image file. Pixels become PNG by pillow.

Files and their bytes stay as they are, so that nothing is lost or spent by encoding them again.
What pillow, numpy or an object of the program raises is raised: of a row it is counted as
``media_unreadable``, of a message as ``rollout_message``.
Source of the first bytes: PNG specification 5.2; ITU-T T.81 B.1.1; GIF89a 17; RFC 9649.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from otel_bridge.journal.files import read_regular

PNG = "image/png"
_IMAGES: Sequence[tuple[bytes, str]] = (
    (b"\x89PNG\r\n\x1a\n", PNG), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)  # fmt: skip
_MAX_SIDE = 1 << 16
_LEVEL = 1
"""Fastest level of compression: the training loop waits."""
_MAX_PIXEL_FACTOR = 4
"""Most numbers for a byte of the limit: the loop waits for their encoding."""
_MAX_SHARE = 2.0
"""Largest float of an image of shares: resizing and rounding pass 1 by a little."""
_CHANNELS = frozenset({1, 2, 3, 4})
_PIL_KEPT = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_PIL_NUMBERS = frozenset({"F", "I", "I;16", "I;16B", "I;16L", "I;16N"})
_PIL_ALPHA = {"PA": "RGBA", "La": "LA", "RGBa": "RGBA"}


class MediaDropped(Exception):  # noqa: N818  # an outcome, caught in this package
    """Raised when a medium cannot be recorded; the text is the reason of the drop.

    For pictures, sounds and films it is ``media_format`` for a form that cannot be encoded,
    ``media_too_large``, or ``media_file`` for a file that cannot be read. The caller counts the
    medium, and goes on with the next one.
    """


def file_bytes(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Return the content of a file of the program.

    Raises:
        MediaDropped: The file cannot be read, is not a regular one, or is larger than
            *limit_bytes*.
    """
    try:
        if Path(path).stat().st_size > limit_bytes:
            raise MediaDropped("media_too_large")
        # Resolved, since a program's file may be a link, which `read_regular` does not follow.
        return read_regular(os.path.realpath(path), limit_bytes)
    except OSError as exc:
        raise MediaDropped("media_file") from exc


def image_bytes(value: object, limit_bytes: int) -> tuple[str, bytes]:
    """Return MIME type and bytes of an image file; files as they are, anything else as PNG.

    What pillow, matplotlib or an object of the program raises is raised.

    Raises:
        MediaDropped: It is not an image, or too large.
    """
    data = given_bytes(value, limit_bytes)
    if data is not None:
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return "image/webp", data
        return mime_by_start(data, _IMAGES), data
    figure: Any = value
    if callable(getattr(figure, "savefig", None)):
        file = LimitedFile(limit_bytes)
        figure.savefig(file, format="png")
        return PNG, file.getvalue()
    if _is_pil(figure):
        return PNG, _of_pil(figure, limit_bytes)
    pixels = _pixels(figure, limit_bytes)
    return PNG, _png(pillow_image(as_bytes(pixels, scale_of(pixels))), limit_bytes)


def pillow_image(pixels: Any) -> Any:
    """Return the pillow image of *pixels*: uint8, shape (height, width, channels) with 1 to 4 channels."""
    from PIL import Image as Pillow  # noqa: PLC0415  # slow to import, and most programs log no image

    return Pillow.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _png(image: Any, limit_bytes: int) -> bytes:
    """Return the file of an image of pillow, in a mode that PNG has.

    Raises `MediaDropped` when a side is too long, or the file too large.
    """
    if max(image.size) > _MAX_SIDE:
        raise MediaDropped("media_too_large")
    file = LimitedFile(limit_bytes)
    image.save(file, "PNG", compress_level=_LEVEL)
    return file.getvalue()


def is_picture(value: object) -> bool:
    """Return whether *value* is an image of pillow or a figure of matplotlib."""
    return _is_pil(value) or callable(getattr(value, "savefig", None))


def _is_pil(value: object) -> bool:
    """Return whether *value* is an image of pillow.

    The classes of its plugins lie in other packages.
    """
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


class LimitedFile(io.BytesIO):
    """Stores bytes in memory, and refuses more than a number of them.

    Args:
        limit_bytes: Most bytes.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes

    def write(self, data: Any, /) -> int:
        """Append *data*.

        Raises:
            MediaDropped: The file would be too large.
        """
        if self.tell() + len(data) > self._limit_bytes:
            raise MediaDropped("media_too_large")
        return super().write(data)


def given_bytes(value: object, limit_bytes: int) -> bytes | None:
    """Return the bytes of a file, given as such or by its path; ``None`` for anything else.

    Bytes have no limit here: `MediaEncoder` adds up what one call logs, and drops what is beyond.

    Raises:
        MediaDropped: The file cannot be read, or is larger than *limit_bytes*.
    """
    if isinstance(value, (str, os.PathLike)):
        return file_bytes(cast("str", value), limit_bytes)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", value))
    return None


def mime_by_start(data: bytes, mimes: Sequence[tuple[bytes, str]]) -> str:
    """Return the MIME type of *data*, by its first bytes.

    Raises:
        MediaDropped: *mimes* has no such beginning.
    """
    for start, mime in mimes:
        if data.startswith(start):
            return mime
    raise MediaDropped("media_format")


def _of_pil(image: Any, limit_bytes: int) -> bytes:
    """Return the bytes of a PNG of an image of pillow, in its own mode where PNG has it.

    Raises:
        MediaDropped: It is empty, or too large.
    """
    width, height = image.size
    if not width or not height:
        raise MediaDropped("media_format")
    # Before the conversion, which would take the memory of all pixels once more.
    if width * height * len(image.getbands()) > limit_bytes * _MAX_PIXEL_FACTOR:
        raise MediaDropped("media_too_large")
    if image.mode in _PIL_NUMBERS:
        image = _shown_of_numbers(image)
    elif image.mode not in _PIL_KEPT:
        image = image.convert(_PIL_ALPHA.get(image.mode, "RGB"))
    return _png(image, limit_bytes)


def _shown_of_numbers(image: Any) -> Any:
    """Return an image of floats or wide integers as grey.

    Converted by pillow, all above 255 would be white. 16 bits stay 16 bits, which PNG has; wide
    integers up to 255 are labels and become 8 bits. Numbers beyond that are black or white.
    """
    if image.mode == "I;16":
        return image
    if image.mode.startswith("I;16"):
        image = image.convert("I")
    _, high = image.getextrema()
    if image.mode == "I" and high > 255:
        return image.convert("I;16")
    factor = 255 if image.mode == "F" and high <= _MAX_SHARE else 1

    def scaled(number: Any) -> Any:  # pillow takes nothing but a product and a sum
        return number * factor + 0

    return image.point(scaled).convert("L")


def _pixels(value: Any, limit_bytes: int) -> Any:
    """Return *value* as a numpy array of numbers, shape (height, width, channels).

    Torch has its channels first; of numpy, where both ends may be channels, the last are.

    Raises:
        MediaDropped: It is not an array of such a shape, or too large.
    """
    array = array_of(value, limit_bytes)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise MediaDropped("media_format")
    first = array.shape[0] in _CHANNELS
    last = array.shape[2] in _CHANNELS
    if first and (_is_torch(value) or not last):
        array = array.transpose(1, 2, 0)
    if array.shape[2] not in _CHANNELS:
        raise MediaDropped("media_format")
    return array


def array_of(value: Any, limit_bytes: int) -> Any:
    """Return numbers of the program as a numpy array in native byte order, not empty.

    Numpy is its own: importing it here would start threads in a program without it.

    Raises:
        MediaDropped: They are not numbers, or too many for *limit_bytes*.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or getattr(value, "shape", None) is None:
        raise MediaDropped("media_format")
    if _is_torch(value):
        array = _of_tensor(value)
    else:
        array = numpy.asarray(value)
    if array.dtype.kind not in "fiub" or not array.size:
        raise MediaDropped("media_format")
    if array.size > limit_bytes * _MAX_PIXEL_FACTOR:
        raise MediaDropped("media_too_large")
    # A type in another byte order equals no other.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _is_torch(value: Any) -> bool:
    return callable(getattr(value, "detach", None))


def _of_tensor(value: Any) -> Any:
    """Return a tensor of torch as an array of numpy, wherever it lies. numpy lacks bfloat16.

    What torch raises else is raised; `MediaEncoder` counts it as ``media_unreadable``.
    """
    value = value.detach().cpu()
    try:
        return value.numpy()
    except TypeError:  # bfloat16
        return value.float().numpy()


def scale_of(array: Any) -> float:
    """Return the factor by which numbers of *array* become 0 to 255, for `as_bytes` of it or of a part of it.

    One factor for the whole, since each frame of a film by itself would flicker. Booleans are 0 and
    255, 16 bits shares of 65,535 when one is above 255, floats shares of 1 when none is much above
    it; other numbers stay.
    """
    numpy = sys.modules["numpy"]
    if array.dtype.kind == "b":
        return 255.0
    if array.dtype == numpy.uint16 and array.max() > 255:
        return 1 / 257
    if array.dtype.kind != "f":
        return 1.0
    with numpy.errstate(all="ignore"):
        high = numpy.max(array, where=numpy.isfinite(array), initial=0.0)
    return 255.0 if high <= _MAX_SHARE else 1.0


def as_bytes(part: Any, scale: float) -> Any:
    """Return numbers as uint8 by their `scale_of`, those beyond 0 and 255 at the ends; NaN is 0."""
    numpy = sys.modules["numpy"]
    if part.dtype == numpy.uint8:
        return part
    # Of NaN and of values beyond 32 bits: numpy would warn in the program's output.
    with numpy.errstate(all="ignore"):
        numbers = part.astype(numpy.float32) * scale
    whole = numpy.nan_to_num(numbers, posinf=255.0, neginf=0.0).round()
    return whole.clip(0, 255).astype(numpy.uint8)
