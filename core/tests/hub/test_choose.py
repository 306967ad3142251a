"""What of a repository is taken, and how a reference is read."""

from __future__ import annotations

import pytest
from bitnet_core.errors import ModelError, UsageError
from bitnet_core.hub import Reference, is_reference
from bitnet_core.hub.choose import choose

FOLDER = {"config.json": 1, "tokenizer.json": 2, "model.safetensors": 9, "README.md": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:a/b", Reference("a/b")),
        ("hf:a/b-c.d:x/y-Q2_0.gguf", Reference("a/b-c.d", "x/y-Q2_0.gguf")),
        ("hf:a/b@refs/pr/1", Reference("a/b", None, "refs/pr/1")),
        ("hf:a/b:f.gguf@v1", Reference("a/b", "f.gguf", "v1")),
    ],
)
def test_references(text: str, expected: Reference) -> None:
    assert is_reference(text)
    assert Reference.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/b:", "hf:a/b@", "hf:a/b:c:d", "a/b"])
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="hf:OWNER/REPO"):
        Reference.parse(text)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["m-F16.gguf", "m-Q2_0.gguf", "m-PQ2_0.gguf", "m-TQ2_0.gguf"], "m-PQ2_0.gguf"),
        (["m-TQ2_0.gguf", "m-TQ1_0.gguf", "m-Q2_0-g64.gguf", "m-Q2_0-g128.gguf"], "m-Q2_0-g128.gguf"),
        (["ggml-model-i2_s.gguf", "ggml-model-f16.gguf"], "ggml-model-i2_s.gguf"),
        (["m.gguf", "mmproj-m-f16.gguf", "m-Q4_K_M.gguf"], "m.gguf"),
        (["m-Q2_0-00001-of-00002.gguf", "m-Q2_0-00002-of-00002.gguf", "m-Q1_0.gguf"], "m-Q1_0.gguf"),
    ],
)
def test_the_form_that_fits_best(names: list[str], taken: str) -> None:
    sizes = {name: 1000 - 10 * ("g128" in name) for name in names}
    assert choose("a/b", sizes).files == (taken,)
    assert choose("a/b", sizes | FOLDER).files == (taken,)


def test_a_folder_where_there_is_no_gguf_file_to_take() -> None:
    choice = choose("a/b", FOLDER | {"m-Q4_K_M.gguf": 5, "nested/x.safetensors": 1})
    assert choice.is_folder
    assert set(choice.files) == {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (["a.gguf", "b.gguf"], None, "2 GGUF files: name one"),
        (["m-Q4_K_M.gguf", "m-BF16.gguf"], None, "no form of a 1.58-bit model .* it has m-BF16.gguf, m-Q4_K_M.gguf"),
        (["README.md"], None, "no GGUF and no safetensors"),
        (["a.gguf"], "b.gguf", "has no file 'b.gguf'; it has a.gguf"),
        (["a.gguf", "model.safetensors"], "model.safetensors", "no GGUF file; leave the file out"),
    ],
)
def test_what_cannot_be_chosen(names: list[str], wanted: str | None, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        choose("a/b", dict.fromkeys(names, 1), wanted)
