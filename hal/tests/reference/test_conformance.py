"""The numpy device passes its own kit."""

from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.testing.tolerances import TOLERANCES


class TestNumpyConformance(BackendConformance):
    backend = NumpyBackend


def test_every_kernel_has_cases_and_a_tolerance() -> None:
    assert {case.kernel for case in all_cases()} == set(CATALOGUE)
    assert {name.partition(".")[0] for name in TOLERANCES} == set(CATALOGUE)


def test_every_semantic_constant_is_tried() -> None:
    tried = {(case.kernel, *item) for case in all_cases() for item in case.launch().constants.items()}
    listed = {
        (name, constant, value)
        for name, spec in CATALOGUE.items()
        for constant, values in spec.constants.items()
        for value in values
    }
    assert tried == listed
