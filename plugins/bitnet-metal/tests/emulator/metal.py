"""A Metal on the CPU behind pyobjc's names. Every call is checked against pyobjc's own tables: the selector, the number
of arguments, their types, the out-arguments. Nothing runs before somebody asks whether it has finished."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import types
from collections import Counter, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from emulator import msl
from emulator.tables import Tables

MTLSize = namedtuple("MTLSize", "width height depth")
PAGE = 16 << 10
INTEGERS = {b"Q": (0, 1 << 64), b"q": (-(1 << 63), 1 << 63), b"I": (0, 1 << 32)}
UNLISTED = {
    "init": {},
    "name": {},
    "domain": {},
    "code": {},
    "localizedDescription": {},
    "setComputeFunction:": {2: {"type": b"@"}},
    "setLanguageVersion:": {2: {"type": b"Q"}},
    "setCommandTypes:": {2: {"type": b"Q"}},
    "setMaxKernelBufferBindCount:": {2: {"type": b"Q"}},
    "setConstantValue:type:atIndex:": {3: {"type": b"Q"}, 4: {"type": b"Q"}},
}
"""Plain methods that need no metadata, so that pyobjc's tables lack them; from Apple's headers."""


class MisuseError(AssertionError):
    """A call that the real framework would not take, or that its validation layer stops."""


class State:
    """The state of the emulated framework, which tests read and set."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.extra: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.pools = 0
        self.allocated = 0
        self.working_set = 1 << 30
        self.family = 7
        self.unified = True
        self.no_indirect = False
        self.fails: list[int] = []  # codes of MTLCommandBufferError for the next command buffers
        self.stuck = False
        self.reverse = bool(os.environ.get("SIMT_REVERSE"))


def check(value: Any, about: dict[str, Any], where: str) -> None:
    """Check one argument against its metadata. A type that is not bytes is a slip in pyobjc's own tables, which it
    ignores."""
    kind = about.get("type")
    if about.get("type_modifier") == b"o":
        if value is not None:
            raise MisuseError(f"{where} is an out-argument: pass None")
    elif kind in INTEGERS:
        low, high = INTEGERS[kind]
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value < high:
            raise MisuseError(f"{where} is {value!r}, not an integer of type {kind!r}")
    elif kind == b"Z" and not isinstance(value, bool):
        raise MisuseError(f"{where} is {value!r}, not a BOOL")
    elif kind == b"@" and not (value is None or isinstance(value, Object | str)):
        raise MisuseError(f"{where} is {value!r}, not an object")
    elif isinstance(kind, bytes) and kind.startswith(b"{"):
        fields = kind.count(b"Q")
        if len(value) != fields or not all(isinstance(one, int | np.integer) and one >= 0 for one in value):
            raise MisuseError(f"{where} is {value!r}, not a {kind.decode()}")


class Object:
    """Methods are found as do_<selector>; `protocol` objects use the tables of NSObject."""

    kind = "NSObject"

    def __init__(self, state: State) -> None:
        self.state = state

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "do_")):
            raise AttributeError(name)
        selector = name.replace("_", ":")
        state = self.state
        about = state.tables.selectors.get((self.kind, selector)) or state.extra.get((self.kind, selector))
        if about is None and selector not in UNLISTED:
            raise MisuseError(f"{self.kind} has no selector {selector} in pyobjc's tables")
        implementation: Callable[..., Any] | None = getattr(type(self), f"do_{name}", None)
        if implementation is None:
            raise MisuseError(f"{type(self).__name__} does not know {selector}")
        arguments = {**UNLISTED.get(selector, {}), **(about or {}).get("arguments", {})}
        if selector == "setConstantValue:type:atIndex:" and "arguments" not in (about or {}):
            raise MisuseError(f"pyobjc takes no value for {selector} before it is told of the argument's type")

        def call(*given: Any) -> Any:
            state.calls[selector] += 1
            if len(given) != selector.count(":"):
                raise MisuseError(f"{selector} takes {selector.count(':')} arguments, not {len(given)}")
            for index, argument in arguments.items():
                check(given[index - 2], argument, f"argument {index - 2} of {selector}")
                length = argument.get("c_array_length_in_arg")
                if length is not None:
                    check_array(given[index - 2], given[length - 2], selector)
                fixed = argument.get("c_array_of_fixed_length")
                if fixed is not None:
                    check_array(given[index - 2], fixed, selector)
            return implementation(self, *given)

        return call


