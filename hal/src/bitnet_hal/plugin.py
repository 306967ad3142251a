"""What most plugins are made of, by one import; what is for one kind of driver is in a module of its own."""

from __future__ import annotations

from bitnet_hal.base import BaseDevice
from bitnet_hal.device import DeviceInfo, DeviceType, MemoryKind, TransferMode, Tuning
from bitnet_hal.driver.enumerate import Handled, numbered, pci_address, sorted_out
from bitnet_hal.driver.program_cache import ProgramCache
from bitnet_hal.driver.sources import source_text, with_includes
from bitnet_hal.driver.staged_transfers import StagedDevice
from bitnet_hal.driver.status import Details, Statuses, failure
from bitnet_hal.driver.toml_tables import table
from bitnet_hal.driver.word_transfers import WordDevice, words_of
from bitnet_hal.families.c_library import CLibrary, Created, Handle
from bitnet_hal.families.command_lists import CommandListDevice
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.launches import Compiled, Launch, Recorded
from bitnet_hal.tuning.query import FEW_ROWS, Tuned, Wanted
from bitnet_hal.tuning.table import TuningTable

__all__ = [
    "FEW_ROWS",
    "BaseDevice",
    "CLibrary",
    "CommandListDevice",
    "Compiled",
    "Constants",
    "Created",
    "Details",
    "DeviceInfo",
    "DeviceType",
    "Grid",
    "Handle",
    "Handled",
    "KernelSpec",
    "Launch",
    "MemoryKind",
    "Params",
    "ProgramCache",
    "Recorded",
    "StagedDevice",
    "Statuses",
    "TransferMode",
    "Tuned",
    "Tuning",
    "TuningTable",
    "Wanted",
    "WordDevice",
    "failure",
    "numbered",
    "pci_address",
    "sorted_out",
    "source_text",
    "table",
    "with_includes",
    "words_of",
]
