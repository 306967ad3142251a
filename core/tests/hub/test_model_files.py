"""The choice of a repository's files, and the syntax of references."""

from __future__ import annotations

import pytest
from bitnet_core.errors import ModelError
from bitnet_core.hub import Reference, is_reference
from bitnet_core.hub.model_files import choose
from bitnet_hal.errors import UsageError

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


@pytest.mark.parametrize("text", ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/b:", "hf:a/b@", "hf:a/b:c:d", "nope"])
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
        (["m-Q2_0-00001-of-00002.gguf", "m-Q2_0-00003-of-00002.gguf", "m-Q1_0.gguf"], "m-Q1_0.gguf"),
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
        (["a.gguf", "b.gguf"], None, "2 models: choose one"),
        (
            ["m-Q4_K_M.gguf", "m-BF16.gguf"],
            None,
            "no supported form of a 1.58-bit model; it has m-BF16.gguf, m-Q4_K_M.gguf",
        ),
        (["README.md"], None, "no GGUF and no safetensors"),
        (["a.gguf"], "b.gguf", "has no file 'b.gguf'; it has a.gguf"),
        (["a.gguf", "model.safetensors"], "model.safetensors", "not a GGUF file; leave the file out"),
    ],
)
def test_what_cannot_be_chosen(names: list[str], wanted: str | None, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        choose("a/b", dict.fromkeys(names, 1), wanted)


Q2_AND_TQ2 = ("m-Q2_0.gguf", "m-Q2_0-g64.gguf", "m-PQ2_0.gguf", "m-TQ2_0.gguf", "mmproj-m-Q2_0.gguf", "m-Q8_0.gguf")
PARTS = ("m-TQ1_0-00001-of-00002.gguf", "m-TQ1_0-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("names", "wanted", "taken"),
    [
        (Q2_AND_TQ2, "Q2_0", ("m-Q2_0.gguf",)),
        (Q2_AND_TQ2, "tq2_0", ("m-TQ2_0.gguf",)),
        (Q2_AND_TQ2, "M-TQ2_0.GGUF", ("m-TQ2_0.gguf",)),
        (Q2_AND_TQ2, "m-Q8_0", ("m-Q8_0.gguf",)),
        ((*Q2_AND_TQ2, *PARTS), "TQ1_0", PARTS),
        (("My Model Q2_0.gguf", "My Model I2_S.gguf"), "my model q2_0", ("My Model Q2_0.gguf",)),
        (("x/m-I2_S.gguf", "y/n-I2_S.gguf"), "m-I2_S.gguf", ("x/m-I2_S.gguf",)),
        (("Bonsai-1.7B-Q2_0.gguf", "Bonsai-8B-Q2_0.gguf"), "8B", ("Bonsai-8B-Q2_0.gguf",)),
        (("BF16/m.gguf", "Q2_0/m.gguf", "TQ1_0/m.gguf"), None, ("Q2_0/m.gguf",)),
        (("BF16/m.gguf", "Q2_0/m.gguf", "TQ1_0/m.gguf"), "TQ1_0", ("TQ1_0/m.gguf",)),
        (("Q2_0/m.gguf",), None, ("Q2_0/m.gguf",)),
    ],
)
def test_a_file_may_be_named_by_a_word(names: tuple[str, ...], wanted: str | None, taken: tuple[str, ...]) -> None:
    assert choose("a/b", {name: 1000 + 10 * ("g64" in name) for name in names}, wanted).files == taken


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (Q2_AND_TQ2, "Q8_0", "has no file 'Q8_0'; it has "),
        (("Bonsai-1.7B-Q2_0.gguf", "Bonsai-8B-Q2_0.gguf"), "Q2_0", "2 models: choose one"),
        (("x/m-I2_S.gguf", "y/m-I2_S.gguf"), "m-I2_S.gguf", "2 models: choose one"),
        (("mmproj-m-Q2_0.gguf", "m-TQ2_0.gguf"), "Q2_0", "has no file 'Q2_0'"),
        (tuple(FOLDER), "safetensors", "has no file 'safetensors'"),
    ],
)
def test_a_word_of_several_files_or_none(names: tuple[str, ...], wanted: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        choose("a/b", dict.fromkeys(names, 1), wanted)


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("HF:a/b", "hf:a/b"),
        ("hf://a/b", "hf:a/b"),
        ("hf:a/b/", "hf:a/b"),
        (" hf:a/b", "hf:a/b"),
        ("hf: a/b", "hf:a/b"),
        ("hf:a/b/c-Q2_0.gguf", "hf:a/b:c-Q2_0.gguf"),
        ("https://huggingface.co/a/b/tree/main", "hf:a/b"),
        ("https://huggingface.co/a/b/tree/v1", "hf:a/b@v1"),
    ],
)
def test_a_reference_that_is_meant(text: str, guess: str) -> None:
    with pytest.raises(UsageError) as failure:
        Reference.parse(text)
    assert str(failure.value).endswith(f"did you mean {guess}?")


