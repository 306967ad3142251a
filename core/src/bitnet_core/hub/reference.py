"""References to models of the hub: hf:OWNER/REPO, with :FILE and @REVISION if needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from bitnet_hal.errors import UsageError

from bitnet_core.hub.families import short_names

PREFIX: Final = "hf:"
_NAME: Final = r"[A-Za-z0-9][\w.-]*"
_PAGE: Final = re.compile(r"^hf:/*|^(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/+|/+$", re.IGNORECASE)
_AT: Final = re.compile(r"/(?:blob|resolve)/([^/]+)/([^:@]+)$")
_TREE: Final = re.compile(r"/tree/([^/:@]+)$")
_IN_FOLDER: Final = re.compile(r"^([^/:@]+/[^/:@]+)/([^:@]+\.gguf)(?=@|$)", re.IGNORECASE)
_FILES: Final = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".json")
_FORM: Final = re.compile(rf"hf:({_NAME}/{_NAME})(?::([^:@]+))?(?:@([^:@]+))?")


def is_reference(model: object) -> bool:
    """Return whether this is a reference to a model of the hub; a short name is one unless a file with it exists."""
    if not isinstance(model, str):
        return False
    return model.startswith(PREFIX) or (model in short_names() and not Path(model).exists())


def meant(path: str) -> Reference | None:
    """Return the reference for OWNER/REPO[:FILE][@REVISION] or the URL of a model's page; None for anything else, and
    for text that looks like a file."""
    prefixed = path.strip().lower().startswith(PREFIX)
    path = _PAGE.sub("", path.strip().partition("?")[0]).strip()
    path = _TREE.sub(r"@\1", _AT.sub(r":\2@\1", path)).removesuffix("@main")
    if prefixed:
        path = _IN_FOLDER.sub(r"\1:\2", path)
    match = _FORM.fullmatch(PREFIX + path)
    if match is None or match[1].lower().endswith(_FILES):
        return None
    return Reference(match[1], match[2], match[3])


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a model of the hub. file: None for the best form. revision: a branch, tag or commit; None for the
    main branch."""

    repo: str
    file: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a reference or a short name. Raises UsageError if the text is neither."""
        match = _FORM.fullmatch(short_names().get(text, text))
        if match is None:
            guess = meant(text)
            form = f"did you mean {guess}?" if guess else "write hf:OWNER/REPO[:FILE][@REVISION]"
            raise UsageError(f"{text[:200]!r} does not name a model of the hub: {form}")
        return cls(match[1], match[2], match[3])

    def __str__(self) -> str:
        file, revision = (f"{sign}{part}" if part else "" for sign, part in ((":", self.file), ("@", self.revision)))
        return f"{PREFIX}{self.repo}{file}{revision}"
