"""Media of odd values: what is shown of them, and that one of them costs neither the others nor the loop's time."""

from __future__ import annotations

import gc
import io
import itertools
import json
import time
import weakref
from collections import UserList
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image as Pillow

from otel_bridge import Audio, Html, Image, Table, Text, Video
from otel_bridge.capture.media import media_of
from otel_bridge.emit.encode.values import flatten
from otel_bridge.emit.media.log import MediaLog
from support.media_samples import Logged, pixels_in, png
from support.trainers.emit_samples import run_in, seen_in

HALF = np.full((2, 2), 0.5)


class Raising:
    def __str__(self) -> str:
        raise RuntimeError("not now")


def with_first(value: float) -> Any:
    array = HALF.copy()
    array[0, 0] = value
    return array


@pytest.mark.parametrize(
    ("value", "pixels"),
    [
        (with_first(1.02), [[255, 128], [128, 128]]),
        (with_first(np.inf), [[255, 128], [128, 128]]),
        (with_first(-np.inf), [[0, 128], [128, 128]]),
        (with_first(1e300), [[255, 0], [0, 0]]),
        (HALF.astype(np.float16), [[128, 128], [128, 128]]),
        (np.full((2, 2), 40_000, np.uint16), [[156, 156], [156, 156]]),
        (np.full((2, 2), 40, np.uint16), [[40, 40], [40, 40]]),
        (np.full((2, 2), 40_000, ">u2"), [[156, 156], [156, 156]]),
        (HALF.astype(">f4"), [[128, 128], [128, 128]]),
        (Pillow.fromarray(HALF.astype(np.float32)), [[127, 127], [127, 127]]),
        (Pillow.fromarray(np.full((2, 2), 40, np.int32)), [[40, 40], [40, 40]]),
        (
            Pillow.fromarray(np.full((2, 2), 40_000, np.int32)),
            [[40_000, 40_000], [40_000, 40_000]],
        ),
        (
            Pillow.fromarray(np.full((2, 2), 40_000, np.uint16)),
            [[40_000, 40_000], [40_000, 40_000]],
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_numbers_of_any_width_and_a_stray_one_show_the_picture(
    value: object, pixels: list[list[int]]
) -> None:
    assert pixels_in(Logged(Image(value)).data).tolist() == pixels


def test_an_image_of_a_plugin_of_pillow_is_shown_and_alone_in_a_row_it_is_named_as_one() -> (
    None
):
    class HeifImageFile(Pillow.Image):
        pass

    HeifImageFile.__module__ = "pillow_heif.as_plugin"
    image = HeifImageFile()
    image.__dict__.update(Pillow.new("RGB", (3, 2), (255, 0, 0)).__dict__)

    assert (
        Logged(Image(image)).data
        == Logged(Image(Pillow.new("RGB", (3, 2), (255, 0, 0)))).data
    )
    assert media_of(image) is not None
    drops: list[str] = []
    assert (
        flatten({"photo": image}, lambda reason, _number, _key: drops.append(reason))
        == {}
    )
    assert drops == ["figure"]


@pytest.mark.parametrize("mode", ["PA", "La", "RGBa", "LAB", "HSV"])
def test_every_mode_of_pillow_is_shown(mode: str) -> None:
    logged = Logged(Image(Pillow.new(mode, (3, 2))))

    assert (Pillow.open(io.BytesIO(logged.data)).size, logged.drops) == ((3, 2), {})


@pytest.mark.parametrize(
    "value",
    [
        np.broadcast_to(np.uint8(1), (20_000, 20_000)),
        np.zeros((1 << 17, 1), np.uint8),
        Pillow.new("L", (20_000, 20_000)),
        np.random.default_rng(1).integers(0, 256, (1_200, 1_200), dtype=np.uint8),
        Pillow.fromarray(
            np.random.default_rng(1).integers(0, 256, (1_200, 1_200), dtype=np.uint8)
        ),
    ],
)
def test_an_image_beyond_the_limit_is_dropped_as_too_large(value: object) -> None:
    assert Logged(Image(value), log=MediaLog(max_bytes=1 << 20)).drops == {
        "media_too_large": 1
    }


# --- tables -----------------------------------------------------------------------------------------------------------
def test_a_cell_that_cannot_be_read_costs_no_other() -> None:
    nested: list[object] = []
    nested.append(nested)
    logged = Logged(
        Table(
            ["a"], [[1], [Raising()], [nested], [{"x": 2**100}], [{"x": "\ud800"}], [3]]
        )
    )

    cells = [row[0] for row in logged.table["rows"]]
    assert [cells[0], cells[1], cells[2], cells[5]] == [
        1,
        "[unreadable]",
        '["[cycle]"]',
        3,
    ]
    assert [json.loads(cell) for cell in cells[3:5]] == [{"x": str(2**100)}, {"x": "?"}]
    assert logged.drops == {"unreadable_value": 1}


class BrokenFigure:
    def savefig(self, *_: object, **__: object) -> None:
        raise RuntimeError("no renderer")


def test_a_picture_in_a_cell_that_cannot_be_drawn_costs_its_cell_only() -> None:
    logged = Logged(
        Table(["n", "plot"], [[1, Image(BrokenFigure())], [2, Image(png())]])
    )

    assert logged.table["rows"] == [[1, None], [2, {"media": 0}]]
    assert logged.drops == {"media_unreadable": 1}


@pytest.mark.parametrize(
    ("table", "rows", "drops"),
    [
        (
            Table(["a"], [{"a": 1, "b": 2}, {"a": 3}]),
            [[1], [3]],
            {"media_row_length": 1},
        ),
        (
            Table(None, [[1, 2], {"a": 1}]),
            [[1, 2], [None, None]],
            {"media_row_length": 1},
        ),
        (
            Table(["a"], [[Text("shown", caption="why")], [Text("alone")]]),
            [["shown"], ["alone"]],
            {"media_mixed": 1},
        ),
        (Table(["a"], [[Table(["b"], [[1]])]]), [["[[1]]"]], {"media_mixed": 1}),
    ],
)
def test_what_a_cell_or_row_cannot_show_is_counted(
    table: Table, rows: list[list[object]], drops: dict[str, int]
) -> None:
    logged = Logged(table)

    assert (logged.table["rows"], logged.drops) == (rows, drops)


def test_cells_that_repeat_one_another_are_clipped_and_counted() -> None:
    nested: object = 1.0
    for _ in range(34):
        nested = [nested, nested]
    start_s = time.process_time()

    assert Logged(Table(["a"], [[nested]])).drops.keys() == {"clipped"}
    assert Logged(Text(nested)).drops.keys() == {"clipped"}
    assert time.process_time() - start_s < 20


def test_a_logged_table_is_freed_without_the_cycle_collector() -> None:
    cell = UserList([1, 2])
    freed = weakref.ref(cell)
    gc.disable()
    try:
        Logged(Table(["a"], [[cell], [HALF]]))
        del cell
        assert freed() is None
    finally:
        gc.enable()


def test_a_missing_value_is_an_empty_cell_whatever_stands_for_it() -> None:
    frame = pd.DataFrame({
        "score": pd.array([0.5, None], dtype="Float64"),
        "n": pd.array([1, None], dtype="Int64"),
        "right": pd.array([True, None], dtype="boolean"),
        "text": pd.array(["a", None], dtype="string"),
        "kind": pd.Categorical(["x", None]),
        "when": pd.to_datetime(["2024-01-01", None]),
        "took": pd.to_timedelta(["1 s", None]),
    })  # fmt: skip
    others = [
        Decimal("1.5"),
        Decimal("NaN"),
        np.datetime64("NaT"),
        np.float16("nan"),
        [pd.NA, Decimal("Infinity"), 1],
    ]

    logged = (
        Logged(Table(dataframe=frame)),
        Logged(Table(["a", "b", "c", "d", "e"], [others])),
    )

    assert logged[0].table["rows"] == [
        [0.5, 1, True, "a", "x", "2024-01-01T00:00:00", "0 days 00:00:01"],
        [None] * 7,
    ]
    assert logged[1].table["rows"] == [[1.5, None, None, None, "[null,null,1]"]]
    assert [one.drops for one in logged] == [{}, {}]


def test_a_row_that_is_not_a_sequence_is_one_cell() -> None:
    assert Logged(Table(["a"], [1, None, "xy"])).table["rows"] == [[1], [None], ["xy"]]


def test_the_names_of_all_rows_are_columns() -> None:
    assert Logged(Table(rows=[{"a": 1}, {"b": 2, "a": 3}])).table == {
        "columns": ["a", "b"],
        "rows": [[1, None], [3, 2]],
    }


def test_rows_without_an_end_are_too_many() -> None:
    assert Logged(Table(["a"], itertools.repeat([1]))).drops == {"media_too_large": 1}


def test_plain_cells_are_what_others_are() -> None:
    cells = [1, "x", 0.5, None, True, float("nan"), float("inf"), -(2**63)]

    for rows in ([cells], [[*cells[:-1], np.int64(-(2**63))]]):
        assert Logged(Table(list("abcdefgh"), rows)).table["rows"] == [
            [1, "x", 0.5, None, True, None, None, -(2**63)]
        ]
    assert Logged(Table(["a"], [[2**63], [-(2**63) - 1], [2**64]])).table["rows"] == [
        [str(2**63)], [str(-(2**63) - 1)], [str(2**64)],
    ]  # fmt: skip


def test_bytes_of_a_page_are_its_text() -> None:
    assert Logged(Html(b"<p>\xff</p>")).data.decode() == "<p>\ufffd</p>"
    assert Logged(Text(bytearray(b"hi"))).data == b"hi"


# --- sounds and films -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("samples", "data"),
    [
        (np.array([128, 255, 0], np.uint8), [0, 32_512, -32_768]),
        (np.array([1 << 30, -(1 << 31)], np.int32), [1 << 14, -(1 << 15)]),
        (np.array([5, -5], np.int32), [5, -5]),
        (np.array([1 << 30, -(1 << 30)], ">i4"), [1 << 14, -(1 << 14)]),
        (np.array([np.inf, -np.inf, np.nan]), [32_767, -32_767, 0]),
        (np.array([[1, 2, 3], [4, 5, 6]], np.int16), [1, 4, 2, 5, 3, 6]),
    ],
)
def test_samples_of_any_width_are_kept_and_channels_come_first_or_last(
    samples: Any, data: list[int]
) -> None:
    logged = Logged(Audio(samples, sample_rate=np.int64(8_000)))

    assert np.frombuffer(logged.data[44:], "<i2").tolist() == data


def test_long_sounds_and_films_are_too_large() -> None:
    log = MediaLog(max_bytes=1_000)
    film = np.random.default_rng(3).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)

    assert Logged(Audio(np.zeros(501), sample_rate=1), log=log).drops == {
        "media_too_large": 1
    }
    assert Logged(Video(film), log=log).drops == {"media_too_large": 1}


@pytest.mark.parametrize(
    ("fps", "duration_ms"),
    [(1e-9, 655_350), (float("inf"), 20), (float("nan"), 250), (None, 250)],
)
def test_a_film_of_any_speed_is_shown(fps: float | None, duration_ms: int) -> None:
    colours = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)

    shown = Pillow.open(io.BytesIO(Logged(Video(colours, fps=fps)).data))

    assert (shown.info["duration"], getattr(shown, "n_frames", 0)) == (duration_ms, 2)
    assert np.abs(np.asarray(shown.convert("RGB"), np.int16) - colours[0]).max() < 40


def test_lone_surrogates_in_keys_and_captions_cost_no_other_key(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log(
            {
                "a": Image(png(), caption="\ud800"),
                "b\ud800": Image(png()),
                "c": Image(png()),
            },
            step=1,
        )
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [
        event.attributes["rl.media.key"]
        for event in seen.events
        if event.name == "rl.media"
    ] == ["a", "b?", "c"]
