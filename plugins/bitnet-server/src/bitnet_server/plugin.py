"""The hook by which core finds `bitnet serve`; what serves is imported when the command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.hooks import RegisterCommand

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_commands(register: RegisterCommand) -> None:
    """`bitnet serve`."""
    from bitnet_server.command import serve

    register("serve", serve)
