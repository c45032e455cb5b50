"""Ports of loopback for the servers of a test, below those that the kernel gives to clients.

Each worker of the test run has a block of its own: between the choice of a port and the start of its server, no other
test may take it.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_FIRST, _BLOCK, _BLOCKS = 12_000, 1_000, 20
_worker = (
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw19").removeprefix("gw")) % _BLOCKS
)
_cursor = [os.getpid() * 7 % _BLOCK]


def _free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def free_port() -> int:
    """Return a port on which nothing listens."""
    return free_ports(1)


def free_pair() -> int:
    """Return the first of two neighbouring ports on which nothing listens."""
    return free_ports(2)


def free_ports(number: int) -> int:
    """Return the first of *number* neighbouring ports on which nothing listens."""
    for _ in range(_BLOCK):
        if _cursor[0] + number > _BLOCK:
            _cursor[0] = 0
        first = _FIRST + _worker * _BLOCK + _cursor[0]
        _cursor[0] += number
        if all(_free(first + one) for one in range(number)):
            return first
    raise OSError(f"no {number} free ports in the block of worker {_worker}")
