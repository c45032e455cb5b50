"""Fake of ``lightning.pytorch.loggers``."""

from lightning.fabric.loggers import Logger as FabricLogger


class Logger(FabricLogger):
    def after_save_checkpoint(self, checkpoint_callback): ...

    @property
    def save_dir(self): ...
