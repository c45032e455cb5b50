"""Jobs of frameworks that begin several runs or processes; they run alike with the fakes and with the real packages."""

TRINITY = """
import subprocess, sys
import pandas as pd
from trinity.common.config import Config
from trinity.utils.monitor import MONITOR

PATH = "otel_bridge.adapters.trinity.OtelBridgeMonitor"

def monitor(role, arguments=None, **named):
    config = Config(project="math", group="sweep", name="one")
    config.monitor.monitor_type = PATH
    made = MONITOR.get(PATH)
    config.monitor.monitor_args = made.default_args() if arguments is None else arguments
    names = {"project": config.project, "group": config.group, "name": config.name, **named}
    return made(**names, role=getattr(config, role).name, config=config)
"""
TRINITY_ROLES = (
    TRINITY
    + """
def explore():
    one = monitor("explorer")
    for step in range(1, 4):
        one.log({"rollout/model_version": step - 1, "explorer/time/wait_explore_step": 0.5}, step=step)
    one.log({"explore/time/sync_interval": 1.5}, step=3)
    one.close()
    one.close()

def train():
    one = monitor("trainer")
    for step in (1, 2):
        one.log({"actor/loss": step / 2}, step)
    samples = [{"prompt": "2+2?", "response": "4", "reward": 1.0}, {"prompt": "3+3?", "response": "7", "reward": 0.25},
               {"prompt": "4+4?", "response": "?"}]
    one.log_table("rollout_examples", pd.DataFrame(samples), 2)
    one.log_table("lengths", pd.DataFrame({"task": ["a", "b"], "tokens": [3, 4]}), 2)
    del one

if len(sys.argv) > 1:
    {"explorer": explore, "trainer": train}[sys.argv[1]]()
else:
    roles = [subprocess.Popen([sys.executable, __file__, role]) for role in ("explorer", "trainer")]
    assert [one.wait() for one in roles] == [0, 0]
"""
)
