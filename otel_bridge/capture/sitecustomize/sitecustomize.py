"""Begin the capture in each Python program that `otel-bridge run --capture` starts.

Loads nothing until the program imports a captured package. It runs in every Python of the command,
also in old ones and those without otel-bridge, so that it is plain code.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OWN = os.path.dirname(os.path.abspath(__file__))
_PACKAGES = {
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "open_instruct": ("open_instruct",),
    "slime": ("slime", "miles"),
}


class _FirstImport:
    """Loads the import hook when the program imports the first captured package.

    Until then otel_bridge is not imported: that would slow down every Python of the command.
    """

    otel_bridge_capture = True

    def __init__(self, names: "list[str]") -> None:
        self.otel_bridge_names = names
        self._packages: set[str] = {
            package for name in names for package in _PACKAGES.get(name, ())
        }

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Hand over to the import hook.

        Without otel-bridge, print one line and leave the import as it is.

        ``None`` for a module of no captured package. After a failure, such as a wrong setting, the
        process is not captured any more.
        """
        if name.partition(".")[0] not in self._packages:
            return None
        try:
            from otel_bridge.capture import hook  # noqa: PLC0415  # only programs that import a tracker pay for it

            hook.capture(*self.otel_bridge_names)
        except Exception as exc:  # noqa: BLE001  # the program must continue
            # Once: the next captured package would fail in the same way.
            self._packages = set()
            self.otel_bridge_names = []
            sys.stderr.write(
                f"otel-bridge: nothing is captured in this process: {exc}\n"
            )
            return None
        return hook.find(name, path, target)


def _begin() -> None:
    """Put the finder of captured packages first, if ``OTEL_BRIDGE_CAPTURE`` names any.

    Nothing in the process of a bridge (``OTEL_BRIDGE_NO_BRIDGE``), which writes with the real
    packages.
    """
    # The settings are read here without otel_bridge.settings, which is not loaded before it is
    # needed.
    setting = os.environ.get("OTEL_BRIDGE_CAPTURE", "")
    names = [name.strip() for name in setting.split(",") if name.strip()]
    if names and not os.environ.get("OTEL_BRIDGE_NO_BRIDGE"):
        sys.meta_path.insert(0, _FirstImport(names))


def _run_the_users() -> None:
    """Run the `sitecustomize` that this one hides, as Python would.

    Without one nothing happens. This one stays in `sys.modules` then, as Python's own import of it
    expects.
    """
    # Else the import below would find this module again, not the user's of that name.
    this_module = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _OWN]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415  # another one, now that this folder is not in the path
    except ImportError as exc:
        # An error in the user's module is shown as without the capture.
        if exc.name != "sitecustomize":
            raise
        if this_module is not None:
            sys.modules["sitecustomize"] = this_module


_begin()
_run_the_users()
