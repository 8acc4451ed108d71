"""Text to token ids and back. Tokenizer libraries load on first use; code from a checkpoint never runs.

Text is text: a special token spelled out in a prompt stays the characters it is made of, and special ids have no text.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.checkpoint_files import read_object, read_text
from common.errors import CheckpointError, InvalidPrompt
from common.model_config import ModelConfig, load_model_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

TOKENIZER_FILE = "tokenizer.json"
VOCAB_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
ADDED_TOKENS_FILE = "added_tokens.json"

_NFC_SHRINKS_BY = 4
"""Composing to NFC makes a text's UTF-8 fewer times shorter than this (7 bytes to 2 at worst, U+0390)."""
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Split"})


class Tokenizer:
    """One model's tokenizer. `encode` never yields the mask id; `decode` skips special ids."""

    def __init__(self, backend: Backend, config: ModelConfig) -> None:
        added = backend.get_added_tokens_decoder()
        control_ids = {config.mask_token_id, config.eos_token_id, config.pad_token_id}
        self._backend = backend
        self._special_ids = control_ids.union(token_id for token_id, token in added.items() if token.special)
        self._added_text = {token_id: str(token.content) for token_id, token in added.items()}
        self.eos_token_id = config.eos_token_id
        self.mask_token_id = config.mask_token_id
        self.vocab_size_tokens = config.vocab_size_tokens
        self._most_bytes_per_token = _most_bytes_per_token(json.loads(backend.to_str()))

    @property
    def special_ids(self) -> dict[str, int]:
        """Special tokens by their spelling: what a chat template may write, and a user's text never becomes."""
        return {text: token_id for token_id, text in self._added_text.items() if token_id in self._special_ids}

    def fewest_tokens(self, text: str) -> int:
        """A lower bound on `len(encode(text))`, known without encoding; 0 where this tokenizer has none."""
        most_bytes = self._most_bytes_per_token
        return 0 if most_bytes is None else -(-len(text.encode()) // most_bytes)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, nothing added. Raises `InvalidPrompt` for text that this vocabulary cannot hold."""
        # Of the library's ways to encode, the one that lets other threads run meanwhile; it counts no offsets either.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if any(token_id >= self.vocab_size_tokens or token_id in self._special_ids for token_id in ids):
            raise InvalidPrompt("prompt", "its text does not encode to this model's plain tokens")
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`; bytes that are no UTF-8 become U+FFFD, ids without text nothing."""
        stream = self.stream()
        return stream.feed(token_ids) + stream.finish()

    def stream(self) -> TextStream:
        """A fresh incremental decoder."""
        return TextStream(self)

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes (possibly part of a character) that an id stands for; none for special and unused ids."""
        if token_id in self._special_ids:
            return b""
        if token_id in self._added_text:
            return self._added_text[token_id].encode()
        spelled = self._backend.id_to_token(token_id)
        return b"" if spelled is None else bytes(_BYTE_OF_CHARACTER[character] for character in spelled)


class TextStream:
    """Text of a growing list of ids, delta by delta; a character split over tokens waits for its last byte.

    The deltas joined equal `Tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """Append ids; return the text that is now certain."""
        return self._decoder.decode(b"".join(self._tokenizer.token_bytes(token_id) for token_id in token_ids))

    def finish(self) -> str:
        """Return what was held back: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """Load tokenizer.json, else vocab.json and merges.txt (Qwen2's format, as Dream ships it), beside config.json.

    Raises `CheckpointError` naming the file when it is missing, malformed, or no byte-level vocabulary.
    """
    config = load_model_config(model_dir)
    path = model_dir / TOKENIZER_FILE
    backend = _load_json(path, config) if path.exists() else _load_qwen2(model_dir)
    backend.encode_special_tokens = True
    _check_spelling(model_dir, backend)
    return Tokenizer(backend, config)


def _most_bytes_per_token(document: Mapping[str, Any]) -> int | None:
    """The most UTF-8 bytes of a text that one token stands for, by the library's own document of a tokenizer.

    None where that is not certain: something may drop, replace or swallow text.
    """
    normalizer, model = document["normalizer"], document["model"]
    plain = [token for token in document["added_tokens"] if not token["special"]]
    if document["truncation"] or model["type"] != "BPE" or not model["vocab"].keys() >= _BYTE_OF_CHARACTER.keys():
        return None
    if not _keeps_text(document["pre_tokenizer"]) or any(token["lstrip"] or token["rstrip"] for token in plain):
        return None
    if normalizer is not None and normalizer["type"] != "NFC":
        return None
    longest_bytes = max([*map(len, model["vocab"]), *(len(token["content"].encode()) for token in plain)])
    return longest_bytes if normalizer is None else longest_bytes * _NFC_SHRINKS_BY


def _keeps_text(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether every byte of a text is in one of the pieces that it is cut into, and nothing is in two."""
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_text, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in _KEEPING_PRE_TOKENIZERS and pre_tokenizer.get("behavior") != "Removed"


def _check_spelling(model_dir: Path, backend: Backend) -> None:
    """Refuse a vocabulary with characters that spell no byte: its text could not be put together again."""
    for token in backend.get_vocab(with_added_tokens=False):
        if not _BYTE_OF_CHARACTER.keys() >= set(token):
            raise CheckpointError(f"{model_dir}: token {token!r} is not spelled in byte-level characters")


def _load_json(path: Path, config: ModelConfig) -> Backend:
    from tokenizers import Tokenizer as Backend

    document = read_object(path)
    if not _mentions_byte_level(document.get("decoder")):
        raise CheckpointError(f"{path}: decoder: only byte-level tokenizers are supported")
    control_ids = {config.mask_token_id, config.eos_token_id, config.pad_token_id}
    for token in _added_tokens(path, document):
        # Whatever the file says: these must never be read out of a user's text.
        token["special"] = token.get("special", False) or token.get("id") in control_ids
    try:
        return Backend.from_str(json.dumps(document))
    except Exception as error:  # the library raises plain Exception for a malformed document
        raise CheckpointError(f"{path}: {error}") from None


def _load_qwen2(model_dir: Path) -> Backend:
    for name in (VOCAB_FILE, MERGES_FILE):
        if not (model_dir / name).exists():
            raise CheckpointError(
                f"{model_dir}: neither {TOKENIZER_FILE} nor {VOCAB_FILE} with {MERGES_FILE}: no {name}"
            )
    from tokenizers import AddedToken
    from transformers import Qwen2Tokenizer

    parts: dict[str, Any] = {"vocab": read_object(model_dir / VOCAB_FILE)}
    parts["merges"] = _read_merges(model_dir / MERGES_FILE)
    # The class adds its default special tokens by name, at ids of its own choosing: none, until the folder's are added.
    parts |= {"unk_token": None, "eos_token": None, "pad_token": None}
    try:
        fast = Qwen2Tokenizer(**parts)
    except Exception as error:  # as above
        raise CheckpointError(f"{model_dir / VOCAB_FILE}: {error}") from None
    backend: Backend = fast.backend_tokenizer
    path, added = _qwen2_added(model_dir)
    for token_id, content in sorted(added.items()):
        backend.add_special_tokens([AddedToken(content, special=True, normalized=False)])
        if backend.token_to_id(content) != token_id:
            raise CheckpointError(f"{path}: token {content!r} has id {token_id}, the vocabulary leaves a gap before it")
    return backend


def _qwen2_added(model_dir: Path) -> tuple[Path, dict[int, str]]:
    """The tokens beyond the vocabulary, by id, and the file that lists them; either of two files may."""
    path = model_dir / TOKENIZER_CONFIG_FILE
    listed = read_object(path).get("added_tokens_decoder") if path.exists() else None
    try:
        if listed:
            return path, {int(token_id): str(token["content"]) for token_id, token in listed.items()}
        path = model_dir / ADDED_TOKENS_FILE
        added = read_object(path) if path.exists() else {}
        return path, {int(token_id): content for content, token_id in added.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: malformed added tokens: {error!r}") from None


def _read_merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line or line.startswith("#version"):
            continue
        first, space, second = line.partition(" ")
        if not (first and space and second):
            raise CheckpointError(f"{path}: line {number} is no pair of tokens")
        pairs.append((first, second))
    return pairs


def _added_tokens(path: Path, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    tokens = document.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        raise CheckpointError(f"{path}: added_tokens: must be a list of objects")
    return tokens


def _mentions_byte_level(decoder: Any) -> bool:
    """Whether a decoder is ByteLevel, alone or in a sequence."""
    if not isinstance(decoder, dict):
        return False
    nested = decoder.get("decoders") or []
    return decoder.get("type") == "ByteLevel" or any(_mentions_byte_level(part) for part in nested)


def byte_characters() -> list[str]:
    """The 256 characters that byte-level vocabularies spell bytes with (GPT-2's table), by byte.

    Printable Latin-1 stands for itself; the other bytes take the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(byte_characters())}
