"""Which files of a repository are the model: the form that fits best, by the names of the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bitnet_core.errors import ModelError

FORMS: Final = ("i2_s", "pq2_0", "q2_0", "iq2_bn", "tq2_0", "tq1_0", "iq1_bn", "q1_0", "ptq1_0")
"""Encodings as GGUF files are named after them, the best first: those that hold a model's scales exactly at 2 bits,
then those that may have rounded them (blocks of 256), then smaller and rarer ones."""

_OTHER: Final = re.compile(r"(?<![a-z0-9])(b?f16|f32|i?q[2-8]_([0-9k]|xxs|xs|s|m|nl)\w*|mxfp4|nvfp4)(?![a-z0-9])")
_PART: Final = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$")
_FOLDER: Final = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_OPTIONAL: Final = ("chat_template.jinja", "model.safetensors.index.json")
_LISTED: Final = 8  # files that a message names


@dataclass(frozen=True, slots=True)
class Choice:
    """files: what to fetch. what: the form, for people. is_folder: the model is the folder that holds them."""

    files: tuple[str, ...]
    what: str
    is_folder: bool = False


def choose(repo: str, sizes: Mapping[str, int], wanted: str | None = None) -> Choice:
    """The model among the files of a repository (bytes by name). wanted: the file that was asked for.

    Raises ModelError, saying what there is, where none or several could be meant.
    """
    if wanted is not None:
        if wanted not in sizes:
            raise ModelError(f"hf:{repo} has no file {wanted!r}; {_listed(sizes)}")
        if not wanted.endswith(".gguf"):
            raise ModelError(f"{wanted!r} of hf:{repo} is no GGUF file; leave the file out to take the whole folder")
        return Choice((wanted,), _form(wanted) or "GGUF")
    files = [name for name in sizes if name.endswith(".gguf") and not _PART.search(name) and "mmproj" not in name]
    known = [name for name in files if _form(name)]
    if known:
        best = min(known, key=lambda name: (FORMS.index(_form(name) or ""), sizes[name], name))
        return Choice((best,), (_form(best) or "").upper())
    unknown = [name for name in files if not _OTHER.search(name.lower())]
    if len(unknown) == 1:
        return Choice((unknown[0],), "GGUF")
    if len(unknown) > 1:
        raise ModelError(f"hf:{repo} has {len(unknown)} GGUF files: name one, as hf:{repo}:FILE; {_listed(sizes)}")
    weights = [name for name in sizes if name.endswith(".safetensors") and "/" not in name]
    if weights and "config.json" in sizes:
        parts = (name for name in (*_FOLDER, *_OPTIONAL) if name in sizes)
        return Choice((*parts, *sorted(weights)), "folder", is_folder=True)
    raise ModelError(f"hf:{repo} has no form of a 1.58-bit model that bitnet reads; {_listed(sizes)}")


def _form(name: str) -> str | None:
    """The encoding that a file's name tells."""
    base = name.rpartition("/")[2].lower()
    return next((form for form in FORMS if re.search(rf"(?<![a-z0-9]){form}(?![a-z0-9])", base)), None)


def _listed(sizes: Mapping[str, int]) -> str:
    names = sorted(name for name in sizes if name.endswith((".gguf", ".safetensors")))
    if not names:
        return "it has no GGUF and no safetensors files"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"it has {', '.join(names[:_LISTED])}{more}"
