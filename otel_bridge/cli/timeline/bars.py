"""Timeline -> lines for a terminal: one bar a step and role, by phase. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter

from rich.text import Text

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.text.printable import printable, shown
from otel_bridge.translation.phases.slow_ranks import slow_rank_of
from otel_bridge.translation.phases.step_times import (
    PREFIX,
    STEP,
    PhaseTime,
    RankTimes,
    step_values,
)

_FILLS = ("█", "▓", "▒", "░", "▚", "▞", "▟", "▙")
_STYLES = ("blue", "green", "yellow", "magenta", "cyan", "red", "white", "bright_blue")
_IDLE = "·"


def bars_of(steps: Sequence[TimelineStep], width: int) -> list[Text]:
    """Return a line that names the phases, then a bar for each of *steps* that has phases.

    Empty without a step with phases. Bars are as long as their steps in relation to the longest
    one.

    Args:
        steps: Steps of the role.
        width: Columns of the longest bar.
    """
    values: dict[int, dict[str, float | int]] = {}
    names: dict[str, None] = {}
    longest_s = 0.0
    for step in steps:
        ranks = _ranks(step)
        if ranks:
            values[step.step] = step_values(ranks)
            names |= dict.fromkeys(_outermost(ranks))
            longest_s = max(longest_s, values[step.step][PREFIX + STEP])
    if not values:
        return []
    # A step without a duration must not divide by zero.
    longest_s = longest_s or 1.0
    # From the ninth phase on signs repeat.
    legend = Text(" " * 22)
    for index, name in enumerate(names):
        sign = f"{_FILLS[index % 8]} {printable(shown(name))}  "
        legend.append(sign, style=_STYLES[index % 8])
    legend.append(f"{_IDLE} idle", style="dim")
    lines = [legend]
    for number, of_step in values.items():
        columns = max(round(width * of_step[PREFIX + STEP] / longest_s), 1)
        line = Text(f"{number:>8} {of_step[PREFIX + STEP]:>9.3f} s  ")
        line.append_text(_bar(of_step, names, columns))
        line.append(" " * (width - columns))
        slow = slow_rank_of(of_step)
        if slow is not None:
            phase = printable(shown(slow.phase))
            line.append(f"  rank {slow.rank}: {slow.ratio:.1f}x in {phase}")
        lines.append(line)
    return lines


def _ranks(step: TimelineStep) -> list[RankTimes]:
    """Return the times of each process in the last attempt of *step*; empty without phases.

    A restart repeats steps: the row of the last attempt is the last one of the step in a tracker
    too. Each process is an entry of its own, because a forked child has the rank of its parent.
    The fact ``attempt`` is stored above 1 only.
    """
    attempts: dict[int, dict[str, RankTimes]] = {0: {}}
    for event in step.events:
        if event.kind != "phase":
            continue
        facts = event.facts
        ranks = attempts.setdefault(facts.get("attempt", 1), {})
        new = RankTimes(facts.get("rank", 0), forked=facts.get("forked", False))
        outer = facts.get("outer", "")
        phase = PhaseTime(event.name, outer, event.start_ns, event.end_ns)
        ranks.setdefault(event.track, new).phases.append(phase)
    return list(attempts[max(attempts)].values())


def _outermost(ranks: Sequence[RankTimes]) -> list[str]:
    """Return the names of the outermost phases, in the order of their starts, with repetitions.

    Nested ones would count the same seconds twice.
    """
    outermost: list[PhaseTime] = []
    for rank in ranks:
        outermost += [phase for phase in rank.phases if phase.is_outermost]
    outermost.sort(key=attrgetter("start_ns"))
    return [phase.name for phase in outermost]


def _bar(values: dict[str, float | int], names: Collection[str], columns: int) -> Text:
    """Return *columns* characters, shared by the seconds of each phase and the idle time.

    Phases of threads that overlap sum up to more than the step, and share the bar by their sums.
    """
    total_s = values[f"{PREFIX}idle"]
    for name in names:
        total_s += values.get(PREFIX + name, 0.0)
    total_s = total_s or 1.0
    bar = Text()
    reached_s = 0.0
    for index, name in enumerate(names):
        first_column = round(columns * reached_s / total_s)
        reached_s += values.get(PREFIX + name, 0.0)
        # From rounded bound to rounded bound: rounded lengths would not add up to the bar.
        bar.append(
            _FILLS[index % 8] * (round(columns * reached_s / total_s) - first_column),
            style=_STYLES[index % 8],
        )
    bar.append(_IDLE * (columns - len(bar)), style="dim")
    return bar
