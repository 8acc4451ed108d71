"""Committed runs and their text under any order of reveals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.committed import CommittedStream, CommittedTokens
from common.core.work import FinishReason
from common.tokenizer import load_tokenizer
from tests.gateway.running_gateway import EOS


@st.composite
def reveals(draw, tokens):
    """`tokens` by position, in any order, cut into any steps."""
    order = draw(st.permutations(range(len(tokens))))
    steps = []
    while order:
        size = draw(st.integers(min_value=1, max_value=len(order)))
        steps.append(sorted(order[:size]))
        order = order[size:]
    return [(positions, [tokens[position] for position in positions]) for positions in steps]


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    return load_tokenizer(model_dir)


@given(data=st.data(), text=st.text(st.sampled_from("aé€😀\n"), min_size=1, max_size=12))
def test_text_grows_by_whole_characters_to_the_whole_text(tokenizer, data, text):
    tokens = list(text.encode())
    stream = CommittedStream(tokens=CommittedTokens(max_tokens=len(tokens), eos_token_id=EOS), text=tokenizer.stream())
    seen: set[int] = set()
    shown, shown_tokens = "", list[int]()
    for positions, token_ids in data.draw(reveals(tokens)):
        committed, reveal = stream.reveal(positions, token_ids)
        seen.update(positions)
        gapless = next(position for position in range(len(tokens) + 1) if position not in seen)
        if committed is not None:
            assert committed.run.from_position == len(shown_tokens)
            shown_tokens += committed.run.token_ids
            shown += committed.text
        assert len(shown_tokens) == gapless
        assert {position for _, position in reveal.provisional} == {p for p in positions if p >= gapless}
        # Everything certain is shown, and nothing else: the longest prefix of whole characters.
        assert shown == bytes(tokens[:gapless]).decode(errors="ignore")
    assert (shown, shown_tokens) == (text, tokens)
    assert stream.tokens.finish is FinishReason.LENGTH


@given(data=st.data(), tokens=st.lists(st.sampled_from([1, 2, EOS]), min_size=1, max_size=12))
def test_the_result_is_the_full_run_cut_at_the_first_end_of_text(data, tokens):
    committed = CommittedTokens(max_tokens=len(tokens), eos_token_id=EOS)
    expected = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
    grown: list[int] = []
    for positions, token_ids in data.draw(reveals(tokens)):
        before = committed.finish
        reveal = committed.reveal(positions, token_ids)
        assert before is None or (reveal.run is None and not reveal.provisional)
        grown += reveal.run.token_ids if reveal.run else ()
        assert grown == expected[: len(grown)] == list(committed.token_ids)
    assert grown == expected
    assert committed.finish is (FinishReason.STOP if EOS in tokens else FinishReason.LENGTH)


def test_positions_behind_the_cut_repeats_and_contradictions_do_nothing():
    committed = CommittedTokens(max_tokens=3, eos_token_id=None)
    assert committed.reveal([1, 3], [5, 6]).provisional == ((0, 1),)
    repeated = committed.reveal([1], [9])
    assert (repeated.run, repeated.provisional) == (None, ())
    run = committed.reveal([0, 1, 2], [4, 9, 7]).run
    assert run is not None and run.token_ids == (4, 5, 7)
    assert committed.finish is FinishReason.LENGTH
