"""The search for the object whose method calls an adapter."""

from __future__ import annotations

from typing import Any

from otel_bridge.adapters.parts.calling_object import calling_object


class Wanted:
    trackers: Any = ("own",)

    def call(self, inner: Any) -> Any:
        return inner.call()


class Broken:
    @property
    def trackers(self) -> Any:
        raise RuntimeError("not set up")

    def call(self) -> Any:
        return calling_object(lambda one: "own" in one.trackers)


def test_an_object_whose_attribute_raises_is_passed_over_on_the_way_to_the_wanted_one() -> (
    None
):
    wanted = Wanted()

    assert wanted.call(Broken()) is wanted
    assert Broken().call() is None
