"""The conformance kit on the code path that this CPU chooses."""

from bitnet_core.testing import BackendConformance


class TestConformance(BackendConformance):
    backend = "cpu"
