"""Any bytes: what decodes, reads and translates refuses them with a reason or takes them, and is never brought down."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.otlp import fuzz_targets
from support.waiting import HANG_S

_HERE = Path(__file__).parent
_SECONDS = "2"


def _known(target: str) -> list[bytes]:
    found = sorted((_HERE / "found" / target).glob("*"))
    return [*fuzz_targets.seeds(target), *(path.read_bytes() for path in found)]


@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
def test_the_golden_cases_and_every_input_that_once_broke_a_rule_keep_it(
    target: str,
) -> None:
    for data in _known(target):
        fuzz_targets.TARGETS[target](data)


@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
def test_known_inputs_with_bytes_changed_cut_and_put_in_keep_every_rule(
    target: str,
) -> None:
    known = _known(target)

    @settings(
        max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(known),
        st.lists(st.tuples(st.integers(0), st.integers(0, 8), st.binary(max_size=8))),
    )
    def rule(data: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        for place, length, put in changes:
            at = place % (len(data) + 1)
            data = data[:at] + put + data[at + length :]
        fuzz_targets.TARGETS[target](data)

    rule()


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: no wheel for here",
)
@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
def test_inputs_that_reach_new_code_keep_every_rule(
    target: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(_HERE / "run_fuzz.py"), target, _SECONDS],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "stat::number_of_executed_units" in done.stderr
