"""How a tuning is put together."""

from bitnet_core.hal.portable_tiles import Constants, Params, tuned

__all__ = ["Constants", "Params", "tuned"]
