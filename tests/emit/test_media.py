"""Media that a program logs: what is encoded, what is dropped and counted, and what the segments hold."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import otel_bridge
from otel_bridge.emit.media.log import PART_BYTES, MediaLog
from support.media_samples import Logged, pixels_in, png
from support.trainers.emit_samples import run_in, seen_in

SECRET = "sk-" + "a1B2" * 12


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 7), (64, 5)])
def test_a_png_holds_the_pixels(height: int, width: int, channels: int) -> None:
    pixels = np.random.default_rng(height).integers(
        0, 256, (height, width, channels), dtype=np.uint8
    )

    shown = pixels_in(Logged(otel_bridge.Image(pixels)).data)

    assert np.array_equal(shown.reshape(pixels.shape), pixels)


GREY = np.array([[0, 128], [255, 3]], dtype=np.uint8)
COLOUR = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)


@pytest.mark.parametrize(
    ("value", "pixels"),
    [
        (GREY, GREY),
        (GREY[:, :, None], GREY),
        (GREY / np.float32(255), GREY),
        (GREY.astype(np.float64), GREY),
        (GREY.astype(np.int64) + 0, GREY),
        (GREY > 100, np.where(GREY > 100, 255, 0)),
        (
            np.array([[np.nan, np.inf], [-np.inf, 300.0]]),
            np.array([[0, 255], [0, 255]]),
        ),
        (COLOUR, COLOUR),
        (COLOUR.transpose(2, 0, 1), COLOUR),
        (COLOUR[::-1, ::2], COLOUR[::-1, ::2]),
        (Pillow.fromarray(COLOUR), COLOUR),
        (Pillow.fromarray(COLOUR).convert("CMYK").convert("RGB"), COLOUR),
        (png(7), np.array([[7, 248], [7, 248]])),
    ],
)
def test_an_image_shows_the_pixels_that_were_given(value: object, pixels: Any) -> None:
    logged = Logged(otel_bridge.Image(value, caption="a picture"))

    assert np.array_equal(pixels_in(logged.data), pixels)
    assert (logged.items[0]["type"], logged.items[0]["caption"], logged.drops) == (
        "image",
        "a picture",
        {},
    )


def test_files_are_logged_as_they_are_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff and the rest")
    (tmp_path / "b.jpg").symlink_to(tmp_path / "a.jpg")
    (tmp_path / "page.html").write_text("<p>hi</p>")

    for value in (tmp_path / "a.jpg", str(tmp_path / "b.jpg")):
        logged = Logged(otel_bridge.Image(value))
        assert (logged.data, logged.items[0]["mime_type"]) == (
            b"\xff\xd8\xff and the rest",
            "image/jpeg",
        )
    assert Logged(otel_bridge.Html(tmp_path / "page.html")).data == b"<p>hi</p>"


def test_a_figure_is_drawn() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1), dpi=20)
    figure.subplots().plot([1, 2])

    assert pixels_in(Logged(otel_bridge.Image(figure)).data).shape == (20, 20, 4)


def test_samples_become_a_wav_and_files_stay() -> None:
    import wave

    stereo = np.array([[0.0, 1.0], [-1.0, 0.5], [np.nan, 2.0]])
    logged = Logged(otel_bridge.Audio(stereo, sample_rate=8_000, caption="noise"))

    with wave.open(io.BytesIO(logged.data)) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getsampwidth()) == (
            2,
            8_000,
            2,
        )
        frames = np.frombuffer(sound.readframes(3), "<i2").tolist()
    assert frames == [0, 32_767, -32_767, 16_383, 0, 32_767]
    assert (logged.items[0]["type"], logged.items[0]["mime_type"]) == (
        "audio",
        "audio/wav",
    )
    whole = Logged(
        otel_bridge.Audio(np.array([1, -2, 3], dtype=np.int16), sample_rate=16_000)
    )
    assert whole.data.endswith(np.array([1, -2, 3], "<i2").tobytes())
    for data, mime in (
        (logged.data, "audio/wav"),
        (b"ID3x", "audio/mpeg"),
        (b"OggSx", "audio/ogg"),
        (b"fLaC", "audio/flac"),
    ):
        again = Logged(otel_bridge.Audio(data))
        assert (again.data, again.items[0]["mime_type"]) == (data, mime)


def test_frames_become_a_gif_and_films_stay(tmp_path: Path) -> None:
    frames = np.zeros((3, 8, 6, 3), dtype=np.uint8)
    frames[1, :, :, 0] = frames[2, :, :, 1] = 255

    for given in (frames, frames.transpose(0, 3, 1, 2)):
        film = Pillow.open(io.BytesIO(Logged(otel_bridge.Video(given, fps=10)).data))
        assert (film.n_frames, film.size, film.info["duration"]) == (3, (6, 8), 100)  # type: ignore[attr-defined]
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x18ftypisom")
    logged = Logged(
        otel_bridge.Video(tmp_path / "a.mp4"), otel_bridge.Video(b"\x1aE\xdf\xa3")
    )
    assert [item["mime_type"] for item in logged.items] == ["video/mp4", "video/webm"]


class Raises:
    shape = (2, 2)

    def __array__(self, *_args: object, **_kwargs: object) -> None:
        raise RuntimeError("not now")

    def __str__(self) -> str:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("medium", "reason"),
    [
        (otel_bridge.Image(3), "media_format"),
        (otel_bridge.Image(b"not an image"), "media_format"),
        (otel_bridge.Image(np.zeros((2, 2, 2, 2))), "media_format"),
        (otel_bridge.Image(np.zeros((0, 4))), "media_format"),
        (otel_bridge.Image(np.zeros((5, 5, 9))), "media_format"),
        (otel_bridge.Image(np.array([["a"]])), "media_format"),
        (otel_bridge.Audio(np.zeros(4)), "media_format"),
        (otel_bridge.Audio(np.zeros(4), sample_rate=-1), "media_format"),
        (otel_bridge.Audio(np.zeros((2, 2, 2)), sample_rate=8), "media_format"),
        (otel_bridge.Audio(b"no sound"), "media_format"),
        (otel_bridge.Audio(np.zeros(0), sample_rate=8), "media_format"),
        (otel_bridge.Video(np.zeros((2, 5, 5, 9))), "media_format"),
        (otel_bridge.Video(b"no film"), "media_format"),
        (otel_bridge.Video([1, 2]), "media_format"),
        (otel_bridge.Image("/no/such/file.png"), "media_file"),
        (otel_bridge.Image("/dev/zero"), "media_file"),
        (otel_bridge.Image(Raises()), "media_unreadable"),
        (otel_bridge.Table(3, 4), "media_unreadable"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_encoded_is_dropped_with_its_reason(
    medium: object, reason: str
) -> None:
    logged = Logged(medium)

    assert (logged.events, logged.drops) == ([], {reason: 1})


def test_a_list_holds_media_and_nothing_else() -> None:
    logged = Logged(
        otel_bridge.Image(png(1)),
        3.0,
        otel_bridge.Image(png(2)),
        otel_bridge.Table(["a"], [[1]]),
    )

    assert logged.data == png(1) + png(2)
    assert [one["size"] for one in logged.items] == [len(png(1)), len(png(2))]
    assert logged.drops == {"media_mixed": 2}


def test_cells_are_numbers_texts_and_images() -> None:
    rows = [
        ["a", 1, 2.5, None, True],
        (np.float32(0.5), np.int64(7), float("nan"), 2**70, [1, "x"]),
        {
            "p": otel_bridge.Image(png(3)),
            "q": otel_bridge.Text("t"),
            "r": b"x",
            "s": np.array([1, 2]),
        },
        ["short"],
    ]
    logged = Logged(otel_bridge.Table(["p", "q", "r", "s", "t"], rows))

    assert logged.table == {
        "columns": ["p", "q", "r", "s", "t"],
        "rows": [
            ["a", 1, 2.5, None, True],
            [0.5, 7, None, str(2**70), '[1,"x"]'],
            [{"media": 0}, "t", "x", "[1,2]", None],
            ["short", None, None, None, None],
        ],
    }
    assert (logged.items[1]["cell"], logged.data.endswith(png(3))) == (True, True)
    assert logged.drops == {"media_row_length": 1}


def test_a_data_frame_is_a_table_and_so_are_rows_that_name_their_columns() -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]})

    assert Logged(otel_bridge.Table(dataframe=frame)).table == {
        "columns": ["a", "b"],
        "rows": [[1, "x"], [2, None]],
    }
    assert Logged(otel_bridge.Table(data=[{"a": 1}])).table == {
        "columns": ["a"],
        "rows": [[1]],
    }
    table = otel_bridge.Table(columns=["a"])
    table.add_data(5)
    assert Logged(table).table == {"columns": ["a"], "rows": [[5]]}


def test_no_text_leaves_when_the_policy_is_off() -> None:
    texts = (
        otel_bridge.Text("words"),
        otel_bridge.Markdown("words"),
        otel_bridge.Html("words"),
    )
    logged = Logged(*texts, otel_bridge.Image(png(), caption="words"), limit=0)
    table = Logged(
        otel_bridge.Table(["a", "b"], [["words", 1]], caption="words"), limit=0
    )

    assert (logged.data, logged.drops) == (png(), {"media_text_off": 3})
    assert table.table == {"columns": ["a", "b"], "rows": [[None, 1]]}
    assert b"words" not in repr((logged.events, table.events)).encode()


def test_texts_are_cut_and_html_is_not() -> None:
    logged = Logged(
        otel_bridge.Text("0123456789"), otel_bridge.Html("<b>012345</b>"), limit=4
    )
    table = Logged(otel_bridge.Table(["a"], [["0123456789"]]), limit=4)

    assert logged.data == "0123… [6 more characters]".encode()
    assert logged.drops == {"media_html_cut": 1}
    assert table.table["rows"] == [["0123… [6 more characters]"]]


@pytest.mark.parametrize(
    "medium",
    [
        otel_bridge.Text(f"use {SECRET}"),
        otel_bridge.Html(f"<p>{SECRET}</p>"),
        otel_bridge.Image(png(), caption=SECRET),
        otel_bridge.Table(["a", "b"], [[1, f"use {SECRET}"]]),
        otel_bridge.Table(["a", "api_key"], [[1, "correct horse"]]),
    ],
)
def test_secrets_are_redacted(medium: object) -> None:
    logged = Logged(medium)

    assert SECRET not in repr(logged.events)
    assert "correct horse" not in repr(logged.events)
    assert logged.events


def test_size_and_rate_are_limited() -> None:
    log = MediaLog(max_bytes=1_000, max_per_step=3)

    assert Logged(otel_bridge.Text("x" * 1_001), log=log).drops == {
        "media_too_large": 1
    }
    assert Logged(otel_bridge.Image(np.zeros((200, 200))), log=log).drops == {
        "media_too_large": 1
    }
    assert Logged(*[otel_bridge.Text("x")] * 5, log=log).drops == {"media_rate": 2}
    assert Logged(otel_bridge.Text("x"), log=log).drops == {"media_rate": 1}
    assert Logged(otel_bridge.Text("x"), log=log, step=2).drops == {}
    cells = Logged(
        otel_bridge.Table(["a"], [[otel_bridge.Image(png())] for _ in range(4)]),
        log=log,
        step=3,
    )
    assert (len(cells.items), cells.drops) == (3, {"media_rate": 2})


def test_what_is_large_goes_in_parts() -> None:
    data = png() + bytes(2 * PART_BYTES)
    logged = Logged(otel_bridge.Image(data))

    assert logged.data == data
    assert [len(body) for _, body in logged.events] == [
        PART_BYTES,
        PART_BYTES,
        len(png()),
    ]
    assert [pairs["rl.media.part"] for pairs, _ in logged.events] == [0, 1, 2]
    assert {
        (pairs["rl.media.id"], pairs["rl.media.parts"]) for pairs, _ in logged.events
    } == {("1", 3)}


def test_media_follow_their_row_with_its_step_and_take_one_alone(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, role="trainer") as run:
        run.log(
            {
                "loss": 0.5,
                "sample": otel_bridge.Text("one"),
                "deep": {"two": [otel_bridge.Text("2")]},
            }
        )
        run.log({"sample": otel_bridge.Text("three")})
        run.log({"loss": 0.25})
        run.log(
            {"sample": otel_bridge.Text("e")},
            step=9,
            role="explorer",
            time_unix_ns=1_600_000_000_000_000_000,
        )
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [(row.step, row.seq) for row in seen.rows] == [(0, 1), (2, 2)]
    assert [
        (event.attributes["rl.media.key"], event.attributes["rl.step"], event.attributes.get("rl.role"), event.body)
        for event in seen.events
        if event.name == "rl.media"
    ] == [
        ("sample", 0, None, b"one"), ("deep/two", 0, None, b"2"), ("sample", 1, None, b"three"),
        ("sample", 9, "explorer", b"e"),
    ]  # fmt: skip
    (own,) = [
        event.time_unix_ns
        for event in seen.events
        if event.attributes.get("rl.role") == "explorer"
    ]
    assert own == 1_600_000_000_000_000_000
    assert [event.name for event in seen.events if event.name == "rl.dropped"] == []


def test_media_from_a_signal_handler_follow_the_row_that_was_being_logged(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:

        class Logs:
            def __float__(self) -> float:
                run.log({"inner": otel_bridge.Text("inside"), "x": 1.0})
                return 2.0

        run.log({"outer": Logs()})
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [row.values for row in seen.rows] == [{"outer": 2.0}, {"x": 1.0}]
    assert seen.event("rl.media").body == b"inside"


def test_every_medium_of_a_long_list_beyond_the_limit_is_counted(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, {"OTEL_BRIDGE_MAX_MEDIA_PER_STEP": "1"}) as run:
        run.log({"samples": [otel_bridge.Text("x")] * 12_000})

        (seen,) = seen_in(tmp_path)
        assert seen.event("rl.dropped").body == {"media_rate": 11_999}


def test_a_full_directory_takes_no_media(tmp_path: Path) -> None:
    with run_in(tmp_path, {"OTEL_BRIDGE_MAX_BYTES": "1"}) as run:
        run.log({"first": 1.0})
        run.log({"sample": otel_bridge.Image(png())})
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert seen.event("rl.dropped").body == {"directory_full": 1}
