"""InferenceService: Generate, Cancel, GetModel, Tokenize."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio

from common.clock import Clock
from common.core.params import DEFAULT_BLOCK_LENGTH_TOKENS
from common.core.work import RequestSpec
from common.errors import InvalidRequest
from common.generation_input import GenerationInput
from common.model_config import ModelConfig
from common.rpc.deadline import child_timeout_s
from sangam.v1 import inference_pb2, inference_pb2_grpc
from services.gateway.admission import Admission
from services.gateway.audit import Auditor
from services.gateway.live_request import Work
from services.gateway.progress import RequestProgress
from services.gateway.request_body import RequestBody
from services.gateway.request_directory import RequestDirectory
from services.gateway.resume import CancellingScheduler, Deadline, ResumePolicy, ResumingSchedule, ScheduleBroken
from services.gateway.stream import ResponseStream
from services.gateway.text_work import TextWork
from services.gateway.transcript import Responses, Transcript
from services.gateway.validation import check_request_id, check_vocabulary, input_of, request_id_of, tenant_of, view_of

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves one model. `default_deadline_s` applies to clients that set none; 0 means none.

    A request outlives a call that ends by at most `max_detach_grace_s`.
    """

    def __init__(
        self,
        *,
        model: ModelConfig,
        text: TextWork,
        scheduler: CancellingScheduler,
        admission: Admission,
        requests: RequestDirectory,
        clock: Clock,
        default_deadline_s: float,
        max_detach_grace_s: float,
        resume: ResumePolicy,
        auditor: Auditor,
    ) -> None:
        self._model = model
        self._text = text
        self._scheduler = scheduler
        self._admission = admission
        self._requests = requests
        self._clock = clock
        self._default_deadline_s = default_deadline_s
        self._max_detach_grace_s = max_detach_grace_s
        self._resume = resume
        self._auditor = auditor

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        """Stream one request's text as it commits; begins the request unless its id is known.

        Refusals come before any compute; see `services.gateway.request_directory` and `services.gateway.resume`.
        """
        request_id = request_id_of(request)
        max_grace_s = 0.0 if self._requests.waits_for_nobody else self._max_detach_grace_s
        view = view_of(request, model=self._model, max_detach_grace_s=max_grace_s)
        responses = self._requests.watch(
            request_id, RequestBody.of(request), view, begin=lambda: self._work_of(request, request_id, context)
        )
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def Cancel(self, request: inference_pb2.CancelRequest, context: Context) -> inference_pb2.CancelResponse:
        """End a running request, whichever gateway runs it; what it held at this one is given back before the answer.

        Raises SCHEDULER_UNAVAILABLE when it does not run here and the scheduler cannot be asked.
        """
        check_request_id(request.request_id)
        was_running = await self._requests.cancel(request.request_id)
        try:
            was_running |= await self._scheduler.cancel(request.request_id)
        except ScheduleBroken:
            if not was_running:
                raise
        return inference_pb2.CancelResponse(was_running=was_running)

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        """Describe the served model."""
        return inference_pb2.GetModelResponse(
            model_id=self._model.model_id,
            family=self._model.family,
            vocab_size_tokens=self._model.vocab_size_tokens,
            max_canvas_tokens=self._model.max_canvas_tokens,
            mask_token_id=self._model.mask_token_id,
            eos_token_id=self._model.eos_token_id,
            default_block_length_tokens=DEFAULT_BLOCK_LENGTH_TOKENS,
            has_chat_template=self._text.has_chat_template,
        )

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """Text to token ids, or token ids to text; the answer holds both forms. Raises `InvalidRequest`."""
        match request.WhichOneof("input"):
            case "text":
                return inference_pb2.TokenizeResponse(
                    token_ids=await self._text.encode(request.text), text=request.text
                )
            case "token_ids":
                token_ids = list(request.token_ids.ids)
                check_vocabulary(token_ids, self._model)
                return inference_pb2.TokenizeResponse(token_ids=token_ids, text=await self._text.decode(token_ids))
            case _:
                raise InvalidRequest("input", "is missing: give text or token ids")

    def _work_of(self, request: inference_pb2.GenerateRequest, request_id: str, context: Context) -> Work:
        """How to run a request that is new. Raises `InvalidRequest` for what can be judged at once."""
        deadline, tenant, wanted = self._deadline_of(context), tenant_of(request), input_of(request)
        fewest_tokens = self._text.fewest_prompt_tokens(wanted)
        wanted.check_length(fewest_tokens, self._model)

        async def work(transcript: Transcript) -> None:
            # A place first: what waits to be tokenized counts.
            unwanted = functools.partial(self._requests.is_unwanted, request_id)
            with self._admission.admit(request_id, wanted.canvas_tokens(fewest_tokens), is_over=unwanted) as place:
                spec = await self._spec_of(wanted, request_id=request_id, tenant=tenant, priority=request.priority)
                place.resize(spec.canvas_tokens)
                await self._run(spec, deadline, transcript, request.committed_token_ids)

        return work

    async def _run(self, spec: RequestSpec, deadline: Deadline, transcript: Transcript, carried: Sequence[int]) -> None:
        """Run a request at the scheduler, from behind the `carried` tokens, and show it in `transcript`."""
        progress = RequestProgress(spec=spec, eos_token_id=self._model.eos_token_id, text=self._text.stream())
        schedule = ResumingSchedule(
            scheduler=self._scheduler, progress=progress, deadline=deadline, policy=self._resume, clock=self._clock
        )
        responses = ResponseStream(progress=progress, clock=self._clock)
        for response in responses.begin_with(carried):
            transcript.add(response)
        async with aclosing(schedule.events()) as events:
            async for message in events:
                for response in responses.on_message(message, with_revealed=transcript.wants_revealed):
                    transcript.add(response)
        transcript.add(responses.finished())
        if not progress.carried_tokens:
            # Whoever brings tokens along could bring any; what the audit says is about ours.
            self._auditor.offer(spec, progress.committed.token_ids)

    def _deadline_of(self, context: Context) -> Deadline:
        remaining_s = child_timeout_s(context)
        if remaining_s is None and self._default_deadline_s > 0:
            remaining_s = self._default_deadline_s
        return Deadline(clock=self._clock, remaining_s=remaining_s)

    async def _spec_of(self, wanted: GenerationInput, *, request_id: str, tenant: str, priority: int) -> RequestSpec:
        return wanted.to_spec(
            request_id=request_id,
            prompt_token_ids=await self._text.encode_prompt(wanted),
            model=self._model,
            tenant=tenant,
            priority=priority,
        )
