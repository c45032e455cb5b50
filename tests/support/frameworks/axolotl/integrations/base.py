"""Fake of ``axolotl.integrations.base``."""

from __future__ import annotations

import importlib


class BasePlugin:
    def __init__(self): ...

    def add_callbacks_post_trainer(self, cfg, trainer):
        return []


class PluginManager:
    _instance = None

    def __init__(self):
        self.plugins = {}

    @staticmethod
    def get_instance():
        if PluginManager._instance is None:
            PluginManager._instance = PluginManager()
        return PluginManager._instance

    def register(self, plugin_name):
        module, name = plugin_name.rsplit(".", 1)
        self.plugins[plugin_name] = getattr(importlib.import_module(module), name)()

    def add_callbacks_post_trainer(self, cfg, trainer):
        callbacks = []
        for plugin in self.plugins.values():
            callbacks.extend(plugin.add_callbacks_post_trainer(cfg, trainer) or [])
        return callbacks
