"""Fake of ``trinity.utils.log``."""

from __future__ import annotations

import logging
import sys


def get_logger(name=None, level=None, in_ray_actor=False):
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.setLevel(logging.INFO)
    return logger
