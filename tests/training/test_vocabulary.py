"""The tokenizer files: every text comes back, the corpus' words are one token, quoted words are spelled."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from common.corpus.questions import training_questions
from common.tokenizer import Tokenizer, load_tokenizer
from common.training.checkpoint_folder import write_tokenizer_and_config
from common.training.recipe import shape_of
from common.training.vocabulary import corpus_pieces, vocabulary_rows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    pieces = corpus_pieces()
    write_tokenizer_and_config(folder, shape_of("llada", vocab_rows=vocabulary_rows(pieces)), pieces)
    return load_tokenizer(folder)


def _spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]


def test_the_corpus_comes_back(tokenizer: Tokenizer) -> None:
    for question in itertools.islice(training_questions(seed=9), 2000):
        for text in (question.prompt, question.answer):
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["", "naïve 日本 🎉\n\ttab  two", '"quoted"?!', "<|mask|><|user|>", "x" * 300])
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.mask_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_words_are_whole_numbers_are_digits_and_quoted_words_are_spelled(tokenizer: Tokenizer) -> None:
    assert _spelled(tokenizer, "What is 47+85?") == ["What", " is", " ", "4", "7", "+", "8", "5", "?"]
    assert _spelled(tokenizer, "Sort 5, 12.") == ["Sort", " ", "5", ", ", "1", "2", "."]
    assert _spelled(tokenizer, 'Reverse "order".') == ["Reverse", ' "', "o", "r", "d", "e", "r", '".']
