"""A model's text side, whether or not its folder has one: without a tokenizer a model speaks token ids only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from common.chat_template import ChatTemplate, load_chat_template
from common.committed import TextSink
from common.errors import CheckpointError, InvalidPrompt
from common.prompt import USER_ROLE, ChatMessage
from common.tokenizer import MERGES_FILE, TOKENIZER_FILE, VOCAB_FILE, Tokenizer, load_tokenizer


class TextCodec(Protocol):
    """Text to token ids and back; conversations to token ids where the model has a template for them."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be asked."""
        ...

    def encode_chat(self, messages: Sequence[ChatMessage], field: str) -> list[int]:
        """Token ids of a conversation, up to where the answer begins. Raises `InvalidPrompt` naming `field`."""
        ...

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


class ModelText:
    """The codec of a folder with a tokenizer, and perhaps a chat template beside it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    @property
    def has_chat_template(self) -> bool:
        """See `TextCodec.has_chat_template`."""
        return self._template is not None

    def encode_chat(self, messages: Sequence[ChatMessage], field: str) -> list[int]:
        """See `TextCodec.encode_chat`."""
        assert self._template is not None, "asked for a conversation without a template"
        ids: list[int] = []
        for run in self._template.render(messages, field):
            try:
                ids += [run] if isinstance(run, int) else self._tokenizer.encode(run)
            except InvalidPrompt as error:
                raise InvalidPrompt(field, error.problem) from None
        return ids

    def encode(self, text: str) -> list[int]:
        """See `TextCodec.encode`."""
        return self._tokenizer.encode(text)

    def fewest_tokens(self, text: str) -> int:
        """See `TextCodec.fewest_tokens`."""
        return self._tokenizer.fewest_tokens(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `TextCodec.decode`."""
        return self._tokenizer.decode(token_ids)

    def stream(self) -> TextSink:
        """See `TextCodec.stream`."""
        return self._tokenizer.stream()


class IdsOnly:
    """The codec of a folder without a tokenizer: text is refused by name, ids have no text."""

    has_chat_template = False

    def encode_chat(self, messages: Sequence[ChatMessage], field: str) -> list[int]:
        """Always raises `InvalidPrompt`."""
        raise InvalidPrompt(field, "the model's folder has no tokenizer: give token ids")

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
    """The folder's tokenizer and chat template, or `IdsOnly` when it holds no tokenizer.

    Raises `CheckpointError` for one that is there but malformed or incomplete.
    """
    if not any((model_dir / name).exists() for name in (TOKENIZER_FILE, VOCAB_FILE, MERGES_FILE)):
        return IdsOnly()
    tokenizer = load_tokenizer(model_dir)
    codec = ModelText(tokenizer, load_chat_template(model_dir, special_ids=tokenizer.special_ids))
    if codec.has_chat_template:
        _check_turn(codec, tokenizer, model_dir)
    return codec


def _check_turn(codec: ModelText, tokenizer: Tokenizer, model_dir: Path) -> None:
    """Refuse a template that no prompt could come of, whatever the user writes."""
    try:
        turn = codec.encode_chat([ChatMessage(role=USER_ROLE, content="Hello")], "prompt")
    except InvalidPrompt as error:
        raise CheckpointError(f"{model_dir}: chat template: {error.problem}") from None
    if tokenizer.mask_token_id in turn:
        raise CheckpointError(f"{model_dir}: chat template: it writes the mask token, which no prompt may hold")
