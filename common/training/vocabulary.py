"""The vocabulary: bytes, whole words of the corpus, a few control tokens; and the tokenizer files that hold it.

A byte-level BPE without merges. A piece of text is one token when the vocabulary has it as a whole, else one token for
each byte: words of the questions are short canvases, while quoted words are spelled and numbers are single digits.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from common.byte_tokenizer import byte_tokenizer
from common.checkpoint_files import write_object
from common.corpus.questions import training_questions
from common.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

EOS, MASK, USER, ASSISTANT = "<|endoftext|>", "<|mask|>", "<|user|>", "<|assistant|>"
CONTROL_TOKENS = (EOS, MASK, USER, ASSISTANT)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|endoftext|>' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# A digit; a word with the space before it; a letter; what lies between, with the space before a digit or a letter.
_PIECES = r" ?[A-Za-z]{2,}|\d|[A-Za-z]|[^A-Za-z\d]+?(?= [A-Za-z]{2}|[A-Za-z]|\d|$)"
_SAMPLE_QUESTIONS = 30_000
_SAMPLE_SEED = 0
_RARE_COUNT = 5
_ROW_MULTIPLE = 8


def corpus_pieces() -> list[str]:
    """Pieces longer than one character that the corpus' own wording has, sorted.

    Of the first mix: a word that only the last one has is spelled. So are the insides of quoted words, which are
    lower-case letters without a space before them.
    """
    split = Split(Regex(_PIECES), "isolated")
    counts: Counter[str] = Counter()
    for question in itertools.islice(training_questions(seed=_SAMPLE_SEED, mix="first"), _SAMPLE_QUESTIONS):
        for text in (question.prompt, question.answer):
            counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    return sorted(
        piece
        for piece, count in counts.items()
        if count >= _RARE_COUNT and len(piece) > 1 and not (piece.isalpha() and piece.islower())
    )


def control_ids(pieces: list[str]) -> dict[str, int]:
    """Ids of the control tokens: they follow the bytes and the pieces."""
    first = 256 + len(pieces)
    return {token: first + index for index, token in enumerate(CONTROL_TOKENS)}


def vocabulary_rows(pieces: list[str]) -> int:
    """Rows of the embedding: all ids, rounded up for the matrix product."""
    return -(-(256 + len(pieces) + len(CONTROL_TOKENS)) // _ROW_MULTIPLE) * _ROW_MULTIPLE


def write_tokenizer(model_dir: Path, pieces: list[str]) -> None:
    """Write tokenizer.json and tokenizer_config.json (with the chat template) into an existing folder."""
    document = byte_tokenizer(control_ids(pieces), pieces=pieces, split_pattern=_PIECES)
    write_object(model_dir / TOKENIZER_FILE, document)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "chat_template": CHAT_TEMPLATE,
    }
    write_object(model_dir / TOKENIZER_CONFIG_FILE, config)
