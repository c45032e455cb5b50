"""Fake of ``axolotl.utils.dict``."""


class DictDefault(dict):
    """A missing key is ``None``."""

    def __getattr__(self, name):
        return self.get(name)
