"""How long a test waits for what must come: enough for a slow, busy machine. Only a test that fails waits so long."""

from __future__ import annotations

import os
from typing import Final

HANG_S: Final = float(os.environ.get("TEST_HANG_S", "300"))
"""Seconds for a process, a tracker or a page; a test that hangs longer has failed. ``TEST_HANG_S=20`` fails sooner."""
ANSWER_S: Final = 60.0
"""Seconds for one answer of a server that runs."""
