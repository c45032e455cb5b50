from __future__ import annotations

import collections
import enum
import itertools
import sys
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import wandb

from otel_bridge.emit.drop_reasons import MEANING
from otel_bridge.emit.encode.buckets import BucketPoint
from otel_bridge.emit.encode.histogram import Histogram, distribution_of
from otel_bridge.emit.encode.values import flatten, to_step
from otel_bridge.values.plain import by_text
from support.trackers import trackio_store

trackio = trackio_store.package()


class Drops(collections.Counter[str]):
    def __call__(self, reason: str, number: int, _key: str = "") -> None:
        self[reason] += number


class Torch:
    """A tensor as far as emission looks at one."""

    def __init__(self, value: object) -> None:
        self.value = np.asarray(value)
        self.shape = self.value.shape

    def item(self) -> object:
        return self.value.item()

    def tolist(self) -> object:
        return self.value.tolist()


def test_nested_keys_are_joined_with_slashes() -> None:
    flat = flatten({"loss": 0.5, "actor": {"lr": 1e-6, "kl": {"max": 2}}}, Drops())

    assert flat == {"loss": 0.5, "actor/lr": 1e-6, "actor/kl/max": 2}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7),
        (np.bool_(True), 1),
        (np.array(3.5), 3.5),
        (np.longdouble(1.5), 1.5),
        (np.array(1.5, dtype=np.longdouble), 1.5),
        (Torch(2.5), 2.5),
        (True, 1),
        (enum.IntEnum("Kind", "A B").B, 2),
        (Decimal("1.5"), 1.5),
        (Fraction(1, 4), 0.25),
        (1 << 63, float(1 << 63)),
        (-(1 << 63), -(1 << 63)),
    ],
)
def test_what_is_a_number_becomes_a_plain_one(value: object, number: float) -> None:
    drops = Drops()

    flat = flatten({"a": value}, drops)

    assert (flat, type(flat["a"]) in {int, float, bool}, drops) == (
        {"a": number},
        True,
        {},
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "none"),
        ("high", "text"),
        (b"high", "text"),
        (object(), "object"),
        (1j, "complex"),
        (np.complex64(1), "complex"),
        (np.clongdouble(1), "complex"),
        (10**400, "too_large_int"),
        ([], "empty_distribution"),
        (lambda: 1, "object"),
        (np.array("text"), "object"),
    ],
)
def test_what_is_not_a_number_is_left_out_and_counted_and_the_rest_stays(
    value: object, reason: str
) -> None:
    drops = Drops()

    flat = flatten({"loss": 0.5, "a": value}, drops)

    assert (flat, dict(drops)) == ({"loss": 0.5}, {reason: 1})


@pytest.mark.parametrize(
    "values",
    [[1, 2.5, -3], (1, 2.5, -3), np.array([1, 2.5, -3]), Torch([1, 2.5, -3]), np.array([[1, 2.5], [-3, 0]])[:, :1],
     Histogram(iter([1, 2.5, -3])), [[1], [2.5, -3]], {1, 2.5, -3}],
)  # fmt: skip
def test_arrays_and_lists_of_numbers_are_distributions(values: object) -> None:
    flat = flatten({"advantage": values}, Drops())

    expected = (
        [1.0, -3.0]
        if isinstance(values, np.ndarray) and values.ndim == 2
        else [1.0, 2.5, -3.0]
    )
    assert flat == {"advantage": distribution_of(expected)}


class HistogramOfProgram(wandb.Histogram):
    pass


@pytest.mark.parametrize(
    "histogram",
    [
        Histogram(counts=[1, 0, 2], edges=[-1.0, 0.0, 0.5, 2.0]),
        Histogram(
            counts=np.array([1, 0, 2]),
            edges=np.array([-1, 0, 0.5, 2], dtype=np.float32),
        ),
        Histogram(counts=(1.0, 0, np.int64(2)), edges=iter([-1, 0, 0.5, 2])),
        Histogram(np_histogram=np.histogram([-1, 0.5, 2], bins=[-1, 0, 0.5, 2])),
        trackio.Histogram(
            np_histogram=(np.array([1, 0, 2]), np.array([-1, 0, 0.5, 2]))
        ),
        wandb.Histogram(np_histogram=([1, 0, 2], [-1, 0, 0.5, 2])),
        HistogramOfProgram(np_histogram=([1, 0, 2], [-1, 0, 0.5, 2])),
    ],
    ids=["lists", "arrays", "tuples", "numpy", "trackio", "wandb", "subclass"],
)
def test_counts_and_edges_are_a_distribution_of_these_buckets(
    histogram: object,
) -> None:
    drops = Drops()

    flat = flatten({"advantage": histogram}, drops)

    assert flat == {"advantage": BucketPoint(3, 2.0, -1.0, 2.0, (0.0, 0.5), (1, 0, 2))}
    assert dict(drops) == {}


