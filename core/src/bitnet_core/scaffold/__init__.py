"""The skeleton of a plugin. `write_backend` copies `template` under a new name and adds a file for each base kernel.

Each kernel is the reference implementation, so that all tests pass from the start; an author replaces one at a time.
"""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path

from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.output import new_folder

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_KERNEL = '''"""Reference implementation in numpy, to be replaced; `bitnet kernels {name}` describes the kernel."""

from bitnet_hal.reference.meanings import MEANINGS

{name} = MEANINGS["{name}"]
'''


def write_backend(name: str, folder: Path) -> list[Path]:
    """Write the skeleton of the plugin bitnet-<name> into `folder`, which must be new or empty, and return its files.

    Raises UsageError if the name cannot be an entry point or the folder is in use. A failure leaves nothing behind.
    """
    if not _NAME.fullmatch(name) or len(name) > 40:
        raise UsageError(f"'{name}' cannot be the name of a backend: use lower-case letters, digits and single dashes")
    if name in KNOWN:
        raise UsageError(f"'{name}' is a backend that bitnet knows; give yours another name")
    package = name.replace("-", "_")
    words = {
        "bitnet-newbackend": f"bitnet-{name}",
        "bitnet_newbackend": f"bitnet_{package}",
        '"newbackend': f'"{name}',
        "newbackend = ": f"{name} = ",
        "newbackend:": f"{name}:",
        "NewBackend": "".join(part.capitalize() for part in name.split("-")),
    }
    with new_folder(folder) as made, as_file(files("bitnet_core.scaffold") / "template") as template:
        for source in [path for path in template.rglob("*") if path.is_file() and path.suffix != ".pyc"]:
            text = source.read_text(encoding="utf-8")
            for word, new in words.items():
                text = text.replace(word, new)
            place = made / str(source.relative_to(template)).replace("bitnet_newbackend", f"bitnet_{package}")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        kernels = made / "src" / f"bitnet_{package}" / "kernels"
        for spec in CATALOGUE.values():
            if spec.base:
                (kernels / f"{spec.name}.py").write_text(_KERNEL.format(name=spec.name), encoding="utf-8")
    return sorted(path for path in folder.rglob("*") if path.is_file())
