"""One request as its client lives through it: every committed run with its moment, over as many calls as it takes."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import grpc.aio

from common.cli.gateway_client import request_of
from common.errors import Reason
from common.generation_input import GenerationInput
from common.rpc.channel import open_channel
from common.rpc.convert import finish_reason_from_proto
from common.rpc.status import wire_error
from sangam.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.invariance.solo import SoloAnswer

RETRY_PAUSE_S = 0.1
DETACH_GRACE_MS = 30_000
"""How long a request goes on at its gateway without its client."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When (monotonic seconds) the client held how many committed tokens; also when it began and when it ended."""

    at_s: float
    tokens: int


class WatchedRequest:
    """Asked once, by `run`. A gateway that goes away is asked again with the same id and what is already here.

    `problem` says what no client should ever see: a failure, text that repeats, skips or goes on after its end.
    """

    def __init__(self, wanted: GenerationInput, request_id: str) -> None:
        self.wanted = wanted
        self.request_id = request_id
        self.token_ids: list[int] = []
        self.text = ""
        self.moments: list[Moment] = []
        self.calls = 0
        self.finished: inference_pb2.Finished | None = None
        self.problem = ""

    @property
    def attempts(self) -> int:
        """Block attempts in all; 0 before the end."""
        return 0 if self.finished is None else self.finished.usage.attempts

    @property
    def retried_blocks(self) -> int:
        """Block attempts beyond the first of each block, of those blocks whose attempts are known."""
        blocks = -(-len(self.token_ids) // self.wanted.block_length_tokens) - self._unknown_blocks
        return max(0, self.attempts - blocks) if self.finished else 0

    def block_was_retried(self, tokens: int) -> bool:
        """Whether the block that was open when the client held `tokens` took, or may have, more than one attempt."""
        if tokens // self.wanted.block_length_tokens < self._unknown_blocks:
            return True
        block = self._block_at(tokens)
        return block is not None and (block.attempts > 1 or not block.prefill_worker_id)

    def block_ran_on(self, tokens: int, worker_id: str) -> bool:
        """Whether the last attempt at the block that was open when the client held `tokens` ran on that worker."""
        block = self._block_at(tokens)
        return block is not None and worker_id in (block.prefill_worker_id, block.decode_worker_id)

    @property
    def _unknown_blocks(self) -> int:
        """The first blocks, which ran for a gateway that is gone and took their story with it."""
        carried_tokens = 0 if self.finished is None else self.finished.usage.carried_tokens
        return -(-carried_tokens // self.wanted.block_length_tokens)

    def _block_at(self, tokens: int) -> types_pb2.BlockPlacement | None:
        number = tokens // self.wanted.block_length_tokens
        blocks = () if self.finished is None else self.finished.blocks
        return next((block for block in blocks if block.block == number), None)

    async def run(self, address: str, *, timeout_s: float) -> None:
        """Ask the gateway at `address` until the end; a problem is noted, not raised."""
        self._note()
        try:
            async with asyncio.timeout(timeout_s), open_channel(address) as channel:
                stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
                while self.finished is None and not self.problem:
                    await self._call(stub)
        except TimeoutError:
            self.problem = self.problem or f"no end within {timeout_s:.0f} s, at {len(self.token_ids)} tokens"
        self._note()

    async def _call(self, stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> None:
        self.calls += 1
        request = request_of(self.wanted)
        request.request_id = self.request_id
        request.detach_grace_ms = DETACH_GRACE_MS
        request.from_position = len(self.token_ids)
        request.committed_token_ids.extend(self.token_ids)
        call = stub.Generate(request)
        try:
            async for response in call:
                self._take(response)
            if self.finished is None:
                self.problem = self.problem or "the answer ended without an end"
        except grpc.aio.AioRpcError as error:
            reason = wire_error(error).reason
            if reason is not Reason.PEER_LOST:
                self.problem = self.problem or f"{reason.value}: {error.details()}"
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            call.cancel()

    def _take(self, response: inference_pb2.GenerateResponse) -> None:
        if self.finished is not None:
            self.problem = self.problem or "something came after the end"
        match response.WhichOneof("event"):
            case "committed":
                run = response.committed
                if run.from_position != len(self.token_ids):
                    self.problem = self.problem or (
                        f"a run from position {run.from_position} came when {len(self.token_ids)} tokens were here"
                    )
                self.token_ids.extend(run.token_ids)
                self.text += run.text
                self._note()
            case "finished":
                self.finished = response.finished

    @property
    def finish_reason(self) -> str:
        """Why the text ended; "" when it did not."""
        finish = None if self.finished is None else finish_reason_from_proto(self.finished.finish_reason)
        return "" if finish is None else finish.value

    def _note(self) -> None:
        self.moments.append(Moment(asyncio.get_running_loop().time(), len(self.token_ids)))

    def differences(self, right: SoloAnswer) -> list[str]:
        """What the client saw that it should not have: at most one line."""
        if self.problem:
            return [f"{self.request_id}: {self.problem}"]
        difference = right.difference(self)
        return [f"{self.request_id}: {difference} ({self.wanted})"] if difference else []

    def gaps(self) -> list[tuple[Moment, Moment]]:
        """Every stretch of time without a new token, from beginning to end."""
        return list(itertools.pairwise(self.moments))
