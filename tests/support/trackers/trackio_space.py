"""The exporter ``trackio`` with a Space on loopback: Trackio's server in its Space mode, whose own token ours is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from otel_bridge_trackio import exporter as trackio
from otel_bridge_trackio.settings import Remote, TrackioSettings

URL = "TRACKIO_TEST_SPACE_URL"
SPACE = "ada/trackio"
TOKEN = "hf_mine"


def _settings(env: Mapping[str, str], cwd: Path) -> TrackioSettings:
    # A Space's address is made of its name, and always https: this one's is given by the test.
    settings = TrackioSettings.from_environment({**env, "TRACKIO_SPACE_ID": SPACE}, cwd)
    return dataclasses.replace(
        settings, remote=Remote(os.environ[URL], SPACE, hf_token=TOKEN)
    )


exporter = dataclasses.replace(trackio, read_settings=_settings)
