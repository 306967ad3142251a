"""Choose the model files of a repository by their names: the best supported form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bitnet_core.errors import ModelError

FORMS: Final = ("i2_s", "pq2_0", "q2_0", "iq2_bn", "tq2_0", "tq1_0", "iq1_bn", "q1_0", "ptq1_0", "stq1_0")
"""Encodings in the names of GGUF files, the best first: those that hold a model's scales exactly at 2 bits, then those
that may have rounded them (blocks of 256), then smaller and rarer ones."""

_KNOWN: Final = re.compile(rf"(?<![a-z0-9])({'|'.join(FORMS)})(?![a-z0-9])")
_OTHER: Final = re.compile(r"(?<![a-z0-9])(b?f16|f32|i?q[2-8]_([0-9k]|xxs|xs|s|m|nl)\w*|mxfp4|nvfp4)(?![a-z0-9])")
_HELPER: Final = re.compile(
    r"(?<![a-z0-9])(draft|dspark|dflash|eagle|medusa|nextn|specul|q?lora|adapter|imatrix|mmproj|projector|vocab|tokenizer"
    r"|cvector|control[-_. ]?vector)"
)
"""Prefixes of words in the names of files that accompany a model: drafts, adapters, statistics, projectors."""
_MTP: Final = re.compile(r"(?<![a-z0-9])mtp(?![a-z0-9])")
_GROUP: Final = re.compile(r"(?<![a-z0-9])g(32|64|128)(?![a-z0-9])")
_PART: Final = re.compile(r"-(\d+)-of-(\d+)\.(gguf|safetensors)$")
_FOLDER: Final = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_OPTIONAL: Final = (
    *("chat_template.jinja", "additional_chat_templates/default.jinja", "additional_chat_templates/tool_use.jinja"),
    *("model.safetensors.index.json", "modules.json", "1_Pooling/config.json"),
)
_MOST_PARTS: Final = 1 << 10
_LISTED: Final = 8  # files listed in a message


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model. files: names of those to fetch. form: type of the weights, such as Q2_0, or "folder".
    is_folder: the model is the folder that holds them."""

    files: tuple[str, ...]
    form: str
    is_folder: bool = False


def choose(repo: str, sizes: Mapping[str, int], wanted: str | None = None) -> ModelFiles:
    """Choose the model among the files of a repository (bytes by name). wanted: the requested file, or a word of its
    name such as the form.

    Raises ModelError, listing the files, if none or several match.
    """
    if wanted is not None and (name := _file(sizes, wanted)):
        return _named(repo, sizes, name)
    found = choices(sizes) if wanted is None else _with_word(sizes, wanted)
    if len(found) > 1:
        names = [name for choice in found for name in choice.files]
        raise ModelError(f"hf:{repo} has {len(found)} models: choose one, as hf:{repo}:FILE; it has {_some(names)}")
    if found:
        return found[0]
    if wanted is not None:
        raise ModelError(f"hf:{repo} has no file {wanted!r}; {_listed(sizes)}")
    raise ModelError(f"hf:{repo} has no supported form of a 1.58-bit model; {_listed(sizes)}{_incomplete(sizes)}")


def choices(sizes: Mapping[str, int]) -> list[ModelFiles]:
    """Return each model of a repository in its best form; the folder if no GGUF file is a model.

    Files belong to one model if their names differ only in the form; another size or version is another model.
    """
    models: dict[str, list[str]] = {}
    for name in sizes:
        if _may_be_model(name) and _all_parts(sizes, name)[:1] == (name,):
            models.setdefault(_stem(name), []).append(name)
    best = [min(names, key=lambda name: (_place(name), sizes[name], name)) for names in models.values()]
    if best:
        return [ModelFiles(_all_parts(sizes, name), (_form(name) or "GGUF").upper()) for name in sorted(best)]
    weights = _weights(sizes)
    if weights and "config.json" in sizes:
        beside = (name for name in (*_FOLDER, *_OPTIONAL) if name in sizes)
        return [ModelFiles((*beside, *weights), "folder", is_folder=True)]
    return []


def _file(sizes: Mapping[str, int], wanted: str) -> str:
    """Return the file with this name, else the only one that matches it ignoring case, folder and ".gguf"; "" if there
    is none."""
    if wanted in sizes:
        return wanted
    lower = wanted.lower()
    alike = [name for name in sizes if lower in _spellings(name.lower())]
    return alike[0] if len(alike) == 1 else ""


