"""Programs of frameworks that run alike with the fakes and with the real packages."""

ACCELERATE_OBJECT = """
from accelerate import Accelerator
from otel_bridge.adapters.accelerate import OtelBridgeTracker

accelerator = Accelerator(log_with=OtelBridgeTracker("grpo", name="one", tags=["a"]), cpu=True)
accelerator.init_trackers("ignored", config={"lr": 0.1, "model": "tiny"})
for step in range(3):
    accelerator.log({"loss": step / 2, "note": "text"}, step=step)
if accelerator.is_main_process:
    assert accelerator.get_tracker("otel_bridge", unwrap=True).name == "one"
accelerator.end_training()
"""
ACCELERATE_NAME = """
from accelerate import Accelerator
from otel_bridge.adapters import accelerate

accelerate.register()
accelerate.register()
accelerator = Accelerator(log_with="otel_bridge", cpu=True)
try:
    accelerator.init_trackers("grpo", config={"lr": 0.1}, init_kwargs={"otel_bridge": {"name": "two"}})
    for step in range(3):
        accelerator.log({"loss": step / 2}, step=step)
    raise RuntimeError("out of memory")
finally:
    accelerator.end_training()
"""
LIGHTNING = """
import sys
import torch
package = sys.argv[1]
if package == "lightning":
    import lightning.pytorch as pl
else:
    import pytorch_lightning as pl
from otel_bridge.adapters.lightning import OtelBridgeLogger

class Model(pl.LightningModule):
    def __init__(self, fails=False):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(2, 1), fails
        self.save_hyperparameters()
    def training_step(self, batch, index):
        if self.fails and index == 3:
            raise RuntimeError("out of memory")
        loss = self.layer(batch[0]).sum()
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("val", 2.0)
    def test_step(self, batch, index):
        self.log("test", 3.0)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))

def trainer(logger, epochs=1):
    return pl.Trainer(logger=logger, max_epochs=epochs, accelerator="cpu", log_every_n_steps=2,
                      enable_checkpointing=len(sys.argv) > 2, enable_progress_bar=False, enable_model_summary=False)
"""
LIGHTNING_PHASES = (
    LIGHTNING
    + """
one = trainer(OtelBridgeLogger("sft", "one"))
assert isinstance(one.logger, pl.loggers.Logger)
one.fit(Model(), loader(), None)
one.validate(Model(), loader())
one.test(Model(), loader())
assert one.logger.experiment.name == one.logger.version == "one"
"""
)
LIGHTNING_FAILS = (
    LIGHTNING
    + """
try:
    trainer(OtelBridgeLogger("sft", "one")).fit(Model(fails=True), loader())
except RuntimeError:
    pass
"""
)
LIGHTNING_ENTRY_POINT = (
    LIGHTNING
    + """
one = trainer(False)
one.fit(Model(), loader())
print("emit" if any(name.startswith("otel_bridge.emit") for name in sys.modules) else "nothing")
"""
)
LIGHTNING_FABRIC = """
import torch
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
model = fabric.setup(torch.nn.Linear(2, 1))
for step in range(3):
    fabric.log_dict({"loss": step / 2}, step=step)
"""
