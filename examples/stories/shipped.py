"""Open the exported Hugging Face folder with transformers, in float32 on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(folder: Path) -> tuple[Any, Any]:
    """Return model and tokenizer. Compilation is off: it would only reorder the sums of so small a model."""
    torch._dynamo.config.disable = True
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)
