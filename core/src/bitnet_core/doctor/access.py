"""Permissions of this user on the GPUs' device files."""

from __future__ import annotations

import os
from pathlib import Path

from bitnet_core.model.source import Finding

_FILES = ("dri/renderD*", "kfd", "nvidia[0-9]*")


def access_findings(root: Path = Path("/dev")) -> list[Finding]:
    """Return a warning, with a remedy, for each GPU device file that this user may not read and write."""
    findings = []
    for pattern in _FILES:
        for path in sorted(root.glob(pattern)):
            if not os.access(path, os.R_OK | os.W_OK):
                fix = f"join the group that owns it: sudo usermod -aG {_group(path)} $USER, then log in again"
                findings.append(Finding("warning", "device-permission", f"{path} cannot be opened by this user: {fix}"))
    return findings


def _group(path: Path) -> str:
    """Return the name of the group that owns a file, its number if the group has no name."""
    try:
        return path.group()
    except (KeyError, OSError, NotImplementedError):  # Windows has no groups
        return "render"
