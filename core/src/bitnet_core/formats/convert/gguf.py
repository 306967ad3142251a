"""Write a model as a GGUF file with I2_S, TQ2_0, TQ1_0, Q2_0, PQ2_0 or STQ1_0 matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.target import ENCODINGS, Encoding
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.names import tables, ternaries, vectors
from bitnet_core.formats.pooling import pooling_number
from bitnet_core.formats.rotation import reordered, row_order
from bitnet_core.formats.ternary import i2_s, q2_0, stq1_0, tq1_0, tq2_0
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.families import FAMILIES
from bitnet_core.model.rope import frequency_factors
from bitnet_core.model.source import Finding, ModelSource
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.tokenizer.export import gguf_keys

Step = Callable[[int], None]
"""A callback with the number of weights just written."""

_ENCODERS: Final[dict[str, Callable[[TernaryWeight], npt.NDArray[np.uint8]]]] = {
    "I2_S": i2_s.encode,
    "TQ2_0": tq2_0.encode,
    "TQ1_0": tq1_0.encode,
    "Q2_0": q2_0.encode,
    "PQ2_0": partial(q2_0.encode, block=128),
    "STQ1_0": stq1_0.encode,
}
_CHUNK: Final = 1 << 24  # bytes of a table copied in one pass
_QUANTIZATION_VERSION: Final = 2


def write_gguf(source: ModelSource, path: Path, encoding: Encoding, step: Step) -> list[Finding]:
    """Write the whole model; return findings about rounded values and about rules that other programs ignore.

    Raises ModelError if the encoding or GGUF cannot hold the model.
    """
    rounded = 0
    config = source.config
    arch = architecture(config, encoding)
    order = {} if config.rope_interleaved or arch != "llama" else row_order(config, to_interleaved=True)
    norms = {name: source.vector(name) for name in vectors(config)}
    factors = _frequency_factors(source)
    if factors is not None:
        norms["rope_freqs"] = factors
    with GGUFWriter(path) as writer:
        for key, value in metadata(source, arch, encoding).items():
            writer.metadata(key, value)
        ternary = ternaries(config)
        dense = {name: source.dense(name) for name in tables(config) if name not in ternary}
        for name, table in dense.items():
            dtype = next(kind.name for kind in BY_NAME.values() if kind.name.lower() == table.dtype.lower())
            writer.tensor(f"{name}.weight", (table.rows, table.columns), dtype, table.data.size)
        for name, values in norms.items():
            writer.tensor(f"{name}.weight", values.shape, "F32", values.nbytes)
        for name, shape in ternary.items():
            writer.tensor(f"{name}.weight", shape, encoding.name, BY_NAME[encoding.name].nbytes(shape) or 0)
        for name, table in dense.items():
            rows = max(_CHUNK // table.row_bytes, 1)
            writer.write(f"{name}.weight", (table.data[at : at + rows] for at in range(0, table.rows, rows)))
            step(table.rows * table.columns)
        for name, values in norms.items():
            writer.write(f"{name}.weight", [values.astype("<f4")])
        for name in ternary:
            weight = reordered(source.ternary(name), order.get(name.rpartition(".")[2]))
            try:
                data = _ENCODERS[encoding.name](weight)
            except ModelError as error:
                raise ModelError(f"{source.path}: {name}: {error}; {_other(weight)}") from error
            writer.write(f"{name}.weight", [data])
            rounded += encoding.half_scales and bool((weight.scales != weight.scales.astype(np.float16)).any())
            step(weight.rows * weight.columns)
    return _not_kept(config, arch, encoding, rounded)


def _not_kept(config: ModelConfig, arch: str, encoding: Encoding, rounded: int) -> list[Finding]:
    """Return the findings of a written file. rounded: number of matrices whose scales were rounded."""
    findings = []
    if rounded:
        text = (
            f"{encoding.name} holds scales as f16: those of {rounded} matrices were rounded (by 1 part in 2048 at most)"
        )
        findings.append(Finding("warning", "scales-rounded", text))
    if arch == "bitnet" and config.activation == "relu2":
        text = "the model uses squared ReLU, as the file says; llama.cpp ignores that and runs the file wrongly (SiLU)"
        findings.append(Finding("warning", "llama.cpp-activation", text))
    return findings


def architecture(config: ModelConfig, encoding: Encoding) -> str:
    """Return the GGUF architecture whose rules (rotation, sub-norms, activation) match the model's.

    qwen3 norms each head; llama rotates interleaved pairs, all others halves. bitnet-b1.58, known only to programs that
    read I2_S, means squared ReLU; bitnet means SiLU unless the key hidden_activation says otherwise.
    """
    if config.arch in FAMILIES and FAMILIES[config.arch].keeps_arch:
        return config.arch
    return "bitnet-b1.58" if config.activation == "relu2" and encoding.name == "I2_S" else "bitnet"


def metadata(source: ModelSource, arch: str, encoding: Encoding) -> dict[str, Any]:
    """Return all key-values of the file."""
    config = source.config
    keys: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": config.name,
        "general.file_type": encoding.file_type,
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    for key, value in source.metadata.items():
        if key.startswith("general.") and isinstance(value, str) and key not in keys and value[:1] != "[":
            keys[key] = value  # such as author and licence; summaries of arrays are skipped
    keys |= {
        f"{arch}.context_length": config.context,
        f"{arch}.embedding_length": config.hidden,
        f"{arch}.block_count": config.n_layers,
        f"{arch}.feed_forward_length": config.ffn,
        f"{arch}.attention.head_count": config.n_heads,
        f"{arch}.attention.head_count_kv": config.n_kv_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.value_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config.norm_eps),
        f"{arch}.rope.dimension_count": config.head_dim,
        f"{arch}.rope.freq_base": float(config.rope_theta),
        f"{arch}.vocab_size": config.vocab,
        f"{arch}.hidden_activation": config.activation,
    }
    if config.rope_scaling in ("linear", "yarn"):
        keys[f"{arch}.rope.scaling.type"] = config.rope_scaling
        keys[f"{arch}.rope.scaling.factor"] = float(config.rope_factor)
    if config.rope_scaling == "yarn":
        keys[f"{arch}.rope.scaling.original_context_length"] = config.rope_original_context or config.context
        for name, beta, usual in (("fast", config.rope_beta_fast, 32.0), ("slow", config.rope_beta_slow, 1.0)):
            if beta != usual:
                keys[f"{arch}.rope.scaling.yarn_beta_{name}"] = float(beta)
    if config.pooling:
        keys[f"{arch}.pooling_type"] = pooling_number(source.path, config.pooling)
    return keys | gguf_keys(source.tokenizer, config.vocab)


def _frequency_factors(source: ModelSource) -> npt.NDArray[np.float32] | None:
    """Return Llama 3's RoPE scaling as GGUF stores it: a factor for each frequency."""
    if source.has("rope_freqs"):
        return source.vector("rope_freqs")
    return frequency_factors(source.config) if source.config.rope_scaling == "llama3" else None


def _other(weight: TernaryWeight) -> str:
    """Suggest another target for a matrix that the encoding cannot hold."""
    if weight.scale_kind == "tensor":
        return "convert to safetensors instead"
    fitting = [
        target
        for target, encoding in ENCODINGS.items()
        if target != "i2_s" and weight.columns % encoding.multiple == 0 and weight.block % encoding.multiple == 0
    ]
    return f"convert to {fitting[0]}, which keeps its scales" if fitting else "no other target keeps its scales"
