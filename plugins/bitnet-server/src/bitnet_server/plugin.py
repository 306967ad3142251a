"""The hook that adds `bitnet serve`; the server itself is imported when the command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.hooks import RegisterCommand

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_commands(register: RegisterCommand) -> None:
    """Register `bitnet serve`."""
    from bitnet_server.command import serve

    register("serve", serve)