HELPERS = (
    "m-dspark-Q2_0.gguf", "m-draft-Q2_0.gguf", "M-Draft-Q2_0.gguf", "m-Q2_0-drafter.gguf", "draft0.5b-Q2_0.gguf",
    "draft/m-Q2_0.gguf", "m-eagle3-Q2_0.gguf", "medusa_Q2_0.gguf", "mtp-m-Q2_0.gguf", "m-mtp-head.gguf",
    "m-nextn-Q2_0.gguf", "imatrix-Q2_0.gguf", "m.imatrix.gguf", "adapter-lora-Q2_0.gguf", "m-LoRA-Q2_0.gguf",
    "lora_adapter.gguf",
    "ggml-vocab-Q2_0.gguf", "m-vocab-only.gguf", "MMPROJ-m-Q2_0.gguf", "mmproj/m-Q2_0.gguf", "m-projector-Q2_0.gguf",
    "m-control-vector-Q2_0.gguf", "ControlVector.gguf", "cvector-Q2_0.gguf", "m-speculator-Q2_0.gguf",
)  # fmt: skip


@pytest.mark.parametrize("helper", HELPERS)
def test_what_goes_with_a_model_is_never_the_model(helper: str) -> None:
    assert choose("a/b", {helper: 1, "m-Q2_0.gguf": 1000}).files == ("m-Q2_0.gguf",)
    assert choose("a/b", {helper: 1} | FOLDER).is_folder
    with pytest.raises(ModelError, match="no supported form"):
        choose("a/b", {helper: 1})
    assert choose("a/b", {helper: 1}, helper).files == (helper,)


@pytest.mark.parametrize(
    "names",
    [
        ("Bonsai-1.7B-Q2_0.gguf", "Bonsai-8B-Q2_0.gguf"),
        ("Bonsai-1.7B-PQ2_0.gguf", "Bonsai-8B-Q2_0.gguf"),
        ("1.7B/model-Q2_0.gguf", "8B/model-Q2_0.gguf"),
        ("m-v1-i2_s.gguf", "m-v2-i2_s.gguf"),
        ("m-base-TQ1_0.gguf", "m-instruct-TQ1_0.gguf"),
        ("m-1.7B-Q2_0.gguf", "m-8B.gguf"),
    ],
)
def test_of_several_models_one_must_be_named(names: tuple[str, ...]) -> None:
    sizes = {name: 10 + number for number, name in enumerate(names)}
    with pytest.raises(ModelError, match="2 models: choose one, as hf:a/b:FILE; it has ") as failure:
        choose("a/b", sizes)
    assert all(name in str(failure.value) for name in names)
    for name in names:
        assert choose("a/b", sizes, name).files == (name,)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("Bonsai-8B-Q2_0.gguf", "Bonsai-8B-Q2_0_g64.gguf", "Bonsai-8B-PQ2_0.gguf"), "Bonsai-8B-PQ2_0.gguf"),
        (("Q2_0/m-Q2_0.gguf", "TQ1_0/m-TQ1_0.gguf"), "Q2_0/m-Q2_0.gguf"),
        (("M_8B.Q2_0.gguf", "m-8b-tq2_0.gguf"), "M_8B.Q2_0.gguf"),
        (("m-PQ2_0-MTP-Q8_0.gguf", "m-PQ2_0.gguf", "m-PTQ1_0.gguf"), "m-PQ2_0.gguf"),
        (("m-PQ2_0-MTP-Q8_0.gguf",), "m-PQ2_0-MTP-Q8_0.gguf"),
        (("m-Q2_0-00001-of-00001.gguf", "m-Q1_0.gguf"), "m-Q2_0-00001-of-00001.gguf"),
    ],
)
def test_forms_of_one_model_are_no_several_models(names: tuple[str, ...], taken: str) -> None:
    assert choose("a/b", {name: 10 + len(name) for name in names}).files == (taken,)


def test_all_parts_of_a_file_are_taken() -> None:
    parts = {f"m-Q2_0-{number:05}-of-00010.gguf": 1 for number in range(1, 11)}
    for wanted in (None, "m-Q2_0-00001-of-00010.gguf", "m-Q2_0-00004-of-00010.gguf"):
        choice = choose("a/b", parts | {"m-Q1_0.gguf": 1}, wanted)
        assert (choice.files, choice.is_folder) == (tuple(parts), False)


@pytest.mark.parametrize("count", ["00010", "99999"])
def test_files_that_lack_a_part_are_not_taken(count: str) -> None:
    parts = {f"m-Q2_0-{number:05}-of-{count}.gguf": 1 for number in range(1, 10)}
    with pytest.raises(ModelError, match="parts of its split files are missing"):
        choose("a/b", parts)
    with pytest.raises(ModelError, match="lacks other parts"):
        choose("a/b", parts, f"m-Q2_0-00001-of-{count}.gguf")


def test_weights_of_a_folder_are_those_that_transformers_reads() -> None:
    beside = {"consolidated.safetensors": 9, "adapter_model.safetensors": 1, "draft-model.safetensors": 1}
    assert set(choose("a/b", FOLDER | beside).files) == {"config.json", "tokenizer.json", "model.safetensors"}
    parts = {f"model-{number:05}-of-00003.safetensors": 5 for number in (1, 2, 3)}
    split = {"config.json": 1, "model.safetensors.index.json": 1} | parts
    assert set(choose("a/b", split | beside).files) == set(split)
    split.pop("model-00002-of-00003.safetensors")
    with pytest.raises(ModelError, match="no supported form"):
        choose("a/b", split | beside)


def test_a_folder_brings_its_pooling_and_its_templates() -> None:
    beside = {
        "modules.json",
        "1_Pooling/config.json",
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
    }
    names = {"config.json", "tokenizer.json", "model.safetensors", *beside}
    assert set(choose("a/b", dict.fromkeys((*names, "2_Normalize/config.json", "README.md"), 1)).files) == names