def check_array(value: Any, count: int, selector: str) -> None:
    held = len(value) if isinstance(value, list) else memoryview(value).nbytes
    if held < count:
        raise MisuseError(f"{selector}: {held} elements, not the {count} that it says")


class Error(Object):
    def __init__(self, state: State, domain: str, code: int, text: str) -> None:
        super().__init__(state)
        self.about = domain, code, text

    def do_domain(self) -> str:
        return self.about[0]

    def do_code(self) -> int:
        return self.about[1]

    def do_localizedDescription(self) -> str:
        return self.about[2]


class Contents:
    """An objc.varlist."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def as_buffer(self, count: int) -> memoryview:
        return memoryview(self.data)[:count].cast("c")  # bytes of no type


class Buffer(Object):
    def __init__(self, state: State, data: Any, private: bool) -> None:
        super().__init__(state)
        self.data, self.private = data, private
        self.address = int(data.ctypes.data)
        self.nbytes = int(data.nbytes)
        state.allocated += self.nbytes

    def __del__(self) -> None:
        self.state.allocated -= self.nbytes

    def do_contents(self) -> Contents:
        if self.private:
            raise MisuseError("a private buffer has no contents for the host")
        return Contents(self.data)

    def range(self, offset: int, nbytes: int) -> Any:
        if offset + nbytes > self.nbytes:
            raise MisuseError(f"bytes {offset}..{offset + nbytes} of a buffer of {self.nbytes}")
        return self.data[offset : offset + nbytes]


class Settings(Object):
    """A descriptor, which stores the fields that are set."""

    def __init__(self, state: State, kind: str) -> None:
        super().__init__(state)
        self.kind, self.given = kind, dict[str, Any]()

    def do_init(self) -> Settings:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set") and not name.startswith("setConstantValue"):
            setattr(type(self), f"do_{name}", lambda self, value: self.given.__setitem__(name, value))
        return super().__getattr__(name)

    def do_setConstantValue_type_atIndex_(self, value: bytes, kind: int, index: int) -> None:
        self.given[str(index)] = kind, int.from_bytes(value, "little")


class Class:
    """A class of the framework that is only made with alloc().init()."""

    def __init__(self, state: State, name: str) -> None:
        self.state, self.name = state, name

    def alloc(self) -> Settings:
        return Settings(self.state, self.name)


class Function(Object):
    def __init__(self, state: State, library: msl.Library, name: str, constants: dict[str, int]) -> None:
        super().__init__(state)
        self.library, self.name, self.constants = library, name, constants


class Library(Object):
    def __init__(self, state: State, library: msl.Library) -> None:
        super().__init__(state)
        self.library = library

    def do_newFunctionWithName_constantValues_error_(self, name: str, values: Settings, error: None) -> Any:
        query = {}
        for kind, constant, index in self.library.constants:
            if str(index) not in values.given:
                return None, Error(self.state, "MTLLibraryErrorDomain", 3, f"function constant {constant} is not set")
            given, value = values.given[str(index)]
            if (kind, given) != ("uint", self.state.tables.values["MTLDataTypeUInt"]):
                raise MisuseError(f"function constant {constant} is a {kind} and was set as type {given}")
            query[constant] = value
        if name not in self.library.kernels:
            return None, Error(self.state, "MTLLibraryErrorDomain", 5, f"there is no function {name}")
        return Function(self.state, self.library, name, query), None


class Pipeline(Object):
    def __init__(self, state: State, function: Function, indirect: bool) -> None:
        super().__init__(state)
        self.function, self.indirect = function, indirect

    def do_threadExecutionWidth(self) -> int:
        return 32

    def do_maxTotalThreadsPerThreadgroup(self) -> int:
        return 1024


class Command(Object):
    """A command of an indirect command buffer, or the state of an encoder."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.pipeline: Pipeline | None = None
        self.buffers: dict[int, tuple[Buffer, int]] = {}
        self.grid, self.threads, self.barrier = MTLSize(0, 0, 0), MTLSize(0, 0, 0), False

    def do_setComputePipelineState_(self, pipeline: Pipeline) -> None:
        if not pipeline.indirect:
            raise MisuseError("a pipeline that does not support indirect command buffers")
        self.pipeline = pipeline

    def do_setKernelBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        buffer.range(offset, 1)
        self.buffers[index] = buffer, offset

    def do_setBarrier(self) -> None:
        self.barrier = True

    def do_concurrentDispatchThreadgroups_threadsPerThreadgroup_(self, grid: MTLSize, threads: MTLSize) -> None:
        if not (isinstance(grid, MTLSize) and isinstance(threads, MTLSize)):
            raise MisuseError("sizes are MTLSize")
        self.grid, self.threads = grid, threads

    def run(self) -> None:
        pipeline, threads = self.pipeline, self.threads
        if pipeline is None:
            raise MisuseError("a dispatch without a pipeline")
        if 0 in self.grid:
            return
        function = pipeline.function
        query = {one.index for one in function.library.kernels[function.name] if one.attribute == "buffer"}
        if query - set(self.buffers):
            raise MisuseError(f"{function.name}: no buffer at {sorted(query - set(self.buffers))}")
        if threads.width % 32 or not 0 < threads.width <= 1024 or (threads.height, threads.depth) != (1, 1):
            raise MisuseError(f"{function.name}: threadgroups of {threads}")
        buffers = {index: buffer.address + offset for index, (buffer, offset) in self.buffers.items()}
        function.library.run(function.name, function.constants, buffers, self.grid, threads.width)


