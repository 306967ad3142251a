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
    """Return the plugin's backend; constructing it loads no driver."""


@hookspec(firstresult=True)
def bitnet_select_device(devices: Sequence[DeviceInfo], request: DeviceRequest) -> DeviceInfo | None:
    """Return one of `devices`, or None to leave the choice to other plugins.

    devices: those that fit the request, in core's order of preference. If no plugin chooses, core takes the first.
    Not called if a single device fits the request.
    """


@hookspec
def bitnet_commands(register: RegisterCommand) -> None:
    """Add commands to the `bitnet` command line.

    A command's result is its output to `sys.stdout`. File descriptor 1, to which drivers print, is redirected to stderr
    in this program, so a child process needs `stdout=sys.stdout`.
    """
