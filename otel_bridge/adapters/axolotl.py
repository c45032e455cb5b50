"""Adapter of axolotl: a plugin, named by its class path in the configuration.

.. code-block:: yaml

    plugins:
      - otel_bridge.adapters.axolotl.OtelBridgePlugin

It adds the callback of transformers to the trainer that axolotl has made, with the names that the configuration gives
to any tracker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import guarded

if TYPE_CHECKING:

    class BasePlugin:
        """What is used of ``axolotl.integrations.base.BasePlugin``."""

else:
    BasePlugin = framework_class("axolotl.integrations.base:BasePlugin", "axolotl>=0.19")

_PROJECTS: Final = (
    "wandb_project", "mlflow_experiment_name", "trackio_project_name", "swanlab_project", "comet_project_name",
)  # fmt: skip
_NAMES: Final = ("wandb_name", "mlflow_run_name", "trackio_run_name", "swanlab_experiment_name")


class OtelBridgePlugin(BasePlugin):
    """Adds the callback that records what axolotl's trainer logs. No method raises."""

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        """Return the callback, which knows *trainer* and so records completions too.

        Args:
            cfg: axolotl's configuration, recorded below ``axolotl``.
            trainer: The trainer.
        """
        return _callbacks(cfg, trainer) or []


@guarded
def _callbacks(cfg: Any, trainer: Any) -> list[Any]:
    from otel_bridge.adapters.transformers import OtelBridgeCallback  # noqa: PLC0415  # imports transformers

    project, name = _first(cfg, _PROJECTS), _first(cfg, _NAMES)
    return [OtelBridgeCallback(trainer, project, name, config={"axolotl": cfg})]


def _first(cfg: Any, keys: tuple[str, ...]) -> str | None:
    """Return the first text among *keys* of the configuration."""
    return next((value for key in keys if isinstance(value := cfg.get(key), str) and value), None)