def test_a_bucket_without_width_gives_its_numbers_to_its_neighbour() -> None:
    flat = flatten(
        {"a": Histogram(counts=[5, 1, 2, 3], edges=[0, 0, 1, 1, 2])}, Drops()
    )

    assert flat == {"a": BucketPoint(11, 3 * 1.5 + 8 * 0.5, 0.0, 2.0, (1.0,), (8, 3))}


@pytest.mark.parametrize(
    ("histogram", "reason"),
    [
        (Histogram(counts=[1, 2], edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[1], edges=[1.0, 0.0]), "bad_histogram"),
        (Histogram(counts=[1], edges=[1.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[-1, 2], edges=[0.0, 1.0, 2.0]), "bad_histogram"),
        (Histogram(counts=[0.5], edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[float("nan")], edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[float("inf")], edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[1], edges=[0.0, float("inf")]), "bad_histogram"),
        (Histogram(counts=["1"], edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[1 << 62, 1 << 62], edges=[0.0, 1.0, 2.0]), "bad_histogram"),
        (Histogram(counts=np.ones((2, 2)), edges=[0.0, 1.0, 2.0]), "bad_histogram"),
        (Histogram(counts=itertools.repeat(1), edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(counts=[1] * 4097, edges=range(4098)), "bad_histogram"),
        (Histogram(counts=[1]), "bad_histogram"),
        (Histogram([1.0], counts=[1], edges=[0.0, 1.0]), "bad_histogram"),
        (Histogram(np_histogram=([1], [0.0, 1.0], 3)), "bad_histogram"),  # type: ignore[arg-type]  # a user's mistake
        (Histogram(), "bad_histogram"),
        (Histogram(counts=[0, 0], edges=[0.0, 1.0, 2.0]), "empty_distribution"),
        (trackio.Histogram([float("nan")]), "empty_distribution"),
    ],
)
def test_a_histogram_that_cannot_be_used_is_left_out_alone(
    histogram: object, reason: str
) -> None:
    drops = Drops()

    flat = flatten({"loss": 0.5, "a": histogram}, drops)

    assert (flat, dict(drops)) == ({"loss": 0.5}, {reason: 1})
    assert reason in MEANING


def test_numbers_that_no_bucket_holds_leave_a_distribution() -> None:
    drops = Drops()

    flat = flatten({"a": [1.0, float("nan"), float("inf"), "x", None]}, drops)

    assert flat == {"a": distribution_of([1.0])}
    assert dict(drops) == {"not_finite_in_distribution": 2, "text": 1, "none": 1}


def test_masked_numbers_of_an_array_are_left_out_and_counted() -> None:
    drops = Drops()

    flat = flatten(
        {"a": np.ma.array([1.0, 5.0, -3.0], mask=[False, True, False])}, drops
    )

    assert flat == {"a": distribution_of([1.0, -3.0])}
    assert dict(drops) == {"none": 1}


def test_a_masked_object_is_counted_once_and_nothing_where_none_is_masked() -> None:
    drops = Drops()
    objects = np.ma.array([1, 5, -3], mask=[False, True, False], dtype=object)

    flat = flatten({"a": objects, "b": np.ma.array([1.0])}, drops)

    assert flat == {"a": distribution_of([1.0, -3.0]), "b": distribution_of([1.0])}
    assert dict(drops) == {"none": 1}


def test_keys_of_a_row_beyond_their_limit_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("otel_bridge.emit.encode.values.MAX_KEYS", 3)
    drops: list[object] = []

    row = flatten(dict.fromkeys("abcde", 1.0), lambda *drop: drops.append(drop))

    assert row == dict.fromkeys("abc", 1.0)
    assert drops == [("clipped", 2, "")]


def test_keys_become_text_and_those_that_cannot_are_left_out() -> None:
    class Raising:
        def __str__(self) -> str:
            raise RuntimeError

    drops = Drops()

    flat = flatten(
        {
            1: 2.0,
            ("a", 1): 3.0,
            "": 4.0,
            "rl.row": 5.0,
            Raising(): 6.0,
            "k" * 5000: 7.0,
        },
        drops,
    )

    assert flat == {"1": 2.0, "('a', 1)": 3.0}
    assert dict(drops) == {
        "empty_key": 1,
        "reserved_key": 1,
        "bad_key": 1,
        "long_key": 1,
    }


def test_of_two_values_with_one_flat_key_the_last_holds() -> None:
    drops = Drops()

    flat = flatten({"a": {"b": 1}, "a/b": 2}, drops)

    assert (flat, dict(drops)) == ({"a/b": 2}, {"same_key": 1})


def test_a_dict_that_holds_itself_is_cut_there() -> None:
    drops, values = Drops(), {"loss": 0.5}
    values["self"] = values  # type: ignore[assignment]
    looped: list[object] = [1.0]
    looped.append(looped)

    flat = flatten({**values, "list": looped}, drops)

    assert flat["loss"] == 0.5
    assert flat["self/loss"] == 0.5
    assert drops["cyclic"] == 1
    assert drops["too_deep"] == 1


def test_depth_is_bounded() -> None:
    drops, values = Drops(), {"loss": 0.5}
    for _ in range(100):
        values = {"a": values}  # type: ignore[dict-item]

    assert flatten(values, drops) == {}
    assert dict(drops) == {"too_deep": 1}


def test_a_mapping_that_raises_costs_only_itself() -> None:
    class Raising(Mapping[str, float]):
        def __getitem__(self, key: str) -> float:
            raise KeyError(key)

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    drops = Drops()

    flat = flatten({"loss": 0.5, "bad": Raising()}, drops)

    assert (flat, dict(drops)) == ({"loss": 0.5}, {"unreadable_value": 1})


@pytest.mark.parametrize("values", [None, [1, 2], "loss", 3.0])
def test_what_is_not_a_mapping_is_not_a_row(values: object) -> None:
    drops = Drops()

    assert flatten(values, drops) == {}
    assert dict(drops) == {"not_a_mapping": 1}


def test_a_dict_changed_by_another_thread_is_read_as_it_was_at_one_instant() -> None:
    drops, values, stop = (
        Drops(),
        {f"k{number}": 1.0 for number in range(50)},
        threading.Event(),
    )

    def change() -> None:
        while not stop.is_set():
            for number in range(50, 100):
                values[f"k{number}"] = 1.0
            for number in range(50, 100):
                del values[f"k{number}"]

    changing = threading.Thread(target=change)
    usual_s = sys.getswitchinterval()
    # Threads take turns within nearly every read.
    sys.setswitchinterval(1e-6)
    changing.start()
    try:
        sizes = [len(flatten({"a": values}, drops)) for _ in range(5_000)]
        sizes += [len(by_text(values, drops)) for _ in range(5_000)]
    finally:
        stop.set()
        changing.join()
        sys.setswitchinterval(usual_s)

    assert min(sizes) >= 50
    assert dict(drops) == {}


class Index:
    def __index__(self) -> int:
        return 14


@pytest.mark.parametrize(
    ("step", "found", "counted"),
    [
        (7, 7, {}),
        (True, 1, {}),
        (np.int32(7), 7, {}),
        (7.0, 7, {}),
        (np.float32(7), 7, {}),
        (7.5, 7, {"fractional_step": 1}),
        (-3, -3, {}),
        (1 << 70, None, {"bad_step": 1}),
        (float("nan"), None, {"bad_step": 1}),
        (float("inf"), None, {"bad_step": 1}),
        ("7", 7, {}),
        ("7.5", None, {"bad_step": 1}),
        ([7], None, {"bad_step": 1}),
        (np.array([13]), 13, {}),
        (np.array([13, 14]), None, {"bad_step": 1}),
        (Index(), 14, {}),
    ],
)
def test_a_step_becomes_an_integer(
    step: object, found: int | None, counted: dict[str, int]
) -> None:
    drops = Drops()

    assert to_step(step, drops) == found
    assert dict(drops) == counted


@pytest.mark.parametrize(
    ("module", "reason", "said"),
    [
        ("wandb.sdk.data_types.image", "wandb_media", "a W&B run of their own"),
        ("trackio.media", "trackio_media", "a Trackio run of their own"),
        ("mlflow.entities.image", "mlflow_media", "log_artifact("),
        ("PIL.Image", "figure", "Image("),
        ("matplotlib.figure", "figure", "Image("),
        ("mine", "object", "Image("),
    ],
)
def test_a_media_object_of_others_is_left_out_alone_with_what_to_use(
    module: str, reason: str, said: str
) -> None:
    media = type("Media", (), {"__module__": module})()
    drops: list[str] = []

    numbers = flatten(
        {"loss": 0.5, "image": media}, lambda why, _number, _key: drops.append(why)
    )

    assert (numbers, drops) == ({"loss": 0.5}, [reason])
    assert said in MEANING[reason]
