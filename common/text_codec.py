"""A model's text side, whether or not its folder has one: without a tokenizer a model speaks token ids only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from common.committed import TextSink
from common.errors import InvalidPrompt
from common.tokenizer import MERGES_FILE, TOKENIZER_FILE, VOCAB_FILE, load_tokenizer


class TextCodec(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special-token strings in it stay text. Raises `InvalidPrompt`."""
        ...

    def fewest_tokens(self, text: str) -> int:
        """A lower bound on `len(encode(text))` that takes no encoding; 0 where none is known."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        ...

    def stream(self) -> TextSink:
        """A fresh incremental decoder."""
        ...


class IdsOnly:
    """The codec of a folder without a tokenizer: text is refused by name, ids have no text."""

    def encode(self, text: str) -> list[int]:
        """Always raises `InvalidPrompt`."""
        raise InvalidPrompt("prompt", "the model's folder has no tokenizer: give token ids")

    def fewest_tokens(self, text: str) -> int:
        """Nothing is known of it."""
        return 0

    def decode(self, token_ids: Sequence[int]) -> str:
        """Nothing."""
        return ""

    def stream(self) -> TextSink:
        """A decoder that yields nothing."""
        return _NoText()


class _NoText:
    def feed(self, token_ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


def load_text_codec(model_dir: Path) -> TextCodec:
    """The folder's tokenizer, or `IdsOnly` when it holds none of its files.

    Raises `CheckpointError` for a tokenizer that is there but malformed or incomplete.
    """
    if not any((model_dir / name).exists() for name in (TOKENIZER_FILE, VOCAB_FILE, MERGES_FILE)):
        return IdsOnly()
    return load_tokenizer(model_dir)
