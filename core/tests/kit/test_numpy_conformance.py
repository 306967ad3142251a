"""The numpy device passes its own kit."""

from bitnet_core.testing import BackendConformance


class TestNumpyConformance(BackendConformance):
    backend = "numpy"
