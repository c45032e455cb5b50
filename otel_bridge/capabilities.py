"""What an installed tracker can do, read from its calls and fields at open, never from its version number.

An ability is one of three. *Required*: without it the writer cannot work, `Capabilities.require`
raises. *Degraded*: the writer works with less, `Capabilities.prefer` keeps one sentence about it.
*Fast path*: the same result, slower; `accepts` alone decides, and nothing is reported. No I/O.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import ModuleType

from packaging.version import InvalidVersion, Version

from otel_bridge.errors import BlockedError, OtelBridgeError

_SIGNATURE = re.compile(
    r"unexpected keyword argument|missing \d+ required|positional arguments? but|missing a required"
    r"|got multiple values for argument"
)
_PROTOBUF = re.compile(r'Protocol message \w+ has no "?\w+"? field')
_NOTHING: Mapping[str, str] = {}


class Capabilities:
    """Collects the abilities of one installed tracker.

    Args:
        tracker: Name and version, as messages begin: ``Trackio 0.36.0``.
        install: Command that installs a version with every required ability.
    """

    def __init__(self, tracker: str, install: str) -> None:
        self._tracker = tracker
        self._install = install
        self._degraded: list[str] = []

    @property
    def degraded(self) -> tuple[str, ...]:
        """One sentence for each ability that is missing and can be done without."""
        return tuple(self._degraded)

    def require(self, owner: object, call: str, *arguments: str) -> None:
        """Require that *owner* has *call*, and that it takes *arguments* by name and needs no other.

        Raises:
            BlockedError: It does not; the message names the call, the help installs a version that has it.
        """
        lack = _lack(owner, call, arguments, whole=True)
        if lack:
            raise BlockedError(f"{self._tracker} {lack}", help=self._install)

    def prefer(self, available: bool, sentence: str) -> bool:
        """Return *available*.

        When it is false, keep *sentence*, which says what is less and which version has it.
        """
        if not available and sentence not in self._degraded:
            self._degraded.append(sentence)
        return available


def accepts(owner: object, call: str, *arguments: str) -> bool:
    """Return whether *owner* has *call*, and whether it takes *arguments* by name.

    ``True`` for a call written in C without a signature: whether it takes them shows only when it
    is made.
    """
    return not _lack(owner, call, arguments, whole=False)


def incompatibility(
    exc: BaseException,
    tracker: str,
    install: str,
    *,
    hints: Mapping[str, str] = _NOTHING,
) -> BlockedError | None:
    """Return the `BlockedError` for a tracker that lacks a module, a name or an argument; ``None`` for another error.

    Such an error comes again with every try, so it is never one to retry. The caller raises it, and
    the exporter waits until a person has installed another version: no record is lost.

    Args:
        exc: What the tracker raised.
        tracker: Name and version, as the message begins.
        install: The help, unless a hint fits.
        hints: Text in the error to the help that mends it, e.g. a dependency that the tracker itself cannot use.
    """
    if not _is_incompatible(exc):
        return None
    text = " ".join(str(exc).split())[:500] or type(exc).__name__
    help_ = next((hint for word, hint in hints.items() if word in text), install)
    what = (
        "cannot be imported" if isinstance(exc, ImportError) else "lacks what is called"
    )
    return BlockedError(f"{tracker} {what}: {text}", help=help_)


def _is_incompatible(exc: BaseException) -> bool:
    """Return whether *exc* shows that the installed version lacks a module, a name, an argument or a field.

    Errors of otel-bridge itself, and of single values, do not.
    """
    if isinstance(exc, OtelBridgeError):
        return False
    if isinstance(exc, ImportError):
        return True
    if isinstance(exc, AttributeError):
        # A plain value without an attribute (None, a dict) is a fault of one call, not of the
        # installed version.
        owner: object = exc.obj
        if (
            isinstance(owner, (type, ModuleType))
            or type(owner).__module__ != "builtins"
        ):
            return True
    if isinstance(exc, (AttributeError, ValueError)):
        return bool(_PROTOBUF.search(str(exc)))
    return isinstance(exc, TypeError) and bool(_SIGNATURE.search(str(exc)))


def _lack(owner: object, call: str, arguments: tuple[str, ...], *, whole: bool) -> str:
    """Return what is missing of a call, empty when it can be made; *whole*: with these arguments and no other.

    A call written in C without a signature counts as one that can be made.

    Signatures are compared, never version numbers (docs/decisions/0029).
    """
    name = getattr(owner, "__name__", type(owner).__name__)
    member: object = getattr(owner, call, None)
    if not callable(member):
        return f"has no {name}.{call}"
    try:
        signature = inspect.signature(member)
        (signature.bind if whole else signature.bind_partial)(
            **dict.fromkeys(arguments)
        )
    except TypeError as exc:
        return f"has another {name}.{call}: {exc}"
    except ValueError:
        pass  # written in C, without a signature
    return ""


# Versions of other packages as numbers that can be compared. Pure.


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of *version* without what follows them, e.g. ``rc1``.

    Empty when it is not a version.
    """
    try:
        return Version(version).release
    except InvalidVersion:
        return ()
