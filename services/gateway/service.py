"""Puts the gateway together and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging

from common.clock import Clock, MonotonicClock
from common.config import GatewayConfig
from common.config_values import parse_addresses
from common.metrics.leaks import LeakWatch
from common.model_config import load_model_config
from common.racing import race
from common.rpc.server import RpcServer
from common.rpc.service import write_ready_file
from common.rpc.shared_port import SIGNAL, check_shareable
from common.text_codec import IdsOnly, load_text_codec
from sangam.v1 import inference_pb2_grpc
from services.gateway.admission import Admission
from services.gateway.audit import Auditor
from services.gateway.kept_requests import KeptRequests
from services.gateway.measures import sample_forever
from services.gateway.request_directory import RequestDirectory
from services.gateway.resume import ResumePolicy
from services.gateway.scheduler_client import SchedulerClient
from services.gateway.servicer import InferenceServicer
from services.gateway.text_work import TextWork

SERVICE_NAME = "sangam.v1.InferenceService"

_log = logging.getLogger(__name__)


async def serve(config: GatewayConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let running requests end (at most `drain_s`).

    With `share_port` a signal says that the next life serves: this one then serves until nobody calls it any more.

    Ready as soon as it listens: requests that arrive before the scheduler wait for it. Raises `CheckpointError` for a
    bad model folder before any port is opened.
    """
    if config.share_port:
        check_shareable("--share-port")
    model = load_model_config(config.model_dir)
    text = load_text_codec(config.model_dir)
    if isinstance(text, IdsOnly):
        _log.warning("%s has no tokenizer: prompts must be token ids, answers have no text", config.model_dir)
    clock = MonotonicClock()
    work = TextWork(text)
    directory = RequestDirectory(kept=_kept_requests(config, clock), new_text=work.stream, clock=clock)
    schedulers = SchedulerClient(parse_addresses(config.scheduler_address))
    async with asyncio.TaskGroup() as tasks, directory as requests:
        admission = Admission(
            max_requests=config.max_inflight_requests, max_tokens=config.max_inflight_tokens, clock=clock
        )
        watch = LeakWatch(clock=clock, unowned=admission.unowned)
        parts = (schedulers.run(), watch.run(), sample_forever(admission, clock))
        background = [tasks.create_task(part) for part in parts]
        auditor = Auditor(scheduler=schedulers, rate=config.audit_rate, eos_token_id=model.eos_token_id)
        auditing = tasks.create_task(auditor.run())
        servicer = InferenceServicer(
            model=model,
            text=work,
            scheduler=schedulers,
            admission=admission,
            requests=requests,
            clock=clock,
            default_deadline_s=config.default_deadline_s,
            max_detach_grace_s=config.max_detach_grace_s,
            resume=ResumePolicy(),
            auditor=auditor,
        )
        server = RpcServer(service_names=[SERVICE_NAME], shares_port=config.share_port)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc)
        address = await server.start(config.host, config.port)
        await server.set_serving(True)
        succeeded = _succession(config)
        write_ready_file(config.ready_file, service="gateway", address=address)
        _log.info("gateway serves %s at %s, scheduler %s", model.model_id, address, config.scheduler_address)
        await race(stop.wait(), succeeded.wait())
        auditing.cancel()
        # Who comes back would come back to the next life.
        requests.wait_for_nobody()
        if not stop.is_set():
            _log.info("the next life serves; %d requests in flight", admission.inflight_requests)
            await race(stop.wait(), server.move_clients())
        _log.info("stopping with %d requests in flight", admission.inflight_requests)
        await server.stop(config.drain_s)
        for task in background:
            task.cancel()
        work.close()


def _kept_requests(config: GatewayConfig, clock: Clock) -> KeptRequests:
    return KeptRequests(
        ttl_s=config.request_ttl_s,
        max_requests=config.max_kept_requests,
        max_bytes=config.max_kept_bytes,
        clock=clock,
    )


def _succession(config: GatewayConfig) -> asyncio.Event:
    """Set when the next life serves at this one's port."""
    succeeded = asyncio.Event()
    if config.share_port:
        asyncio.get_running_loop().add_signal_handler(SIGNAL, succeeded.set)
    return succeeded
