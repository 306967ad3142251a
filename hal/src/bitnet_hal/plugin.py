"""What most plugins are made of, by one import; what is for one kind of driver is in a module of its own."""

from __future__ import annotations

from bitnet_core.hal.base import BaseDevice
from bitnet_core.hal.c_library import CLibrary, Created, Handle
from bitnet_core.hal.command_lists import CommandListDevice
from bitnet_core.hal.device import DeviceInfo, DeviceType, MemoryKind, TransferMode, Tuning
from bitnet_core.hal.failures import Details, Statuses, failure
from bitnet_core.hal.found import Handled, numbered, pci_address, sorted_out
from bitnet_core.hal.launches import Compiled, Launch, Recorded
from bitnet_core.hal.portable_tiles import FEW_ROWS
from bitnet_core.hal.program_cache import ProgramCache
from bitnet_core.hal.sources import source_text, with_includes
from bitnet_core.hal.staged import StagedDevice
from bitnet_core.hal.tables import table
from bitnet_core.hal.tuning_table import TuningTable
from bitnet_core.hal.wanted import Constants, Params, Tuned, Wanted
from bitnet_core.hal.words import WordDevice, words_of
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.kernels.types import Grid

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
