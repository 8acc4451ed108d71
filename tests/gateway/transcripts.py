"""Transcripts of requests that finished, with a tokenizer simple enough to be right by sight."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from sangam.v1 import inference_pb2
from services.gateway.transcript import Transcript


class Utf8:
    """Tokens are bytes; text is what they spell, whole characters only."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(token_ids))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def written(tokens: bytes, cuts: list[int]) -> Transcript:
    """All of `tokens`, in runs that end at `cuts` and at the end."""
    transcript, text, start = Transcript(Utf8), Utf8(), 0
    transcript.add(inference_pb2.GenerateResponse(accepted=inference_pb2.Accepted(request_id="r")))
    for end in [*cuts, len(tokens)]:
        shown = text.feed(tokens[start:end]) + (text.finish() if end == len(tokens) else "")
        run = inference_pb2.Committed(from_position=start, token_ids=tokens[start:end], text=shown)
        transcript.add(inference_pb2.GenerateResponse(committed=run))
        start = end
    transcript.add(inference_pb2.GenerateResponse(finished=inference_pb2.Finished()))
    return transcript
