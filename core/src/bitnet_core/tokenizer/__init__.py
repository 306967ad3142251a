"""Text to token ids and back: byte-level BPE and SentencePiece BPE from GGUF keys, tokenizer.json, chat templates."""

from bitnet_core.tokenizer.load import load_tokenizer
from bitnet_core.tokenizer.stream import StreamDecoder
from bitnet_core.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]
