"""Text in, text out: special tokens in text stay text, characters split over tokens never leak."""

from __future__ import annotations

import json
import random
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import CheckpointError, InvalidPrompt
from common.random_checkpoint import build_random_checkpoint
from common.tokenizer import Tokenizer, byte_characters, load_tokenizer

TEXTS = ["", "Hello, world\n", "naïve — 中文 🚀🚀 ", "a\x00\x7f\u200b", "<|mask|>", "x<|endoftext|>y <|pad|>"]


@pytest.fixture(scope="module")
def byte_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("byte") / "model"
    build_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def byte_tokenizer(byte_dir) -> Tokenizer:
    return load_tokenizer(byte_dir)


def write_qwen2(path: Path, *, listed_in: str = "tokenizer_config.json", first_added: int = 259) -> Path:
    """A Dream folder as published ones are: vocab.json, merges.txt, added tokens listed beside them."""
    build_random_checkpoint(path, family="dream")
    (path / "tokenizer.json").unlink()
    merges = [("h", "e"), ("l", "l"), ("Ġ", "w")]
    spelled = [*byte_characters(), *(first + second for first, second in merges)]
    (path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(spelled)}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (path / "merges.txt").write_text("\n".join(lines) + "\n")
    added = {"<|endoftext|>": first_added, "<|im_start|>": first_added + 1, "<|mask|>": first_added + 2}
    if listed_in == "added_tokens.json":
        (path / listed_in).write_text(json.dumps(added))
    else:
        decoder = {str(token_id): {"content": content, "special": True} for content, token_id in added.items()}
        (path / listed_in).write_text(
            json.dumps({"added_tokens_decoder": decoder, "tokenizer_class": "DreamTokenizer"})
        )
    config = json.loads((path / "config.json").read_text())
    ids = {"eos_token_id": added["<|endoftext|>"], "mask_token_id": added["<|mask|>"]}
    (path / "config.json").write_text(json.dumps(config | ids | {"pad_token_id": None}))
    return path


@pytest.fixture(scope="module")
def qwen2_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_qwen2(tmp_path_factory.mktemp("qwen2") / "model"))


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_ids_are_the_texts_bytes(byte_tokenizer, text):
    ids = byte_tokenizer.encode(text)
    assert ids == list(text.encode())
    assert byte_tokenizer.decode(ids) == text


def test_encoding_a_long_text_lets_other_threads_run(byte_tokenizer):
    text = "a " * 1_000_000
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(len, "").result()
        started_s = looked_s = time.monotonic()
        encoding = pool.submit(byte_tokenizer.encode, text)
        longest_s = 0.0
        while not encoding.done():
            time.sleep(0.001)
            last_s, looked_s = looked_s, time.monotonic()
            longest_s = max(longest_s, looked_s - last_s)
    assert len(encoding.result()) == len(text)
    # Another thread waits for its turn now and then, never for the whole text.
    assert longest_s < 0.5 * (time.monotonic() - started_s)


@given(st.text(max_size=60))
def test_the_fewest_tokens_are_the_bytes_of_a_byte_level_vocabulary(byte_tokenizer, text):
    assert byte_tokenizer.fewest_tokens(text) == len(text.encode()) == len(byte_tokenizer.encode(text))


@given(st.text(st.sampled_from("helw o\u1100\u1161\u11a8e\u0301\u212b"), max_size=60))
def test_no_text_takes_fewer_tokens_than_is_said(qwen2_tokenizer, text):
    fewest = qwen2_tokenizer.fewest_tokens(text)
    assert fewest <= len(qwen2_tokenizer.encode(text))
    assert (fewest > 0) == (text != "")


def test_composing_shortens_no_text_by_more_than_the_bound_allows():
    # One character's longest spelling: every code point of its decomposition replaced by the longest equivalent one.
    longest: dict[str, int] = {}
    for code in set(range(sys.maxunicode + 1)) - set(range(0xD800, 0xE000)):
        composed = unicodedata.normalize("NFC", chr(code))
        longest[composed] = max(longest.get(composed, 0), len(chr(code).encode()))
    for composed, its_own in longest.items():
        spelled = sum(longest.get(part, len(part.encode())) for part in unicodedata.normalize("NFD", composed))
        assert max(spelled, its_own) <= 4 * len(composed.encode()), composed


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False}},
        {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}},
    ],
    ids=lambda part: next(iter(part)),
)
def test_a_tokenizer_that_loses_text_has_no_lower_bound(part, tmp_path):
    build_random_checkpoint(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | part))
    assert load_tokenizer(tmp_path / "model").fewest_tokens("a" * 1000) == 0


def test_known_ids(byte_tokenizer):
    assert (byte_tokenizer.eos_token_id, byte_tokenizer.mask_token_id) == (256, 258)


def test_special_and_unused_ids_have_no_text(byte_tokenizer):
    assert byte_tokenizer.decode([72, 256, 105, 257, 258, 263]) == "Hi"


