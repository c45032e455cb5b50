"""The end of a process: which status a run has that ends while an exception propagates."""

from __future__ import annotations

import pytest

from otel_bridge.emit.process_end import status_after, status_now


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (SystemExit(), "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(256), "finished"),  # whose lowest eight bits are 0
        (GeneratorExit(), "finished"),
        (SystemExit(3), "failed"),
        (SystemExit("out of memory"), "failed"),
        (KeyboardInterrupt(), "failed"),
        (RuntimeError(), "failed"),
    ],
)
def test_an_exception_is_a_failure_unless_it_is_an_exit_with_code_0(
    error: BaseException | None, status: str
) -> None:
    assert status_after(error) == status


def test_a_framework_that_ends_its_run_in_a_finally_gives_it_the_status_of_what_propagates() -> (
    None
):
    statuses: list[str] = []

    def train(code: int) -> None:
        try:
            raise SystemExit(code)
        finally:
            statuses.append(status_now())

    for code in (0, 3):
        with pytest.raises(SystemExit):
            train(code)

    assert statuses == ["finished", "failed"]
