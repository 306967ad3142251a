"""The options of `bitnet serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KEY_VARIABLE = "BITNET_API_KEY"

HostOption = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
AliasOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Names of the model for clients. Default: its own name.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", "-n", min=1, help="Of a chat answer whose request names no limit.")
]
MaxSequencesOption = Annotated[int, typer.Option(min=1, help="Maximum concurrent requests.")]
MaxQueueOption = Annotated[int, typer.Option(min=0, help="Requests that may wait; more are answered 429.")]
QueueTimeoutOption = Annotated[float, typer.Option(min=0, help="Seconds a request may wait for admission.")]
RequestTimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds an answer may take.")]
DrainDelayOption = Annotated[float, typer.Option(min=0, help="Seconds between a signal and the refusal of new work.")]
DrainTimeoutOption = Annotated[float, typer.Option(min=0, help="Seconds that running requests get to finish.")]
ApiKeyFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"API keys, one a line. {KEY_VARIABLE} may hold one as well.")
]
AllowedHostsOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Names that clients call this server by; * for any.")
]
CorsOriginsOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Web origins that may ask, beyond this machine's; * for any.")
]
SlotsOption = Annotated[bool, typer.Option("--slots", help="Offer /slots, which shows the running requests.")]
LogRequestsOption = Annotated[bool, typer.Option("--log-requests", help="Log every request, without its text.")]
SslCertfileOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, for https.")]
SslKeyfileOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")]
