"""Rules that Apple's compiler or validation enforces and clang does not; clang itself rejects mixed address spaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bitnet_hal.device import Tuning
from bitnet_hal.kernels.spec import KernelSpec

from emulator.msl import CONSTANT, KERNEL, arguments_of, without_comments

SPACES = ("device", "constant", "threadgroup", "thread")
ROOM = 32 << 10
"""Bytes of threadgroup memory, of every family from apple4 on."""
LANGUAGE = 30
"""MSL 3.0, which the host asks for."""
ELEMENTS = {
    "u8": {"uchar", "uint"},
    "i8": {"char4"},
    "i32": {"int", "int4", "uint"},
    "f32": {"float", "float2"},
    "workspace": {"float", "uint2"},
}
"""Element types that kernels may use for the catalogue's types."""
BYTES = {"half": 2, "float": 4, "int": 4, "uint": 4, "float2": 8, "uint2": 8, "char4": 4, "atomic_uint": 4}
FUNCTIONS = {
    **dict.fromkeys(("fabs", "clamp", "dot", "exp", "log", "max", "min", "rint", "sqrt", "as_type"), (1, 10)),
    **dict.fromkeys(("atomic_load_explicit", "atomic_store_explicit", "atomic_fetch_add_explicit"), (2, 10)),
    **dict.fromkeys(("threadgroup_barrier", "simdgroup_barrier"), (4, 20)),
    **dict.fromkeys(("simd_shuffle", "simd_shuffle_xor"), (6, 21)),
    **dict.fromkeys(("simd_sum", "simd_max"), (7, 21)),
    **dict.fromkeys(("simdgroup_load", "simdgroup_store", "simdgroup_multiply_accumulate"), (7, 23)),
    "make_filled_simdgroup_matrix": (7, 23),
}
"""The functions of Apple's library that kernels may call: first family (apple7 = 7) and first MSL that has them."""
TYPES = {
    **dict.fromkeys(("simdgroup_float8x8", "simdgroup_half8x8"), (7, 23)),
    "simdgroup_bfloat8x8": (7, 31),
    "bfloat": (6, 31),
}
"""Types that not every family or language has."""
WORDS = {
    "if",
    "for",
    "while",
    "return",
    "ulong",
    "ushort",
    "char",
    "char4",
    "float",
    "float2",
    "float4",
    "half",
    "half4",
}
WORDS |= {"int", "int4", "uint", "uint2", "uint4"}
FORBIDDEN = (
    "double",
    "static",
    "goto",
    "virtual",
    "try",
    "throw",
    "new",
    "delete",
    "std",
    "auto *",
    "long long",
    "mem_none",
)


def complaints(text: str, spec: KernelSpec, tuning: Tuning, family: int = 7) -> list[str]:
    """Return the complaints about one generated source. family: the oldest GPU that it is for."""
    bare = without_comments(text)
    found = [f"'{word}' is not for kernels" for word in FORBIDDEN if re.search(rf"\b{re.escape(word)}\b", bare)]
    for check in (_constants, _pointers, _threadgroup):
        found += check(bare)
    return [*found, *_library(bare, family), *_bindings(text, spec, tuning)]


def _constants(text: str) -> Iterator[str]:
    declared = CONSTANT.findall(text)
    if len(declared) != text.count("function_constant"):
        yield "a function constant is not declared as `constant TYPE NAME [[function_constant(N)]];`"
    if [int(index) for _, _, index in declared] != list(range(len(declared))):
        yield "indices of function constants do not count from 0"
    yield from (
        f"function constant {name} is a {kind}, and the host sets uint" for kind, name, _ in declared if kind != "uint"
    )


def _pointers(text: str) -> Iterator[str]:
    """Every pointer and reference names its address space."""
    lists = re.findall(r"^(?:inline|kernel) [^;{(]*\(([^{}]*?)\)\s*\{", text, flags=re.M)
    parts = [part for inside in lists for part in inside.split(",")]
    parts += [
        line
        for body in re.findall(r"struct \w+ \{(.*?)\n\};", text, flags=re.S)
        for line in re.findall(r"^ +[^(){}\n]*;", body, flags=re.M)
    ]
    parts += re.findall(r"\((?:\w+ )*\w+ \*\)", text)
    parts += re.findall(r"^ +(?:\w+ )+\*\w+ =", text, flags=re.M)
    for part in parts:
        if ("*" in part or "&" in part) and part.strip(" (\n").split()[0] not in SPACES:
            yield f"a pointer without an address space: {' '.join(part.split())}"


