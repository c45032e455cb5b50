"""Records what axolotl's trainer logs, by a plugin that the configuration names by its class path.

.. code-block:: yaml

    plugins:
      - otel_bridge.adapters.axolotl.OtelBridgePlugin

The plugin adds the callback of transformers to axolotl's trainer, with the names that the
configuration gives to any tracker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import guarded

if TYPE_CHECKING:

    class BasePlugin:
        """Declares the members of ``axolotl.integrations.base.BasePlugin`` that this adapter uses."""

else:
    BasePlugin = framework_class(
        "axolotl.integrations.base:BasePlugin", "axolotl>=0.19"
    )

_PROJECTS = (
    "wandb_project", "mlflow_experiment_name", "trackio_project_name", "swanlab_project", "comet_project_name",
)  # fmt: skip
_NAMES = (
    "wandb_name",
    "mlflow_run_name",
    "trackio_run_name",
    "swanlab_experiment_name",
)


class OtelBridgePlugin(BasePlugin):
    """Adds the callback that records what axolotl's trainer logs. No method raises."""

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        """Return the callback; it knows *trainer*, so it records completions too.

        Args:
            cfg: axolotl's configuration, recorded below ``axolotl``.
            trainer: The trainer.
        """
        # `guarded` returns None after a failure; axolotl needs a list.
        return _callbacks(cfg, trainer) or []


@guarded
def _callbacks(cfg: Any, trainer: Any) -> list[Any]:
    """Return the callback of transformers for *trainer*; ``None``, counted, after a failure."""
    from otel_bridge.adapters.transformers import OtelBridgeCallback  # noqa: PLC0415  # imports transformers

    project = _first(cfg, _PROJECTS)
    name = _first(cfg, _NAMES)
    return [OtelBridgeCallback(trainer, project, name, config={"axolotl": cfg})]


def _first(cfg: Any, keys: tuple[str, ...]) -> str | None:
    """Return the first text among *keys* of the configuration.

    ``None`` where none of them is a text.
    """
    for key in keys:
        value = cfg.get(key)
        if isinstance(value, str) and value:
            return value
    return None
