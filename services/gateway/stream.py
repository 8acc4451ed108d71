"""From a request's events at the scheduler to what its client reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.clock import Clock
from common.committed import CommittedText, Reveal
from common.core.work import StepDelta
from common.errors import Reason, WireError
from common.rpc.convert import cache_mode_to_proto, finish_reason_to_proto, step_delta_from_proto
from sangam.v1 import inference_pb2, scheduler_pb2
from services.gateway.measures import count_finished
from services.gateway.progress import RequestProgress


class ResponseStream:
    """Builds the responses that one request has for its clients; admission is the moment of its making."""

    def __init__(self, *, progress: RequestProgress, clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self._admitted_at_s = clock.now()
        self._first_commit_s: float | None = None
        self._accepted = False

    def begin_with(self, token_ids: Sequence[int]) -> Iterator[inference_pb2.GenerateResponse]:
        """What clients get of a request whose first tokens one of them brought along; none: nothing yet."""
        if (text := self._progress.carry(token_ids)) is not None:
            self._accepted = True
            yield self._accepted_response()
            yield _committed_response([text])

    def on_message(
        self, message: scheduler_pb2.ScheduleResponse, *, with_revealed: bool
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """What clients get for one message: its committed runs follow each other, and go out as one.

        A resumed call's `queued` gives nothing. `with_revealed`: provisional tokens too.
        """
        committed: list[CommittedText] = []
        for event in message.events:
            match event.WhichOneof("event"):
                case "queued" if not self._accepted:
                    self._accepted = True
                    yield self._accepted_response()
                case "step":
                    yield from self._on_step(event.step, committed, with_revealed=with_revealed)
                case "waiting":
                    yield inference_pb2.GenerateResponse(waiting=inference_pb2.Waiting(reason=event.waiting.reason))
                case "block_committed":
                    self._progress.block_committed(event.block_committed)
        if committed:
            yield _committed_response(committed)

    def finished(self) -> inference_pb2.GenerateResponse:
        """The last response. Raises `WireError` INTERNAL when the scheduler ended the request with tokens missing."""
        finish = self._progress.committed.finish
        if finish is None:
            raise WireError(Reason.INTERNAL, "the request was ended with tokens missing")
        usage = inference_pb2.Usage(
            prompt_tokens=len(self._progress.spec.prompt_token_ids),
            completion_tokens=self._progress.committed.count_tokens,
            cache_mode=cache_mode_to_proto(self._progress.spec.cache_mode),
            time_to_first_commit_s=self._first_commit_s or 0.0,
            total_s=self._elapsed_s(),
            carried_tokens=self._progress.carried_tokens,
            **self._progress.usage_counts(),
        )
        count_finished(finish, usage)
        finished = inference_pb2.Finished(
            finish_reason=finish_reason_to_proto(finish), usage=usage, blocks=self._progress.placements()
        )
        return inference_pb2.GenerateResponse(finished=finished)

    def _accepted_response(self) -> inference_pb2.GenerateResponse:
        spec = self._progress.spec
        accepted = inference_pb2.Accepted(
            request_id=spec.request_id,
            prompt_tokens=len(spec.prompt_token_ids),
            canvas_tokens=spec.canvas_tokens,
            seed=spec.sampling.seed,
        )
        return inference_pb2.GenerateResponse(accepted=accepted)

    def _on_step(
        self, step: scheduler_pb2.ScheduleStep, committed: list[CommittedText], *, with_revealed: bool
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Take one step: provisional tokens are given out, what it commits is added to `committed`."""
        delta = step_delta_from_proto(step.delta)
        text, reveal = self._progress.step(step.block, delta)
        if with_revealed and reveal.provisional:
            yield _revealed_response(delta, reveal)
        if text is not None:
            if self._first_commit_s is None:
                self._first_commit_s = self._elapsed_s()
            committed.append(text)

    def _elapsed_s(self) -> float:
        return self._clock.now() - self._admitted_at_s


def _committed_response(texts: Sequence[CommittedText]) -> inference_pb2.GenerateResponse:
    committed = inference_pb2.Committed(
        from_position=texts[0].run.from_position,
        token_ids=[token for text in texts for token in text.run.token_ids],
        text="".join(text.text for text in texts),
    )
    return inference_pb2.GenerateResponse(committed=committed)


def _revealed_response(delta: StepDelta, reveal: Reveal) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        revealed=inference_pb2.Revealed(
            positions=[position for _, position in reveal.provisional],
            token_ids=[delta.token_ids[index] for index, _ in reveal.provisional],
            confidences=[delta.confidences[index] for index, _ in reveal.provisional],
        )
    )
