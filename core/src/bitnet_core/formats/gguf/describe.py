"""Descriptions of a GGUF file: a summary of its metadata, and a finding about a vision tower in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bitnet_core.formats.keys import short
from bitnet_core.model.source import Finding
from bitnet_core.string_table import StringTable

_LONG = 16
"""Longer arrays are summarized."""


def summary(value: Any) -> Any:
    """Return short arrays as lists, and a description of long ones."""
    if isinstance(value, StringTable | np.ndarray):
        if len(value) > _LONG:
            kind = "strings" if isinstance(value, StringTable) else str(value.dtype)
            return f"[{len(value)} {kind}]"
        return list(value) if isinstance(value, StringTable) else value.tolist()
    return value


def vision_findings(path: Path) -> list[Finding]:
    """Return a finding if the folder of the model's file has a vision tower."""
    towers = sorted(file.name for file in path.parent.glob("*mmproj*.gguf"))
    if not towers:
        return []
    text = f"{short(towers[0])} beside the model is a vision tower (mmproj); images are not supported, text is"
    return [Finding("info", "vision-not-supported", text)]
