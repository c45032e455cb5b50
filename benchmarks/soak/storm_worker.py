"""One role of the storm's job: rows, rollouts and late rewards, each noted before and after its call.

Call: ``storm_worker.py JOURNAL ROLE PACE_S STOP``. The journal is this program's own: ``b 12`` before, ``r 12`` when
``log()`` of step 12 returned, ``o 10`` for the rollout, ``l 4`` for the late reward of rollout 4. A restarted worker
goes on behind the last step that was begun, so that a step is emitted once at most and nothing is guessed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import otel_bridge

ROLLOUT_EVERY, LATE_AFTER = 5, 10


def main() -> None:
    """Emit until the file *stop* exists, then finish."""
    journal, role, pace_s, stop = (
        Path(sys.argv[1]),
        sys.argv[2],
        float(sys.argv[3]),
        Path(sys.argv[4]),
    )
    begun = (
        [int(line[2:]) for line in journal.read_text().splitlines() if line[:2] == "b "]
        if journal.exists()
        else []
    )
    notes = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pace = random.Random(os.getpid())
    run = otel_bridge.init(
        "storm",
        os.environ["STORM_NAME"],
        role=role,
        config={"lr": 0.1, "pace": {"s": pace_s}},
    )
    step = max(begun, default=-1) + 1

    def note(mark: str, number: int) -> None:
        os.write(notes, f"{mark} {number}\n".encode())

    while not stop.exists():
        note("b", step)
        run.log({"loss": step / 2, "grad/norm": 2.0 * step}, step=step)
        note("r", step)
        if step % ROLLOUT_EVERY == 0:
            messages = [
                {"role": "user", "content": f"{step} + 1?"},
                {"role": "assistant", "content": str(step + 1)},
            ]
            run.log_rollouts(
                [
                    otel_bridge.Rollout(
                        messages, reward=float(step), id=f"{role}-{step}"
                    )
                ],
                step=step,
            )
            note("o", step)
            if step >= LATE_AFTER:
                run.log_reward(f"{role}-{step - LATE_AFTER}", step / 4, name="judge")
                note("l", step - LATE_AFTER)
        step += 1
        time.sleep(pace.uniform(0.2, 1.8) * pace_s)
    run.finish()


if __name__ == "__main__":
    main()