class Commands(Object):
    """An indirect command buffer."""

    def __init__(self, state: State, about: Settings, count: int) -> None:
        super().__init__(state)
        given = about.given
        if given.get("setCommandTypes_") != state.tables.values["MTLIndirectCommandTypeConcurrentDispatch"]:
            raise MisuseError("an indirect command buffer without concurrent dispatches")
        if given.get("setInheritBuffers_") is not False or given.get("setInheritPipelineState_") is not False:
            raise MisuseError("commands would inherit what the encoder has set")
        self.commands = [Command(state) for _ in range(count)]
        self.most = given["setMaxKernelBufferBindCount_"]

    def do_indirectComputeCommandAtIndex_(self, index: int) -> Command:
        return self.commands[index]

    def run(self, first: int, count: int, resident: set[int], reverse: bool) -> int:
        """Run the commands between two barriers in either order. Returns 3, a page fault, if one touches a buffer that
        is not resident."""
        group: list[Command] = []
        for command in [*self.commands[first : first + count], None]:
            if group and (command is None or command.barrier):
                for one in reversed(group) if reverse else group:
                    if max(one.buffers) >= self.most:
                        raise MisuseError("more buffers than the descriptor says")
                    if any(id(buffer) not in resident for buffer, _ in one.buffers.values()):
                        return 3
                    one.run()
                group = []
            if command is not None:
                group.append(command)
        return 0


