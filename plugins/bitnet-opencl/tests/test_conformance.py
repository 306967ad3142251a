"""The conformance kit on the OpenCL devices of this machine."""

from bitnet_core.testing import BackendConformance


class TestConformance(BackendConformance):
    backend = "opencl"
