"""What a person sees: Trackio's real dashboard of a small run, in a headless Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser.browser_job import KEYS, PROJECT, do_job
from support.browser.browser_page import CHROMIUM, Page, open_page
from support.browser.browser_pictures import trackio_dashboard
from support.trainers.command_runs import ended, environment

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("CI") != "true",
        reason="no Chromium here; it is the Debian package `chromium`",
    ),
]
ROLES = Path(__file__).resolve().parents[2] / "examples" / "roles"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the three roles of the example into Trackio and serve its dashboard."""
    folder = tmp_path_factory.mktemp("roles")
    store = folder / "store"
    variables = {
        "OTEL_BRIDGE_EXPORTERS": "trackio",
        "TRACKIO_DIR": str(store),
        "OTEL_BRIDGE_TRACKIO_ALL_SERIES": "1",
    }
    env = environment(folder, **variables)
    commands = [
        [sys.executable, str(ROLES / f"{role}.py")]
        for role in ("trainer", "explorer", "evaluator")
    ]
    started = [
        subprocess.Popen(one, cwd=folder, env=env, stderr=subprocess.DEVNULL)
        for one in commands
    ]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    ended(folder / ".otel-bridge")
    with trackio_dashboard(store, "hello", folder / "server") as address:
        yield address


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    assert CHROMIUM is not None, "no Chromium: apt-get install chromium"
    with open_page(tmp_path / "browser", height=3000) as page:
        yield page


def _charts(page: Page) -> set[str]:
    """The titles of the charts that are drawn."""
    page.until("document.querySelectorAll('canvas.marks').length >= 3", "charts")
    return set(page.text().split("\n"))


def test_each_role_has_a_section_with_its_own_charts(
    dashboard: str, page: Page
) -> None:
    page.go(
        f"{dashboard}/?project=hello&x_axis=step&metric_filter=^(trainer/loss|explorer/reward|evaluator/accuracy)$"
    )

    shown = _charts(page)

    assert {
        "evaluator (1)",
        "explorer (1)",
        "trainer (1)",
        "accuracy",
        "reward",
        "loss",
        "roles",
    } <= shown


@pytest.mark.long
def test_the_step_axis_of_a_role_can_be_the_x_axis(dashboard: str, page: Page) -> None:
    page.go(
        f"{dashboard}/?project=hello&x_axis=trainer/step&metric_filter=^(trainer/loss|explorer/reward)$"
    )

    page.until("document.querySelectorAll('canvas.marks').length >= 1", "a chart")

    assert {"trainer/step", "loss"} <= set(page.text().split("\n")) | _x_axis(page)


def _x_axis(page: Page) -> set[str]:
    """What the dashboard's own controls say is the x axis."""
    return set(
        page.js("[...document.querySelectorAll('input, select')].map(e => e.value)")
    )


def test_a_rollout_is_a_trace_with_its_reward_conversation_and_tool_span(
    dashboard: str, page: Page
) -> None:
    page.go(f"{dashboard}/traces?project=hello")

    page.click("tr.trace-row", "What is")
    page.click("span.span-name", "execute_tool calculator")
    page.until("document.body.innerText.includes('OUTPUT')", "the span")
    said = page.text()

    facts = (
        "Logged as: explorer/rollouts",
        "reward: ",
        "policy_version: ",
        "execute_tool calculator",
    )
    assert [fact for fact in facts if fact not in said] == []
    assert "30 traces" in said
    assert '"expression"' in said


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the dashboard of a run in two roles with rollouts of several turns."""
    folder = tmp_path_factory.mktemp("arithmetic")
    store, _ = do_job(folder)
    with trackio_dashboard(store, PROJECT, folder / "server") as address:
        yield address


@pytest.mark.long
@pytest.mark.parametrize("axis", ["trainer/step", "explorer/step"])
def test_over_the_steps_of_either_role_the_charts_of_both_are_drawn(
    arithmetic: str, page: Page, axis: str
) -> None:
    page.go(
        f"{arithmetic}/?project={PROJECT}&smoothing=0&x_axis={axis}&metric_filter={KEYS}"
    )

    page.until("document.querySelectorAll('canvas.marks').length >= 2", "two charts")
    said = set(page.text().split("\n"))

    assert {"trainer (1)", "loss", "explorer (1)", "accuracy"} <= said
    assert axis in said | _x_axis(page)


@pytest.mark.long
def test_a_rollout_of_several_turns_shows_all_its_facts_its_calls_in_order_and_the_tools_result(
    arithmetic: str, page: Page
) -> None:
    page.go(f"{arithmetic}/traces?project={PROJECT}")
    page.click("tr.trace-row", "13 boxes")
    page.click("span.span-name", "execute_tool")
    page.until("document.body.innerText.includes('OUTPUT')", "the span")
    said = page.text()

    facts = (
        "6 traces", "Logged as: trainer/rollouts", "step: 39", "group: crates-13", "sample: ", "reward: ",
        'rewards: {"format":1,"answer":', "advantage: ", "finish_reason: stop", "policy_version: 39", "staleness: 0",
        "role: trainer", "topic: products", "Operations 6", '"expression": "7 * 13"', "91",
    )  # fmt: skip
    assert [fact for fact in facts if fact not in said] == []
    spans = page.js(
        "[...document.querySelectorAll('span.span-name')].map(e => e.innerText)"
    )
    assert spans == [
        "rollout",
        "chat",
        "execute_tool calculator",
        "chat",
        "execute_tool calculator",
        "chat",
    ]
    trace_id = said.partition("Trace ID: ")[2].partition(":")[0]
    assert f"trace_id: {trace_id}" in said  # OpenTelemetry's own
    assert len(trace_id) == 32
