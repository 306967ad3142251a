"""The output of the vendors' tools, if they are installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess

from bitnet_core.model.source import Finding

_TOOLS = (
    (
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,memory.used,temperature.gpu,clocks.sm",
        "--format=csv,noheader",
    ),
    ("rocm-smi", "--showid", "--showtemp"),
    ("xpu-smi", "discovery"),
    ("intel_gpu_top", "-L"),
    ("vulkaninfo", "--summary"),
    ("clinfo", "--list"),
)
_SECONDS = 5.0
_TELLING = ("devicename", "driverinfo", "error", "failed")
"""Words that mark the lines of vulkaninfo worth quoting; the other tools print little."""
_LINES, _LENGTH = 12, 160


def tool_findings() -> list[Finding]:
    """Return one info for each installed tool: the command, and its relevant lines, or that it fails or hangs."""
    present = [command for command in _TOOLS if shutil.which(command[0])]
    return [Finding("info", command[0], f"{shlex.join(command)}\n{_said(command)}") for command in present]


def _said(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"does not answer within {_SECONDS:g} s: its driver hangs"
    except OSError as exc:
        return f"does not start: {exc.strerror or exc}"
    lines = [" ".join(line.split()) for line in (done.stdout or done.stderr).splitlines() if line.strip()]
    if command[0] == "vulkaninfo":
        lines = [line for line in lines if any(word in line.lower() for word in _TELLING)]
    quoted = "\n".join(line[:_LENGTH] for line in lines[:_LINES]) or "says nothing"
    return quoted if done.returncode == 0 else f"fails with code {done.returncode}: {quoted}"
