"""A transcript reads the same however it was written, from any position, before and after it is made compact."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sangam.v1 import inference_pb2
from services.gateway.transcript import Transcript, View
from tests.gateway.transcripts import Utf8, written


def read(transcript: Transcript, from_position: int) -> list[inference_pb2.Committed]:
    async def collect() -> list[inference_pb2.GenerateResponse]:
        view = View(from_position=from_position, include_revealed=False, detach_grace_s=0.0)
        return [response async for response in transcript.read(view)]

    first, *runs, last = asyncio.run(collect())
    assert (first.WhichOneof("event"), last.WhichOneof("event")) == ("accepted", "finished")
    return [run.committed for run in runs]


@st.composite
def texts_with_cuts(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    # Whole characters, and now and then bytes that are none.
    tokens = draw(st.text(min_size=1, max_size=12)).encode() + draw(st.sampled_from([b"", b"\xe2\x82", b"\xff"]))
    return tokens, sorted(draw(st.sets(st.integers(1, max(1, len(tokens) - 1)))) - {len(tokens)})


@given(texts_with_cuts(), st.data())
def test_what_a_client_has_and_what_it_gets_from_there_is_the_whole(case: tuple[bytes, list[int]], data: st.DataObject):
    tokens, cuts = case
    other_cuts = data.draw(st.permutations(cuts))[: data.draw(st.integers(0, len(cuts)))]
    position = data.draw(st.integers(0, len(tokens)))
    before = Utf8().feed(tokens[:position]) if position < len(tokens) else tokens.decode("utf-8", "replace")
    once, rerun = written(tokens, cuts), written(tokens, sorted(other_cuts))
    for transcript in (once, rerun, rerun.compacted()):
        runs = read(transcript, position)
        assert before + "".join(run.text for run in runs) == tokens.decode("utf-8", "replace")
        assert b"".join(bytes(run.token_ids) for run in runs) == tokens[position:]
        reached = position
        for run in runs:
            assert run.from_position == reached
            reached += len(run.token_ids)