class Encoder(Object):
    def __init__(self, state: State, owner: CommandBuffer) -> None:
        super().__init__(state)
        self.owner, self.now, self.ended = owner, Command(state), False
        self.resident: set[int] = set()

    def _add(self, work: Callable[[], int | None]) -> None:
        if self.ended:
            raise MisuseError("the encoder has ended")
        self.owner.work.append(work)

    def do_endEncoding(self) -> None:
        self.ended, self.owner.encoder = True, None

    # Compute.

    def do_setComputePipelineState_(self, pipeline: Pipeline) -> None:
        self.now.do_setComputePipelineState_(pipeline)

    def do_setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        self.now.do_setKernelBuffer_offset_atIndex_(buffer, offset, index)

    def do_setBytes_length_atIndex_(self, value: bytes, length: int, index: int) -> None:
        if length > 4096:
            raise MisuseError("setBytes takes 4 KiB at most")
        data = np.frombuffer(bytearray(value[:length]), np.uint8)
        self.now.do_setKernelBuffer_offset_atIndex_(Buffer(self.state, data, private=False), 0, index)

    def do_dispatchThreadgroups_threadsPerThreadgroup_(self, grid: MTLSize, threads: MTLSize) -> None:
        now = Command(self.state)
        now.pipeline, now.buffers, now.grid, now.threads = self.now.pipeline, dict(self.now.buffers), grid, threads
        self._add(now.run)

    def do_useResources_count_usage_(self, resources: list[Buffer], count: int, usage: int) -> None:
        if len(resources) != count or usage != 3:
            raise MisuseError("resources are read and written")
        self.resident |= {id(one) for one in resources}
        self.owner.kept += resources

    def do_memoryBarrierWithScope_(self, scope: int) -> None:
        if scope != self.state.tables.values["MTLBarrierScopeBuffers"]:
            raise MisuseError("the barrier is not for buffers")

    def do_executeCommandsInBuffer_withRange_(self, commands: Commands, span: tuple[int, int]) -> None:
        if sum(span) > len(commands.commands):
            raise MisuseError("a range beyond the commands")
        self._add(lambda: commands.run(*span, self.resident, self.state.reverse))

    # Copies.

    def do_copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: Buffer, at: int, target: Buffer, to: int, nbytes: int
    ) -> None:
        if at % 4 or to % 4 or nbytes % 4 or not nbytes:
            raise MisuseError("copies on macOS are of whole words")
        read, written = source.range(at, nbytes), target.range(to, nbytes)
        self._add(lambda: np.copyto(written, read))

    def do_fillBuffer_range_value_(self, buffer: Buffer, span: tuple[int, int], value: int) -> None:
        if span[0] % 4 or span[1] % 4:
            raise MisuseError("fills on macOS are of whole words")
        written = buffer.range(*span)
        self._add(lambda: written.fill(value))


class CommandBuffer(Object):
    def __init__(self, state: State, queue: CommandQueue) -> None:
        super().__init__(state)
        self.queue, self.work, self.kept = queue, list[Callable[[], "int | None"]](), list[Any]()
        self.encoder: Encoder | None = None
        self.stage, self.failure, self.reason, self.times = 0, 0, "", (0.0, 0.0)

    def _encode(self) -> Encoder:
        if self.encoder is not None:
            raise MisuseError("the last encoder has not ended")
        if self.stage:
            raise MisuseError("the command buffer is committed")
        if not self.state.pools:
            raise MisuseError("what Metal autoreleases here would leak: no autorelease pool")
        self.encoder = Encoder(self.state, self)
        return self.encoder

    do_computeCommandEncoder = do_blitCommandEncoder = _encode

    def do_commit(self) -> None:
        if self.encoder is not None or self.stage:
            raise MisuseError("commit with an open encoder, or a second one")
        self.stage = 2
        self.queue.committed.append(self)

    def do_status(self) -> int:
        if self.stage == 2 and not self.state.stuck:
            self.queue.run_until(self)
        return self.stage

    def run(self) -> None:
        began = time.perf_counter()
        self.failure = self.state.fails.pop(0) if self.state.fails else 0
        for work in self.work:
            try:
                self.failure = self.failure or work() or 0
            except RuntimeError as error:  # threads parted ways: a GPU would hang until macOS stops it
                self.failure, self.reason = 2, str(error)
            if self.failure:
                break
        self.times = began, time.perf_counter()
        self.stage = 5 if self.failure else 4
        self.work, self.kept = [], []

    def do_error(self) -> Error:
        return Error(
            self.state,
            "MTLCommandBufferErrorDomain",
            self.failure,
            f"the fake GPU fails with {self.failure} {self.reason}",
        )

    def do_GPUStartTime(self) -> float:
        return self.times[0]

    def do_GPUEndTime(self) -> float:
        return self.times[1]


class CommandQueue(Object):
    def __init__(self, state: State, most: int) -> None:
        super().__init__(state)
        self.most, self.committed = most, list[CommandBuffer]()

    def do_commandBuffer(self) -> CommandBuffer:
        if not self.state.pools:
            raise MisuseError("what Metal autoreleases here would leak: no autorelease pool")
        if len(self.committed) >= self.most:
            raise MisuseError("the queue is full: Metal would block without a bound")
        return CommandBuffer(self.state, self)

    def run_until(self, last: CommandBuffer) -> None:
        while last in self.committed:
            self.committed.pop(0).run()