def _threadgroup(text: str) -> Iterator[str]:
    """Variables in threadgroup memory: in kernel functions alone, of constant sizes, that fit."""
    values = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)$", text, flags=re.M)}
    values |= {
        name: int(value) for name, value in re.findall(r"^constant constexpr uint (\w+) = (\d+);", text, flags=re.M)
    }
    declared = re.compile(r"^ +threadgroup (\w+) (\w+)(?:\[([^\]]+)\])?;", re.M)
    inside = 0
    for kernel in re.split(r"^(?=kernel )", text, flags=re.M)[1:]:
        total, body = 0, re.split(r"^\}", kernel, flags=re.M)[0]
        for kind, name, size in declared.findall(body):
            inside += 1
            names = set(re.findall(r"[A-Za-z_]\w*", size))
            if names - set(values):
                yield f"{name}[{size}] has no constant size"
            elif re.fullmatch(r"[\w */+]*", size):
                total += BYTES[kind] * int(eval(size.replace("/", "//") or "1", {}, dict(values)))
        if total > ROOM:
            yield f"{total} bytes of threadgroup memory"
    if inside != len(declared.findall(text)):
        yield "a threadgroup variable outside of a kernel function"


def _library(text: str, family: int) -> Iterator[str]:
    own = set(re.findall(r"^(?:inline|kernel) [^;{=]*?(\w+)\(", text, flags=re.M))
    own |= set(re.findall(r"^ +[^=;(){}\n]*?(\w+)\([^(){}]*\) const \{", text, flags=re.M))
    own |= set(re.findall(r"#define (\w+)", text))
    for name in sorted(set(re.findall(r"\b([A-Za-z_]\w*)(?:<[^<>;(){}]*>)?\(", text)) - own - WORDS):
        if name in ("buffer", "function_constant", "as_type", "PAIRS", "PAIRS_HERE"):
            continue
        if name not in FUNCTIONS:
            yield f"{name} is no function that kernels may call"
    for name, (first, language) in {**FUNCTIONS, **TYPES}.items():
        if re.search(rf"\b{name}\b", text) and (family < first or language > LANGUAGE):
            yield f"{name} needs apple{first} and MSL {language / 10}"


def _bindings(text: str, spec: KernelSpec, tuning: Tuning) -> Iterator[str]:
    """Buffers as the host binds them: in the catalogue's order, the workspace, the parameters."""
    query = [(one.name, one.dtype, one.access == "r") for one in spec.bindings]
    query += [("workspace", "workspace", False)] if tuning.workspace else []
    kernels = arguments_of(text)
    if not kernels:
        yield "there is no kernel function"
    for name, arguments in kernels.items():
        buffers = [one for one in arguments if one.attribute == "buffer"]
        if [one.index for one in buffers] != list(range(len(query) + 1)):
            yield f"{name}: buffers {[one.index for one in buffers]}, and the host binds {len(query) + 1}"
            continue
        for argument, (own, dtype, read_only) in zip(buffers, query, strict=False):
            words = argument.declared.replace("*", "").split()
            constant = "const" in words
            if words[-1] != own or words[0] != "device" or words[-2] not in ELEMENTS[dtype]:
                yield f"{name}: buffer {argument.index} is `{argument.declared}`, not {own} of {dtype} in device memory"
            if constant != read_only:
                yield f"{name}: {own} is {'only read' if read_only else 'written'}, and `{argument.declared}` differs"
        if buffers[-1].declared != "constant Params &p":
            yield f"{name}: the last buffer is `{buffers[-1].declared}`, not the parameters"
    if KERNEL.search(without_comments(text)) and "void main(" in text:
        yield "Metal has no function main"
