"""A tokenizer.json that spells: one token for each byte, whole pieces of text beside them, special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.tokenizer import byte_characters


def byte_tokenizer(
    special_tokens: Mapping[str, int], *, pieces: Sequence[str] = (), split_pattern: str | None = None
) -> dict[str, Any]:
    """A byte-level BPE without merges: ids 0 to 255 are the bytes, then come the `pieces`.

    `split_pattern` cuts the text into what may be one of the pieces; what is none becomes its bytes. `special_tokens`
    have their ids by spelling.
    """
    characters = byte_characters()
    spelled = ["".join(characters[byte] for byte in piece.encode()) for piece in pieces]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": split_pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token_id, "content": text, **flags} for text, token_id in special_tokens.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]} if split_pattern else byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {token: token_id for token_id, token in enumerate([*characters, *spelled])},
            "merges": [],
        },
    }
