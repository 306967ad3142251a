"""Makes reference_rope.npz with torch and transformers: python make_reference_rope.py

(cos, sin) f32[len(POSITIONS), 32, 2] of every kind of scaling for heads of 64, as the rotary embedding of Llama has
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

POSITIONS = [0, 1, 2, 63, 64, 500, 2047, 8191]
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
}


def main() -> None:
    out = {"positions": np.array(POSITIONS)}
    for name, scaling in SCALINGS.items():
        config = LlamaConfig(
            hidden_size=128,
            num_attention_heads=2,
            max_position_embeddings=8192,
            rope_parameters={"rope_theta": 10000.0, **scaling},
        )
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([POSITIONS]))
        out[name] = torch.stack([cos[0, :, :32], sin[0, :, :32]], dim=-1).numpy()
    np.savez(Path(__file__).with_name("reference_rope.npz"), **out)


if __name__ == "__main__":
    main()