class Device(Object):
    def do_name(self) -> str:
        return "a CPU behind Metal's names"

    def do_supportsFamily_(self, family: int) -> bool:
        return self.state.family > 0 and 1000 < family <= 1000 + self.state.family

    def do_hasUnifiedMemory(self) -> bool:
        return self.state.unified

    def do_recommendedMaxWorkingSetSize(self) -> int:
        return self.state.working_set

    def do_currentAllocatedSize(self) -> int:
        return self.state.allocated

    def do_maxBufferLength(self) -> int:
        return 4 << 30

    def do_maxThreadgroupMemoryLength(self) -> int:
        return 32 << 10

    def do_registryID(self) -> int:
        return 0x100000A5

    def do_newCommandQueueWithMaxCommandBufferCount_(self, most: int) -> CommandQueue:
        return CommandQueue(self.state, most)

    def do_newBufferWithLength_options_(self, nbytes: int, options: int) -> Buffer | None:
        private = options == self.state.tables.values["MTLResourceStorageModePrivate"]
        if not private and options != self.state.tables.values["MTLResourceStorageModeShared"]:
            raise MisuseError(f"storage mode {options}")
        if not 0 < nbytes <= self.do_maxBufferLength():
            return None
        data = np.full(nbytes, 0xA5, np.uint8) if private else np.zeros(nbytes, np.uint8)
        return Buffer(self.state, data, private)

    def do_newBufferWithBytes_length_options_(self, value: bytes, nbytes: int, options: int) -> Buffer:
        return Buffer(self.state, np.frombuffer(bytearray(value[:nbytes]), np.uint8), private=False)

    def do_newBufferWithBytesNoCopy_length_options_deallocator_(
        self, memory: Any, nbytes: int, options: int, deallocator: None
    ) -> Buffer:
        address = ctypes.addressof(memory)
        if address % PAGE or nbytes % PAGE:
            raise MisuseError("memory without a copy is whole pages of 16 KiB")
        return Buffer(self.state, np.frombuffer(memory, np.uint8), private=False)

    def do_newLibraryWithSource_options_error_(self, text: str, options: Settings, error: None) -> Any:
        if options.given.get("setFastMathEnabled_") is not False:
            raise MisuseError("fast-math would lose NaN and Inf")
        try:
            return Library(self.state, msl.library(text)), None
        except msl.CompileError as failure:
            return None, Error(self.state, "MTLLibraryErrorDomain", 3, str(failure))

    def do_newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, about: Settings, options: int, reflection: None, error: None
    ) -> Any:
        function = about.given["setComputeFunction_"]
        return Pipeline(self.state, function, about.given.get("setSupportIndirectCommandBuffers_", False)), None

    def do_newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, about: Settings, count: int, options: int
    ) -> Commands | None:
        return None if self.state.no_indirect else Commands(self.state, about, count)


def install(tables: Tables) -> State:
    """Put `Metal` and `objc` in place of pyobjc's, in this process."""
    state = State(tables)
    metal, objc = types.ModuleType("Metal"), types.ModuleType("objc")
    metal.__dict__.update(tables.values)
    metal.MTLSize = MTLSize  # type: ignore[attr-defined]  # a module made here
    metal.MTLCopyAllDevices = lambda: [Device(state)]  # type: ignore[attr-defined]  # as above
    for name in (
        "CompileOptions",
        "FunctionConstantValues",
        "ComputePipelineDescriptor",
        "IndirectCommandBufferDescriptor",
    ):
        setattr(metal, f"MTL{name}", Class(state, f"MTL{name}"))

    class Pool:
        def __enter__(self) -> None:
            state.pools += 1

        def __exit__(self, *_: object) -> None:
            state.pools -= 1

    def register(kind: bytes, selector: bytes, about: dict[str, Any]) -> None:
        state.extra[kind.decode(), selector.decode()] = about

    objc.autorelease_pool = Pool  # type: ignore[attr-defined]  # as above
    objc.registerMetaDataForSelector = register  # type: ignore[attr-defined]  # as above
    sys.modules.update({"Metal": metal, "objc": objc})
    from bitnet_metal.driver import module

    module.cache_clear()
    return state
