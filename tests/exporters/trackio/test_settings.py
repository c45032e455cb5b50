from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.errors import ConfigError
from otel_bridge.testing import samples
from otel_bridge_trackio import exporter
from otel_bridge_trackio.settings import Remote

RUN = samples.run_info(Path("runs"), "ppo", project="my maths")


def read(**env: str):
    return exporter.read_settings({"HOME": "/nobody", **env}, Path("/work"))


def test_a_server_is_named_without_its_token_which_comes_from_the_address_or_a_variable() -> (
    None
):
    by_address = read(
        TRACKIO_SERVER_URL="http://ada:pw@10.0.0.1:7860?write_token=t1&theme=dark"
    )
    by_variable = read(
        TRACKIO_SERVER_URL="https://trackio.lab/track/", TRACKIO_WRITE_TOKEN="t2"
    )

    assert by_address.remote == Remote("http://10.0.0.1:7860/?theme=dark", None, "t1")
    assert by_variable.remote == Remote("https://trackio.lab/track/", None, "t2")
    assert by_variable.destination == {
        "TRACKIO_SERVER_URL": "https://trackio.lab/track/"
    }
    assert by_variable.view(RUN) == "https://trackio.lab/track/?project=my%20maths"
    assert "t2" not in repr(by_variable)


def test_a_space_goes_before_a_server_and_alone_gets_the_token_of_the_hub(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("hf_stored\n")
    space = read(
        TRACKIO_SPACE_ID="Ada_L/my.trackio",
        TRACKIO_SERVER_URL="http://x:1",
        HF_HOME=str(tmp_path),
    )
    server = read(TRACKIO_SERVER_URL="http://x:1", HF_TOKEN="hf_given")

    assert space.remote == Remote(
        "https://ada-l-my-trackio.hf.space/", "Ada_L/my.trackio", None, "hf_stored"
    )
    assert space.destination == {"TRACKIO_SPACE_ID": "Ada_L/my.trackio"}
    assert server.remote == Remote("http://x:1/")


def test_what_a_destination_does_not_keep_is_said() -> None:
    assert read().caution == ""
    assert "no event times" in read(TRACKIO_SPACE_ID="ada/t").caution
    # A local folder too, where the mode was chosen: nothing about a network.
    assert read(TRACKIO_DIR="/net", TRACKIO_STORAGE_MODE="jsonl").caution == (
        "trackio: /net gets an inbox, rows appear while `trackio show` runs"
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TRACKIO_SPACE_ID", "trackio", "OWNER/NAME"),
        ("TRACKIO_SERVER_URL", "10.0.0.1:7860", "http"),
        ("TRACKIO_SERVER_URL", "http://[::1", "HOST"),
        ("TRACKIO_SERVER_URL", "http://gpu1:http", "HOST"),
        ("TRACKIO_STORAGE_MODE", "parquet", "auto, sqlite, jsonl"),
        ("OTEL_BRIDGE_TRACKIO_TIMEOUT_S", "soon", "TIMEOUT"),
        ("TRACKIO_DIR", "~unknown-user/store", "absolute path"),
        ("HF_HOME", "~unknown-user/hf", "absolute path"),
    ],
)
def test_a_variable_that_cannot_be_used_is_an_error_at_the_start(
    variable: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(**{"TRACKIO_SERVER_URL": "http://x:1", variable: value})


def test_the_inbox_is_used_where_trackio_itself_uses_it() -> None:
    assert read(TRACKIO_STORAGE_MODE="jsonl").inbox
    assert not read(TRACKIO_STORAGE_MODE="sqlite").inbox
    assert not read().inbox
    assert not read(TRACKIO_STORAGE_MODE="jsonl", TRACKIO_SERVER_URL="http://x:1").inbox


def test_settings_make_the_folder_absolute_and_name_the_command(tmp_path: Path) -> None:
    relative = exporter.read_settings({"TRACKIO_DIR": "store"}, tmp_path)
    default = exporter.read_settings({"HOME": "/home/ada"}, tmp_path)

    assert relative.destination == {"TRACKIO_DIR": str(tmp_path / "store")}
    assert (
        relative.view(RUN)
        == f"TRACKIO_DIR={tmp_path}/store trackio show --project 'my maths'"
    )
    assert default.destination == {
        "TRACKIO_DIR": "/home/ada/.cache/huggingface/trackio"
    }
    assert default.view(replace(RUN, project="maths")) == "trackio show --project maths"


@pytest.mark.parametrize("written", ["$SCRATCH/hf", "${SCRATCH}/hf"])
def test_variables_in_the_folder_of_hugging_face_are_replaced_as_by_its_own_library(
    tmp_path: Path, written: str
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_stored")
    env = {"SCRATCH": str(tmp_path), "TRACKIO_SPACE_ID": "ada/t"}

    home = read(**env, HF_HOME=written)
    cache = read(**env, XDG_CACHE_HOME=written)
    token = read(**env, HF_TOKEN_PATH=f"{written}/token")

    assert home.directory == tmp_path / "hf" / "trackio"
    assert cache.directory == tmp_path / "hf" / "huggingface" / "trackio"
    assert token.remote is not None
    assert token.remote.hf_token == "hf_stored"
    assert read(HF_HOME="/$UNSET").directory == Path("/$UNSET/trackio")
