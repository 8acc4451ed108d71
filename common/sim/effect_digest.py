"""One hash over everything the cores decided: the same seed must give the same, on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from common.core import effects as fx
from common.core import worker_effects as wx
from common.core.ids import WorkerLife
from common.core.work import BlockWork, KvSource, RemoteKv, StepDelta

Facts = tuple[object, ...]


class EffectDigest:
    """Hashes effects in order, each with its time and with who decided it."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.effects = 0

    def add(self, now: float, who: str, effects: Sequence[fx.SchedulerEffect | wx.WorkerEffect]) -> None:
        """Take in what one `handle` returned."""
        if not effects:
            return
        # An effect is the repr of (now, who, kind, fact ...); how all of them begin is written once.
        opening = f"({now!r}, {who!r}, "
        texts: list[str] = []
        for effect in effects:
            kind = type(effect)
            texts += opening, repr((kind.__name__, *_FACTS[kind](effect)))[1:]
            self.effects += 1
        self._hash.update("".join(texts).encode())

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


def _work(work: BlockWork) -> Facts:
    # A prompt's ids say nothing in a simulation, and would be most of the bytes.
    return (str(work.attempt), len(work.prompt_token_ids), work.generated_token_ids[-1:], work.max_tokens)


def _step(step: StepDelta) -> Facts:
    return step.step, step.positions, step.token_ids


def _life(life: WorkerLife) -> Facts:
    return life.worker_id, life.incarnation


def _source(source: KvSource) -> Facts:
    early = ("early",) if isinstance(source, RemoteKv) and source.early else ()
    return type(source).__name__, *early


def _attempt(effect: Any) -> Facts:
    return (str(effect.attempt),)


_FACTS: dict[type, Callable[[Any], Facts]] = {
    fx.CallPrefill: lambda e: (e.call_id, *_life(e.target), *_work(e.work), e.deadline_s),
    fx.CallDecode: lambda e: (e.call_id, *_life(e.target), *_work(e.work), *_source(e.source), e.deadline_s),
    fx.CancelCall: lambda e: (e.call_id,),
    fx.ReleaseKv: lambda e: (*_life(e.owner), str(e.attempt)),
    fx.FenceWorker: lambda e: _life(e.life),
    fx.PublishStep: lambda e: (e.request_id, e.block, *_step(e.step)),
    fx.PublishBlock: lambda e: (e.request_id, repr(e.placement)),
    fx.FinishRequest: lambda e: (e.request_id, e.finish.value),
    fx.FailRequest: lambda e: (e.request_id, e.reason.value),
    wx.OpenBlock: lambda e: (*_work(e.work), e.page_ids[0], len(e.page_ids)),
    wx.CloseBlock: _attempt,
    wx.RunIteration: lambda e: (e.iteration, len(e.decodes), *map(str, e.prefills)),
    wx.FetchKv: lambda e: (str(e.attempt), e.page_ids[0], len(e.page_ids), e.early),
    wx.AbortFetch: _attempt,
    wx.RetainKv: lambda e: (str(e.attempt), e.page_ids[0], len(e.page_ids)),
    wx.ForgetKv: _attempt,
    wx.SendKvReceived: lambda e: (str(e.attempt), e.transfer.transfer_s, e.transfer.exposed_s, e.first is None),
    wx.SendStep: lambda e: (str(e.attempt), *_step(e.step)),
    wx.SendPrefillResult: lambda e: (str(e.attempt), *_step(e.first), e.completion is None, e.retained),
    wx.SendCompletion: lambda e: (str(e.attempt), e.completion.decode_forwards),
    wx.SendFailure: lambda e: (str(e.attempt), e.reason.value),
    wx.Report: lambda e: (e.report.iteration, e.report.deficit_tokens, e.report.free_pages, e.report.queued_prefills),
}
