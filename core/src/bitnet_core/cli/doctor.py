"""`bitnet doctor`: check everything that is installed, and explain the faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli.blocks import print_block
from bitnet_core.cli.console import harmless, print_json, progress_bar
from bitnet_core.cli.devices import describe
from bitnet_core.cli.opening import source_of
from bitnet_core.cli.parameters import Field, expanded
from bitnet_core.options.engine import EngineOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet_hal.device import DeviceInfo
    from bitnet_hal.discovery.quarantine import Quarantine
    from rich.text import Text

    from bitnet_core.doctor.findings import DeviceCheck
    from bitnet_core.model.source import Finding


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


@expanded
def doctor(
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="FILE", help="Also check if this model fits the devices.")
    ] = None,
    device_memory: Annotated[int | None, Field(EngineOptions)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compile every kernel on every device, run one, and print faults and their remedies.

    It also checks the rights to device files and the versions of packages, and quotes nvidia-smi, rocm-smi, xpu-smi,
    intel_gpu_top, vulkaninfo and clinfo if they are installed.

    The exit code is 1 if a device fails or a plugin is broken; an absent driver is not a failure.
    """
    from bitnet_hal.discovery.quarantine import Stage
    from bitnet_hal.discovery.registry import registry
    from bitnet_hal.discovery.selection import devices

    from bitnet_core.doctor.access import access_findings
    from bitnet_core.doctor.findings import setting_findings
    from bitnet_core.doctor.fits import fit_findings
    from bitnet_core.doctor.vendor_tools import tool_findings
    from bitnet_core.doctor.versions import version_findings

    present = devices()
    checks = _checks(present)
    quarantined = registry().quarantined
    findings = setting_findings(present) + access_findings() + version_findings() + tool_findings()
    if model is not None:
        source, _ = source_of(model, None)
        try:
            findings += fit_findings(source, present, device_memory)
        finally:
            source.close()
    if as_json:
        print_json(
            {
                "devices": [_check_json(check) for check in checks],
                "plugins": [_quarantine_json(entry) for entry in quarantined],
                "findings": [{"severity": f.severity, "code": f.code, "message": f.message} for f in findings],
            }
        )
    else:
        _print(checks, quarantined, findings)
    if not all(check.passed for check in checks) or any(entry.stage is not Stage.DRIVER for entry in quarantined):
        raise typer.Exit(1)


def _checks(present: Sequence[DeviceInfo]) -> list[DeviceCheck]:
    """Check every device."""
    from bitnet_core.doctor.findings import check_device

    checks = []
    with progress_bar() as progress:
        for number, info in enumerate(present):
            if progress:
                progress("checking devices", number, len(present))
            checks.append(check_device(info))
    return checks


def _check_json(check: DeviceCheck) -> dict[str, Any]:
    return {
        **describe(check.info),
        "result": "PASS" if check.passed else "FAIL",
        "seconds": round(check.seconds, 4),
        "reason": check.reason,
        "fix": check.fix,
    }


def _quarantine_json(entry: Quarantine) -> dict[str, Any]:
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "stage": entry.stage.value,
        "reason": entry.reason,
        "fix": _idle(entry) or entry.fix,
    }


def _print(checks: list[DeviceCheck], quarantined: list[Quarantine], findings: list[Finding]) -> None:
    from rich.text import Text

    for check in checks:
        mark = Text("PASS  ", "green") if check.passed else Text("FAIL  ", "bold red")
        sound = f"all kernels compile, ternary matmul as numpy computes it, {check.seconds:.2f} s"
        active = check.info.extra.get("active_kernel", "")
        name = f"{check.info.name}, {active}" if active not in ("", check.info.backend) else check.info.name
        head = Text.assemble(mark, harmless(f"{check.info.request}  {name}"))
        print_block(head, sound if check.passed else check.reason, *_fix(check.fix))
    for entry in quarantined:
        mark, what = Text("OUT   ", "yellow"), harmless(f"{entry.name} ({entry.distribution} {entry.version})")
        if idle := _idle(entry):
            print_block(Text.assemble(("OUT   ", "dim"), harmless(f"{entry.name}: {idle}")))
        else:
            print_block(Text.assemble(mark, what), f"{entry.stage.value}: {entry.reason}", *_fix(entry.fix))
    for finding in findings:
        print_block(Text.assemble(("NOTE  ", "cyan"), finding.code), finding.message)


def _idle(entry: Quarantine) -> str:
    """Return why an ignored plugin needs no action, "" if it may need one."""
    from bitnet_hal.discovery.quarantine import Stage

    from bitnet_core.doctor.hardware import nothing_to_do

    return nothing_to_do(entry.name) if entry.stage is Stage.DRIVER else ""


def _fix(fix: str) -> tuple[Text, ...]:
    from rich.text import Text

    return (Text("Fix: " + harmless(fix), "dim"),) if fix else ()
