"""Media in files, Trackio, MLflow and W&B offline, read back as each of them shows it; written twice, there once."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

import otel_bridge_mlflow
from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter, left_out_of
from otel_bridge.media_files import file_name
from otel_bridge.records import MediaRecord, Status
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge_local import file as file_exporter
from otel_bridge_local.console import ConsoleRunWriter
from otel_bridge_local.file import MediaFolder
from otel_bridge_trackio import exporter as trackio_exporter
from otel_bridge_trackio.writer import NO_MEDIA
from otel_bridge_wandb import exporter as wandb_exporter
from support.media_samples import image, item, media, png, table, text
from support.trackers import mlflow_reading
from support.trackers.trackio_store import DIRECTORY, ENVIRONMENT, HAS_INBOX, rows_in
from support.trackers.wandb_offline import offline_directories, read_offline_run


def some() -> list[MediaRecord]:
    return [
        media("one", image(1, "first"), position=1),
        media("many", image(2, "a"), image(3, "b"), position=2),
        media(
            "t",
            table(["q", "p"], [["x", {"media": 0}], [1.5, None]]),
            cells=[image(4)],
            position=3,
        ),
        media("words", text("a <b>", caption="c"), position=4),
        media("md", text("# A", "markdown"), position=5),
        media("page", text("<p>hi</p>", "html"), position=6),
    ]


SOUND, FILM = (
    item("audio", "audio/wav", b"RIFF\0\0\0\0WAVE", "a sound"),
    item("video", "video/mp4", b"\0\0\0\x18ftyp"),
)
GIF = item("video", "image/gif", b"GIF89a")


def moving() -> list[MediaRecord]:
    return [
        media("sound", SOUND, position=1),
        media("film", FILM, position=2),
        media("gif", GIF, position=3),
    ]


@pytest.mark.parametrize("umask", [0, 0o022])
def test_no_other_user_reads_the_files_of_the_exporter_file_whatever_the_umask_is(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        run = RunInfo("r", "p", "n", tmp_path / "r")
        writer = open_writer(
            file_exporter, run, file_exporter.read_settings({}, tmp_path), MemoryTable()
        )
        deliver(writer, some())
        writer.close()
    finally:
        os.umask(before)

    modes = {
        (path.is_dir(), oct(path.stat().st_mode & 0o777))
        for path in (tmp_path / "r").rglob("*")
    }
    assert modes == {(True, "0o700"), (False, "0o600")}


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    """Skip tests of trackers that are not installed: each runs with other versions of one tracker too."""
    name = request.node.name.replace("inbox", "trackio")
    for tracker in ("trackio", "mlflow", "wandb"):
        if tracker in name and importlib.util.find_spec(tracker) is None:
            pytest.skip(f"{tracker} is not installed")


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunInfo:
    project = "".join(char for char in request.node.name if char.isalnum())[:60]
    found = samples.run_info(tmp_path, project=project)
    found.folder.mkdir(parents=True, exist_ok=True)
    return found


# --- file and console -------------------------------------------------------------------------------------------------
def test_files_lie_beside_the_lines_that_name_them(
    run: RunInfo, tmp_path: Path
) -> None:
    memory = MemoryTable()
    for _ in range(2):
        writer = open_writer(
            file_exporter, run, file_exporter.read_settings({}, tmp_path), memory
        )
        deliver(writer, some())
        writer.close()

    lines = [
        orjson.loads(line)
        for line in (run.folder / "file" / "records-000001.jsonl")
        .read_bytes()
        .splitlines()
    ]
    assert [line["key"] for line in lines] == [record.key for record in some()]
    assert lines[2]["cells"][0]["file"] == f"media/{file_name(image(4))}"
    for record, line in zip(some(), lines, strict=True):
        for each, shown in zip(
            [*record.items, *record.cells],
            [*line["items"], *line["cells"]],
            strict=True,
        ):
            assert (run.folder / "file" / shown["file"]).read_bytes() == each.data
            assert (shown["type"], shown["caption"], shown["size"]) == (
                each.kind,
                each.caption,
                len(each.data),
            )


def test_the_oldest_files_go_when_the_folder_is_full(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media", 250)
    old, new = (
        item("text", "text/plain", b"o" * 200),
        item("text", "text/plain", b"n" * 200),
    )

    folder.put([old])
    folder.put([new])

    assert [path.name for path in (tmp_path / "media").iterdir()] == [file_name(new)]


def test_a_link_at_the_folder_of_media_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(bytes(1000))
    (tmp_path / "media").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(
        OSError, match="it is a symbolic link, expected a folder; remove it"
    ):
        MediaFolder(tmp_path / "media", 250).put([image(1)])

    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["precious"]


def test_the_console_prints_a_line_for_each(run: RunInfo) -> None:
    stream = io.StringIO()

    ConsoleRunWriter(run, stream).write_media(some()[:2])

    first, second = stream.getvalue().splitlines()
    assert first.endswith(
        f"trainer/step=3 trainer/one image[{len(png(1))} bytes] first"
    )
    assert "trainer/many image" in second


# --- Trackio ----------------------------------------------------------------------------------------------------------
def test_trackio_shows_media_from_its_own_folder(run: RunInfo) -> None:
    memory = MemoryTable()
    for _ in range(2):
        deliver(
            open_writer(
                trackio_exporter,
                run,
                trackio_exporter.read_settings(ENVIRONMENT, Path.cwd()),
                memory,
            ),
            some(),
        )

    rows = rows_in(DIRECTORY, run)
    shown = {
        key: value
        for row in rows
        for key, value in row.items()
        if isinstance(value, dict)
    }
    place = f"{run.project}/{run.name}/3/"
    assert len(rows) == len(some())
    assert {row["step"] for row in rows} == {3}
    assert shown == {
        "trainer/one": _trackio_image(place, 1, "first"),
        "trainer/many": {
            "_type": "trackio.table",
            "_value": [
                {"image": _trackio_image(place, 2, "a"), "caption": "a"},
                {"image": _trackio_image(place, 3, "b"), "caption": "b"},
            ],
        },
        "trainer/t": {
            "_type": "trackio.table",
            "_value": [
                {"q": "x", "p": _trackio_image(place, 4, None)},
                {"q": 1.5, "p": None},
            ],
        },
        "trainer/words": {
            "_type": "trackio.markdown",
            "_value": "**c**\n\n```\na <b>\n```",
        },
        "trainer/md": {"_type": "trackio.markdown", "_value": "# A"},
        "trainer/page": {
            "_type": "trackio.html",
            "file_path": place + file_name(text("<p>hi</p>", "html")),
            "caption": None,
        },
    }
    assert (DIRECTORY / "media" / place / file_name(image(1))).read_bytes() == png(1)


def test_trackio_plays_sounds_and_films_and_shows_a_gif_as_an_image(
    run: RunInfo,
) -> None:
    writer = open_writer(
        trackio_exporter,
        run,
        trackio_exporter.read_settings(ENVIRONMENT, Path.cwd()),
        MemoryTable(),
    )

    deliver(writer, moving())

    rows = rows_in(DIRECTORY, run)
    shown = {
        key: value
        for row in rows
        for key, value in row.items()
        if isinstance(value, dict)
    }
    assert {key: (value["_type"], value["caption"]) for key, value in shown.items()} == {
        "trainer/sound": ("trackio.audio", "a sound"), "trainer/film": ("trackio.video", None),
        "trainer/gif": ("trackio.image", None),
    }  # fmt: skip
    assert (
        DIRECTORY / "media" / shown["trainer/film"]["file_path"]
    ).read_bytes() == FILM.data


@pytest.mark.parametrize(
    "name",
    ["../../../evil", "/tmp/evil", "a/../../../b", "..", "x" * 300, "nul\0", "a//b"],
)
def test_trackio_files_of_a_run_with_an_odd_name_stay_in_trackios_folder(
    run: RunInfo, name: str
) -> None:
    odd = replace(run, name=name)
    writer = open_writer(
        trackio_exporter,
        odd,
        trackio_exporter.read_settings(ENVIRONMENT, Path.cwd()),
        MemoryTable(),
    )

    deliver(writer, some()[:1])

    (row,) = rows_in(DIRECTORY, odd)
    project, folder, step, file = row["trainer/one"]["file_path"].split("/")
    assert (project, folder[:4], step, file) == (
        run.project,
        "run-",
        "3",
        file_name(image(1)),
    )
    assert (DIRECTORY / "media" / row["trainer/one"]["file_path"]).read_bytes() == png(
        1
    )


def test_columns_of_one_name_are_all_shown() -> None:
    record = media("t", table(["a", "a", "a_2", "a"], [[1, 2, 3, 4]]))

    assert record.table(record.items[0]) == (
        ["a", "a_2", "a_2_2", "a_3"],
        [[1, 2, 3, 4]],
    )


def _trackio_image(place: str, shade: int, caption: str | None) -> dict[str, object]:
    return {
        "_type": "trackio.image",
        "file_path": place + file_name(image(shade)),
        "caption": caption,
    }


@pytest.mark.skipif(not HAS_INBOX, reason="this Trackio has no inbox")
def test_an_inbox_takes_none_and_they_are_counted(run: RunInfo) -> None:
    settings = trackio_exporter.read_settings(
        {**ENVIRONMENT, "TRACKIO_STORAGE_MODE": "jsonl"}, Path.cwd()
    )
    writer = open_writer(trackio_exporter, run, settings, MemoryTable())

    deliver(writer, some())

    assert writer.left_out == {NO_MEDIA: len(some())}  # type: ignore[attr-defined]


# --- MLflow -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_mlflow_shows_images_as_a_series_and_the_rest_as_artifacts(
    run: RunInfo, tmp_path: Path
) -> None:
    uri, memory = mlflow_reading.database(tmp_path), MemoryTable()
    settings = otel_bridge_mlflow.exporter.read_settings(
        {"MLFLOW_TRACKING_URI": uri}, tmp_path
    )
    for _ in range(2):
        writer = open_writer(otel_bridge_mlflow.exporter, run, settings, memory)
        deliver(writer, some())
    assert writer.left_out == {"captions: MLflow shows none": 4}  # type: ignore[attr-defined]

    api, (found,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    folder = Path(
        urlsplit(found.info.artifact_uri).path
    )  # MLflow 3.7 cannot download what its own log_image names
    names = sorted(
        path.name.replace("%", "+") for path in (folder / "images").iterdir()
    )
    assert [name.split("+")[:3] for name in names] == [
        ["trainer~many", "step", "3"] for _ in range(4)
    ] + [["trainer~one", "step", "3"] for _ in range(2)]  # fmt: skip
    assert sum(name.endswith("+compressed.webp") for name in names) == 3
    (one,) = (folder / "images").glob("trainer~one*[!d].png")
    assert one.read_bytes() == png(1)
    assert found.data.tags["mlflow.loggedImages"] == "True"
    (listed,) = json.loads(found.data.tags["mlflow.loggedArtifacts"])
    shown = api._read_from_file(
        str(folder / listed["path"])
    )  # as `load_table` reads it
    assert shown[["q", "p"]].iloc[1].tolist() == [1.5, None]
    assert (folder / shown["p"][0]["filepath"]).read_bytes() == png(4)
    (words,) = (folder / "media" / "trainer~words").iterdir()
    assert words.read_text() == "a <b>"
    assert {path.name for path in (folder / "media").iterdir()} == {
        "trainer~md",
        "trainer~page",
        "trainer~words",
    }


def mlflow_writer(uri: str, run: RunInfo, cwd: Path) -> RunWriter:
    exporter = otel_bridge_mlflow.exporter
    settings = exporter.read_settings({"MLFLOW_TRACKING_URI": uri}, cwd)
    return open_writer(exporter, run, settings, MemoryTable())


@pytest.mark.slow
def test_mlflow_shows_images_of_keys_with_other_letters_as_series_of_their_own(
    run: RunInfo, tmp_path: Path
) -> None:
    uri = mlflow_reading.database(tmp_path)
    writer = mlflow_writer(uri, run, tmp_path)

    deliver(
        writer, [media("ä", image(1), position=1), media("ü", image(1), position=2)]
    )

    (found,) = mlflow_reading.runs_of(uri, run)
    listed = mlflow_reading.client(uri).list_artifacts(found.info.run_id, "images")
    assert len({re.split("[+%]", one.path)[0] for one in listed}) == 2


@pytest.mark.slow
def test_an_artifact_store_of_mlflow_that_refuses_costs_the_media_alone(
    run: RunInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = mlflow_reading.database(tmp_path)
    writer = mlflow_writer(uri, run, tmp_path)

    def denied(*_: object) -> None:
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(type(writer._connection.client), "log_artifacts", denied)  # type: ignore[attr-defined]
    with pytest.raises(PermanentError, match="trainer/one") as refused:
        writer.write_media(some())  # type: ignore[attr-defined]
    writer.write_rows([samples.row(1, position=9)])

    assert refused.value.position == 1
    (found,) = mlflow_reading.runs_of(uri, run)
    assert "trainer/loss" in found.data.metrics


@pytest.mark.slow
@pytest.mark.parametrize("location", ["{folder}/file/artifacts", "mlflow-artifacts:/1"])
def test_an_artifact_store_of_mlflow_that_this_machine_cannot_use_costs_the_media_alone(
    run: RunInfo, tmp_path: Path, location: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    uri = mlflow_reading.database(tmp_path)
    place = location.format(folder=tmp_path)
    mlflow_reading.client(uri).create_experiment(run.project, artifact_location=place)
    writer = mlflow_writer(uri, run, tmp_path)

    with pytest.raises(PermanentError, match="trainer/one") as refused:
        writer.write_media(some())  # type: ignore[attr-defined]

    assert refused.value.position == 1


@pytest.mark.slow
def test_a_caption_that_mlflow_cannot_show_is_counted_once_however_often_it_is_tried(
    run: RunInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = mlflow_reading.database(tmp_path)
    writer = mlflow_writer(uri, run, tmp_path)
    captioned = [media("one", image(1, "a cat"), position=1)]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(type(writer._connection.client), "log_artifacts", full)  # type: ignore[attr-defined]
        with pytest.raises(RetryableError):
            writer.write_media(captioned)  # type: ignore[attr-defined]
    writer.write_media(captioned)  # type: ignore[attr-defined]

    assert left_out_of(writer) == {"captions: MLflow shows none": 1}


@pytest.mark.slow
def test_a_caption_of_an_image_in_a_cell_is_counted_where_mlflow_shows_none(
    run: RunInfo, tmp_path: Path
) -> None:
    writer = mlflow_writer(mlflow_reading.database(tmp_path), run, tmp_path)
    cells = [image(1, "a cat")]

    deliver(writer, [media("t", table(["p"], [[{"media": 0}]]), cells=cells)])

    assert left_out_of(writer) == {"captions: MLflow shows none": 1}


@pytest.mark.slow
def test_mlflow_lists_each_table_of_a_record_also_when_the_first_call_could_not(
    run: RunInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = mlflow_reading.database(tmp_path)
    writer = mlflow_writer(uri, run, tmp_path)
    tables = [media("t", table(["q"], [[1]]), table(["q"], [[2]]))]

    def lost(*_: object) -> None:
        raise ConnectionError("reset")

    with monkeypatch.context() as patched:
        patched.setattr("otel_bridge_mlflow.tags.Roles.note", lambda *_: None)
        patched.setattr(type(writer._connection.client), "set_tag", lost)  # type: ignore[attr-defined]
        with pytest.raises(RetryableError):
            writer.write_media(tables)  # type: ignore[attr-defined]
    writer.write_media(tables)  # type: ignore[attr-defined]

    (found,) = mlflow_reading.runs_of(uri, run)
    folder = Path(urlsplit(found.info.artifact_uri).path)
    shown = [
        json.loads((folder / entry["path"]).read_bytes())["data"]
        for entry in json.loads(found.data.tags["mlflow.loggedArtifacts"])
    ]
    assert shown == [[[1]], [[2]]]


# --- W&B --------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_wandb_shows_media_of_its_own_types_in_the_history(
    run: RunInfo, tmp_path: Path
) -> None:
    settings = wandb_exporter.read_settings({"WANDB_MODE": "offline"}, tmp_path)
    writer = open_writer(wandb_exporter, run, settings, MemoryTable())
    bad = media("bad", item("image", "image/png", b"not a picture"), position=7)
    assert deliver(writer, [*some(), bad, samples.row(4, position=8)]) == [7]
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    rows = read_offline_run(directory).rows
    assert [row.get("trainer/step") for row in rows] == [3, 3, 3, 3, 3, 3, 4]
    one, many, shown, words, md, page = (
        row[record.key] for row, record in zip(rows, some(), strict=False)
    )
    assert (one["_type"], one["caption"]) == ("image-file", "first")
    assert (directory / "files" / one["path"]).read_bytes() == png(1)
    assert (many["_type"], many["count"], many["captions"]) == (
        "images/separated",
        2,
        ["a", "b"],
    )
    stored = json.loads((directory / "files" / shown["path"]).read_text())
    assert (shown["_type"], stored["columns"], stored["data"][1]) == (
        "table-file",
        ["q", "p"],
        [1.5, None],
    )
    assert {words["_type"], md["_type"], page["_type"]} == {"html-file"}
    assert "a &lt;b&gt;" in (directory / "files" / words["path"]).read_text()
    assert "<p>hi</p>" in (directory / "files" / page["path"]).read_text()


@pytest.mark.slow
def test_a_page_whose_text_is_the_path_of_a_page_here_does_not_send_that_one(
    run: RunInfo, tmp_path: Path
) -> None:
    own = tmp_path / "own.html"
    own.write_text("a secret of this machine")
    settings = wandb_exporter.read_settings({"WANDB_MODE": "offline"}, tmp_path)
    writer = open_writer(wandb_exporter, run, settings, MemoryTable())
    record = media("page", text(str(own), "html"), position=1)
    assert deliver(writer, [record]) == []
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    (row,) = read_offline_run(directory).rows
    page = (directory / "files" / row[record.key]["path"]).read_text()
    assert (str(own) in page, "secret" in page) == (True, False)


@pytest.mark.slow
def test_wandb_plays_sounds_and_films(run: RunInfo, tmp_path: Path) -> None:
    settings = wandb_exporter.read_settings({"WANDB_MODE": "offline"}, tmp_path)
    writer = open_writer(wandb_exporter, run, settings, MemoryTable())

    deliver(writer, moving())
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    shown = [
        row[record.key]
        for row, record in zip(read_offline_run(directory).rows, moving(), strict=True)
    ]
    assert [(one["_type"], one.get("caption")) for one in shown] == [
        ("audio-file", "a sound"), ("video-file", None), ("video-file", None),
    ]  # fmt: skip
    for one, record in zip(shown, moving(), strict=True):
        assert (directory / "files" / one["path"]).read_bytes() == record.items[0].data