def _spellings(name: str) -> tuple[str, ...]:
    base = _base(name)
    return (name, base, name.removesuffix(".gguf"), base.removesuffix(".gguf"))


def _with_word(sizes: Mapping[str, int], word: str) -> list[ModelFiles]:
    """Return the models whose file names contain a word, ignoring case."""
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])")
    chosen = {name: sizes[name] for name in sizes if name.lower().endswith(".gguf") and pattern.search(name.lower())}
    return choices(chosen)


def _named(repo: str, sizes: Mapping[str, int], wanted: str) -> ModelFiles:
    """Return the requested file."""
    if not wanted.lower().endswith(".gguf"):
        raise ModelError(f"{wanted!r} of hf:{repo} is not a GGUF file; leave the file out to take the whole folder")
    files = _all_parts(sizes, wanted)
    if not files:
        raise ModelError(f"{wanted!r} of hf:{repo} is a part of a file, and the repository lacks other parts of it")
    return ModelFiles(files, (_form(wanted) or "GGUF").upper())


def _may_be_model(name: str) -> bool:
    """Return whether a file, or part of one, has a supported form by its name, or a name that states no form."""
    lower = name.lower()
    if not lower.endswith(".gguf") or _HELPER.search(lower):
        return False
    form = _KNOWN.search(_base(lower))
    if _MTP.search(lower) and (form is None or _MTP.search(_base(lower), 0, form.start())):
        return False  # only a multi-token prediction head; after the form, the word means a model that includes one
    return bool(_forms(lower)) or not _OTHER.search(lower)


def _stem(name: str) -> str:
    """Return the name without the words that distinguish forms."""
    text = _PART.sub(r".\3", name.lower()).removesuffix(".gguf")
    for pattern in (_KNOWN, _OTHER, _MTP, _GROUP):
        text = pattern.sub("", text)
    return re.sub(r"[-_. ]+", "-", text).strip("-").replace("-/", "/").replace("/-", "/").lstrip("/")


def _place(name: str) -> tuple[int, bool]:
    """Return the sort key of a file's form among those of one model."""
    form = _form(name)
    return (FORMS.index(form) if form else len(FORMS), bool(_MTP.search(name.lower())))


def _form(name: str) -> str | None:
    """Return the best encoding that a file's name states."""
    return min(_forms(name.lower()), key=FORMS.index, default=None)


def _forms(name: str) -> list[str]:
    """Return the supported encodings that a file's name states, else those that its folders' names state."""
    base = _base(name)
    return _KNOWN.findall(base) or ([] if _OTHER.search(base) else _KNOWN.findall(name))


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _all_parts(sizes: Mapping[str, int], name: str) -> tuple[str, ...]:
    """Return all parts, in order, of the split file that `name` belongs to; () if one is missing, and only `name` if it
    is not split."""
    match = _PART.search(name)
    if match is None or int(match[2]) == 1:
        return (name,)
    width, count = len(match[1]), int(match[2])
    if count > _MOST_PARTS:
        return ()
    start, end = name[: match.start()], f"-of-{match[2]}.{match[3]}"
    parts = tuple(f"{start}-{number:0{width}}{end}" for number in range(1, count + 1))
    return parts if all(part in sizes for part in parts) else ()


def _weights(sizes: Iterable[str]) -> list[str]:
    """Return a folder's weight files: those that transformers reads, else those that may be weights; [] if a part is
    missing."""
    files = sorted(name for name in sizes if name.endswith(".safetensors") and "/" not in name)
    if "model.safetensors" in files:
        return ["model.safetensors"]
    parts = [match for name in files if name.startswith("model-") and (match := _PART.search(name))]
    if parts:
        whole = {int(match[1]) for match in parts} == set(range(1, len(parts) + 1))
        return [match.string for match in parts] if whole and int(parts[0][2]) == len(parts) else []
    return [name for name in files if not name.startswith("consolidated") and not _HELPER.search(name.lower())]


def _listed(sizes: Iterable[str]) -> str:
    names = sorted(name for name in sizes if name.lower().endswith((".gguf", ".safetensors")))
    return f"it has {_some(names)}" if names else "it has no GGUF and no safetensors files"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _incomplete(sizes: Mapping[str, int]) -> str:
    """Return a hint about split files that lack parts, if there are any."""
    if any(name.lower().endswith(".gguf") and not _all_parts(sizes, name) for name in sizes):
        return "; parts of its split files are missing"
    return ""
