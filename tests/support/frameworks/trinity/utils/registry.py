"""Fake of ``trinity.utils.registry``."""

from __future__ import annotations

import importlib


class Registry:
    def __init__(self, name, default_mapping=None):
        self.name = name

    def get(self, module_key):
        module, _, name = module_key.rpartition(".")
        return getattr(importlib.import_module(module), name)
