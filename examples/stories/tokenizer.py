"""Train the tokenizer: byte-level BPE on the stories, with the pre-tokenizer and special tokens of Llama 3.

python tokenizer.py --out build/tokenizer.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from chat import conversation, render
from generate import story
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPLIT = (  # of Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BOS, EOS, HEADER_START, HEADER_END, EOT = SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


def train(vocabulary: int, stories: int) -> Tokenizer:
    """Return a tokenizer of `vocabulary` tokens; the special ones come last, as in Llama 3. Encoding prepends BOS."""

    def texts() -> Iterator[str]:
        for seed in range(stories):
            yield story(seed).text
            if seed % 10 == 0:
                yield render(conversation(seed)).replace(EOT, "\n")

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - len(SPECIALS), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    if tokenizer.get_vocab_size() != vocabulary - len(SPECIALS):
        raise ValueError(f"the stories yield only {tokenizer.get_vocab_size()} tokens")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS}:0 $A:0", pair=f"{BOS}:0 $A:0 {BOS}:1 $B:1", special_tokens=[(BOS, bos)]
            ),
        ]
    )
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the tokenizer.json to write")
    parser.add_argument("--vocabulary", type=int, default=2048, help="number of tokens")
    parser.add_argument("--stories", type=int, default=30000, help="stories to train on")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    train(arguments.vocabulary, arguments.stories).save(str(arguments.out))


if __name__ == "__main__":
    main()
