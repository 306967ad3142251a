"""The table of rotary position embeddings, computed once on the host.

Formulas of RoFormer (Su et al. 2021), position interpolation (Chen et al. 2023), YaRN (Peng et al. 2023) and Llama 3.1,
in the arithmetic of the transformers library: f32 inverse frequencies, f32 angles, cos and sin of the f32 angle.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.model.config import ModelConfig

LONG_FACTORS = frozenset({"rope_factors_long", "rope_factors_short"})
"""Tensors of LongRoPE (Ding et al. 2024) in GGUF: divisors of the frequencies for contexts beyond, and up to, the
original one."""


def factors_name(config: ModelConfig, positions: int) -> str:
    """Return the name of the tensor with the frequency divisors for a context of `positions`."""
    if config.rope_scaling != "longrope":
        return "rope_freqs"
    return "rope_factors_long" if positions > config.rope_original_context else "rope_factors_short"


def rope_table(
    config: ModelConfig, positions: int, freq_factors: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Compute the table f32[positions, head_dim / 2, 2] of (cos, sin).

    freq_factors: the tensor `factors_name`, f32[config.rotary_pairs]; the frequencies are divided by it. Raises
    ModelError if the model's values yield frequencies that are not numbers.
    """
    with np.errstate(all="ignore"):
        inverse, magnitude = _inverse_frequencies(config)
        if freq_factors is not None:
            inverse /= freq_factors.astype(np.float32)
    if not np.isfinite(inverse).all():
        raise _no_numbers(config)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse.astype(np.float32)[None, :]
    turned = len(inverse)
    table = np.empty((positions, config.head_dim // 2, 2), np.float32)
    np.multiply(np.cos(angles), np.float32(magnitude), out=table[:, :turned, 0])
    np.multiply(np.sin(angles), np.float32(magnitude), out=table[:, :turned, 1])
    table[:, turned:] = magnitude, 0  # pairs without a frequency are not rotated
    return table


def frequency_factors(config: ModelConfig) -> npt.NDArray[np.float32]:
    """Return f32[config.rotary_pairs], the divisors of the frequencies in Llama 3's scaling, as GGUF stores them
    (rope_freqs)."""
    plain, _ = _inverse_frequencies(replace(config, rope_scaling="none"))
    scaled, _ = _inverse_frequencies(config)
    return (plain / scaled).astype(np.float32)


def _inverse_frequencies(config: ModelConfig) -> tuple[npt.NDArray[np.float32], float]:
    """Return (f32[config.rotary_pairs], factor on cos and sin)."""
    dim = 2 * config.rotary_pairs
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers = np.power(float(config.rope_theta), exponents.astype(np.float64)).astype(np.float32)
    inverse = np.float32(1.0) / powers
    factor = np.float32(config.rope_factor)
    if config.rope_scaling == "linear":
        return inverse / factor, 1.0
    if config.rope_scaling == "yarn":
        return _yarn(config, inverse, powers)
    if config.rope_scaling == "llama3":
        return _llama3(config, inverse), 1.0
    return inverse, 1.0


def _no_numbers(config: ModelConfig) -> ModelError:
    return ModelError(
        f"the RoPE values of the model (base {config.rope_theta:g}, scaling {config.rope_scaling} by "
        f"{config.rope_factor:g}) yield frequencies that are not numbers; get the file again"
    )


def _yarn(
    config: ModelConfig, inverse: npt.NDArray[np.float32], powers: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], float]:
    """Interpolate low frequencies and keep high ones, with a ramp between them. Returns the frequencies and the factor
    on cos and sin."""
    dim, base = 2 * config.rotary_pairs, config.rope_theta
    original = config.rope_original_context or config.context
    if base <= 1:
        raise _no_numbers(config)

    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(config.rope_beta_fast)), 0)
    high = min(math.ceil(correction(config.rope_beta_slow)), dim - 1)
    ramp = (np.arange(dim // 2, dtype=np.float32) - low) / np.float32(high - low or 0.001)
    keep = np.float32(1.0) - np.clip(ramp, 0, 1).astype(np.float32)
    interpolated = np.float32(1.0) / (np.float32(config.rope_factor) * powers)
    blended = interpolated * (np.float32(1.0) - keep) + inverse * keep
    return blended, 0.1 * math.log(config.rope_factor) + 1.0 if config.rope_factor > 1 else 1.0


def _llama3(config: ModelConfig, inverse: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Stretch wavelengths beyond the original context by the factor and keep short ones, with a blend between."""
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    original = config.rope_original_context or config.context
    wavelength = 2 * math.pi / inverse
    stretched = np.where(wavelength > original / low, inverse / np.float32(config.rope_factor), inverse)
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * stretched / np.float32(config.rope_factor) + smooth * stretched
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(between, blended, stretched).astype(np.float32)
