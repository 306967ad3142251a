"""The exceptions that core adds to those of `bitnet_hal.errors`, and the exit code of each.

BitnetError                       1
├── ModelError                    3   a model file cannot be used
│   └── TokenizerError            4
└── ReceiptError                  14
"""

from __future__ import annotations

from bitnet_hal.errors import BitnetError


class ModelError(BitnetError):
    """An unusable model file. The message states the fault, its place and cause, and the remedy."""

    exit_code = 3


class TokenizerError(ModelError):
    """A model's tokenizer that is missing, malformed or of an unknown kind."""

    exit_code = 4


class ReceiptError(BitnetError):
    """A receipt that cannot be written, read or verified."""

    exit_code = 14
