"""The header ``Retry-After`` of a server that is busy -> how long to wait. Source: RFC 9110, section 10.2.3."""

from __future__ import annotations

import re
import time
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,10}")


def retry_after_s(header: str | None, now_s: float | None = None) -> float | None:
    """Return the seconds to wait; ``None`` when *header* names none or cannot be understood.

    Args:
        header: Whole seconds, or a date, as proxies send it; one that has passed means at once.
        now_s: Unix time; default: now.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        until_s = (until if until.tzinfo else until.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return max(until_s - (time.time() if now_s is None else now_s), 0.0)
