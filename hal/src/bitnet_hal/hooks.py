"""The hooks that a plugin may implement (pluggy, project name "bitnet").

A plugin is a light module, named by an entry point of the group `bitnet.backends`:

    import pluggy

    hookimpl = pluggy.HookimplMarker("bitnet")

    @hookimpl
    def bitnet_backend():
        from bitnet_example.backend import ExampleBackend

        return ExampleBackend()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.device import Backend, DeviceInfo
    from bitnet_hal.discovery.request import DeviceRequest

PROJECT = "bitnet"
ENTRY_POINT_GROUP = "bitnet.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

RegisterCommand = Callable[[str, Callable[..., None]], None]
"""register(name, function): `function` becomes `bitnet <name>`; typer reads its annotations."""


@hookspec
def bitnet_backend() -> Backend:  # type: ignore[empty-body]  # a specification has no body
    """The plugin's backend; constructing it loads no driver."""


@hookspec(firstresult=True)
def bitnet_select_device(devices: Sequence[DeviceInfo], request: DeviceRequest) -> DeviceInfo | None:
    """One of `devices`, or None to leave the choice to others.

    `devices` are those that fit the request, in core's order of preference; core's own choice, the first of them, is
    asked last. Not called for a request that fits a single device.
    """


@hookspec
def bitnet_commands(register: RegisterCommand) -> None:
    """Add commands to the `bitnet` command line.

    What a command prints to `sys.stdout` is its result. Descriptor 1, where drivers print, leads to stderr in this
    program, so a program that the command starts must be given `stdout=sys.stdout`.
    """
