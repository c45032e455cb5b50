"""Objects of a program within its messages -> GenAI parts: pictures, arrays of pixels, media of `otel_bridge`."""

from __future__ import annotations

import base64

from otel_bridge.emit.conversations.attachments import MAX_MEDIUM_BYTES, parts_of
from otel_bridge.emit.media.pictures import image_bytes, is_picture
from otel_bridge.emit.media.values import Media
from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages.fields import entries_of
from otel_bridge.messages.parts import Parts
from otel_bridge.records import Json


class ProgramParts(Parts):
    """Collects the parts of one message of a program."""

    __slots__ = ()

    def add_media(self, kind: str, media: object) -> None:
        """Add what stands beside the content of a message, also as media of `otel_bridge`."""
        for medium in entries_of(media):
            if isinstance(medium, Media):
                self._add_object(medium)
            else:
                super().add_media(kind, (medium,))

    def _add_object(self, value: object) -> None:
        """Add an object without fields as a medium, else as text (see `Parts`)."""
        if isinstance(value, Media):
            self.add_content(parts_of([value], self.content_filter.losses))
            return
        picture = self._picture(value)
        if picture is not None:
            self.parts.append(picture)
        else:
            super()._add_object(value)

    def _picture(self, value: object) -> dict[str, Json] | None:
        """Encode the bytes of an image file, a picture of pillow, or pixels.

        ``None`` for anything else, and for what cannot be encoded: the caller counts it.
        """
        if not (
            isinstance(value, bytes) or is_picture(value) or hasattr(value, "__array__")
        ):
            return None
        try:
            mime, data = image_bytes(value, MAX_MEDIUM_BYTES)
        except any_error_but_signals():
            # A broken picture costs itself alone, not its message.
            return None
        return self.blob(mime, "image", base64.b64encode(data).decode())
