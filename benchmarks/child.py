"""A measurement in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping


def printed(code: str, env: Mapping[str, str] | None, *arguments: str) -> str:
    """Run Python *code*; return the last line that it prints, empty when it prints none.

    Raises:
        RuntimeError: It failed, with what it said last.
    """
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else ""