def test_a_character_waits_for_its_last_byte(byte_tokenizer):
    stream = byte_tokenizer.stream()
    rocket = list("🚀".encode())
    assert [stream.feed([token_id]) for token_id in [*rocket, 33]] == ["", "", "", "🚀", "!"]
    assert stream.finish() == ""


def test_an_unfinished_character_is_flushed_as_a_replacement(byte_tokenizer):
    stream = byte_tokenizer.stream()
    assert stream.feed([97, 0xF0, 0x9F]) == "a"
    assert stream.finish() == "\ufffd"


def test_special_ids_do_not_break_a_character(byte_tokenizer):
    first, second = "é".encode()
    assert byte_tokenizer.decode([first, 257, second]) == "é"


def test_deltas_joined_are_the_whole_text(byte_tokenizer):
    rng = random.Random(0)
    for _ in range(100):
        ids = [rng.randrange(264) for _ in range(rng.randint(0, 40))]
        stream, rest, text = byte_tokenizer.stream(), ids, ""
        while rest:
            size = rng.randint(1, 4)
            text += stream.feed(rest[:size])
            rest = rest[size:]
        text += stream.finish()
        assert text == byte_tokenizer.decode(ids)
        assert text == bytes(token_id for token_id in ids if token_id < 256).decode(errors="replace")


def test_the_mask_stays_text_even_when_the_file_forgets_that_it_is_special(byte_dir, tmp_path):
    path = tmp_path / "model"
    build_random_checkpoint(path)
    document = json.loads((path / "tokenizer.json").read_text())
    for token in document["added_tokens"]:
        token["special"] = False
    (path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = load_tokenizer(path)
    text = "a<|mask|>b<|endoftext|>"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode([97, 258, 98]) == "ab"


def test_added_tokens_that_are_not_special_are_text(tmp_path):
    path = tmp_path / "model"
    build_random_checkpoint(path)
    document = json.loads((path / "tokenizer.json").read_text())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": 259, "content": "né ", "special": False})
    (path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("xné y") == [120, 259, 121]
    assert tokenizer.decode([120, 259, 121]) == "xné y"


@pytest.mark.parametrize("listed_in", ["tokenizer_config.json", "added_tokens.json"])
def test_a_dream_folder_loads_through_vocab_and_merges(tmp_path, listed_in):
    tokenizer = load_tokenizer(write_qwen2(tmp_path / "dream", listed_in=listed_in))
    # Qwen2 splits " world" off first; merges are "he", "ll", " w"
    ids = tokenizer.encode("hello world")
    assert ids == [256, 257, ord("o"), 258, *b"orld"]
    assert tokenizer.decode([*ids, 260, 261, 259]) == "hello world"
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id) == (259, 261)


@pytest.mark.parametrize("text", ["a<|mask|>b", "<|im_start|>user", "<|endoftext|>"])
def test_special_tokens_in_text_stay_text_for_dream_too(tmp_path, text):
    tokenizer = load_tokenizer(write_qwen2(tmp_path / "dream"))
    ids = tokenizer.encode(text)
    assert max(ids) < 259 and tokenizer.decode(ids) == text


def test_a_gap_before_the_added_tokens_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: token '<\|endoftext\|>' has id 260"):
        load_tokenizer(write_qwen2(tmp_path / "dream", first_added=260))


def test_text_that_would_encode_past_the_model_is_refused(tmp_path):
    path = tmp_path / "model"
    build_random_checkpoint(path)
    document = json.loads((path / "tokenizer.json").read_text())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": 264, "content": "zz", "special": False})
    fillers = [document["added_tokens"][0] | {"id": 259 + n, "content": f"<{n}>"} for n in range(5)]
    document["added_tokens"][3:3] = fillers
    (path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(InvalidPrompt):
        load_tokenizer(path).encode("buzz")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: path.write_text("{"), r"tokenizer\.json: not readable as JSON"),
        (lambda path: path.write_text("[]"), r"tokenizer\.json"),
        (lambda path: path.write_text('{"decoder": {"type": "ByteLevel"}}'), r"tokenizer\.json"),
        (lambda path: path.write_text('{"decoder": {"type": "Metaspace"}}'), r"tokenizer\.json: decoder"),
        (lambda path: path.unlink(), r"neither tokenizer\.json nor vocab\.json"),
    ],
)
def test_a_bad_tokenizer_is_named(tmp_path, damage, match):
    build_random_checkpoint(tmp_path / "model")
    damage(tmp_path / "model" / "tokenizer.json")
    with pytest.raises(CheckpointError, match=match):
        load_tokenizer(tmp_path / "model")


def test_bad_merges_are_named(tmp_path):
    path = write_qwen2(tmp_path / "dream")
    (path / "merges.txt").write_text("#version: 0.2\nabc\n")
    with pytest.raises(CheckpointError, match=r"merges\.txt: line 2"):
        load_tokenizer(path)
