"""The front door for plugins: the names of the contract and the helpers that most of them use.

A plugin imports the names in `__all__` from here, and all others from the module that defines them: errors from
`bitnet_hal.errors`, device classes for one kind of driver from `bitnet_hal.families`.
"""

from __future__ import annotations

from bitnet_hal.base import BaseDevice
from bitnet_hal.device import DeviceInfo, DeviceType, MemoryKind, TransferMode, Tuning
from bitnet_hal.driver.enumerate import EnumeratedDevice, by_index, filter_devices, pci_address
from bitnet_hal.driver.program_cache import ProgramCache
from bitnet_hal.driver.sources import source_text, with_includes
from bitnet_hal.driver.staged_transfers import StagedDevice
from bitnet_hal.driver.status import ErrorDetails, StatusCodes, failure
from bitnet_hal.driver.toml_tables import table
from bitnet_hal.driver.word_transfers import WordDevice, words_of
from bitnet_hal.families.c_library import CffiLibrary, Handle, HandleRegistry
from bitnet_hal.families.command_lists import CommandListDevice
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.launches import BoundLaunch, CompiledKernel, LaunchRecording
from bitnet_hal.tuning.query import FEW_ROWS, TuningMixin, TuningQuery
from bitnet_hal.tuning.table import TuningTable

__all__ = [
    "FEW_ROWS",
    "BaseDevice",
    "BoundLaunch",
    "CffiLibrary",
    "CommandListDevice",
    "CompiledKernel",
    "Constants",
    "DeviceInfo",
    "DeviceType",
    "EnumeratedDevice",
    "ErrorDetails",
    "Grid",
    "Handle",
    "HandleRegistry",
    "KernelSpec",
    "LaunchRecording",
    "MemoryKind",
    "Params",
    "ProgramCache",
    "StagedDevice",
    "StatusCodes",
    "TransferMode",
    "Tuning",
    "TuningMixin",
    "TuningQuery",
    "TuningTable",
    "WordDevice",
    "by_index",
    "failure",
    "filter_devices",
    "pci_address",
    "source_text",
    "table",
    "with_includes",
    "words_of",
]
