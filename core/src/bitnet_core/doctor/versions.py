"""Check that the installed packages meet bitnet's requirements, which later runs of pip may have broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import eq, ge, gt, le, lt, ne

import importlib_metadata
from bitnet_hal.discovery.known import upgrade_hint

from bitnet_core.model.source import Finding

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*$")
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*([0-9][0-9.]*)$")
_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt,
}  # fmt: skip


def version_findings() -> list[Finding]:
    """Return a warning for each unmet requirement of an installed bitnet package."""
    findings = []
    for distribution in importlib_metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().replace("_", "-").startswith("bitnet-"):
            for problem in unmet(distribution.requires or ()):
                message = f"{name} {distribution.version} needs {problem}. {upgrade_hint(name)}"
                findings.append(Finding("warning", "version", message))
    return findings


def unmet(requirements: Iterable[str]) -> list[str]:
    """Return the unmet requirements, each with the installed version.

    Requirements of extras and of other systems are skipped, and so are bounds other than plain numbers.
    """
    problems = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement.strip())
        if match is None:
            continue
        try:
            there = importlib_metadata.version(match[1])
        except importlib_metadata.PackageNotFoundError:
            problems.append(f"{match[0].strip()}, which is not installed")
            continue
        bounds = [_BOUND.match(bound.strip()) for bound in match[2].split(",") if bound.strip()]
        if not all(_COMPARE[bound[1]](*_padded(there, bound[2])) for bound in bounds if bound):
            problems.append(f"{match[0].strip()}, and {there} is installed")
    return problems


def _padded(one: str, other: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return both versions as numbers of equal length; suffixes (rc1, .dev3) are ignored."""
    parts = [[int(part) for part in re.findall(r"\d+", re.split(r"[a-z+-]", text)[0])] for text in (one, other)]
    longest = max(map(len, parts))
    first, second = (tuple(part + [0] * (longest - len(part))) for part in parts)
    return first, second
