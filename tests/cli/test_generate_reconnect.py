"""`sangam generate` at a gateway that goes away: the text goes on where it was, and nothing is shown twice."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from common.cli import gateway_client
from common.cli.main import main
from common.cli.reconnect import Reconnect
from common.cli.run_dir import RunningCluster, new_run_dir
from common.errors import Reason, WireError
from common.rpc.server import RpcServer
from sangam.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.redis_server import free_port

PROMPT = ["--prompt", "Hi", "--max-tokens", "8"]
Response = inference_pb2.GenerateResponse


class FailingGateway(inference_pb2_grpc.InferenceServiceServicer):
    """Knows one answer, "abcdefgh"; every call but the last ends after so many tokens with that code."""

    def __init__(self, *failures: tuple[int, grpc.StatusCode]) -> None:
        self.failures = list(failures)
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.cancelled: list[str] = []
        self.hangs = False

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Response]:
        self.requests.append(request)
        until, code = self.failures.pop(0) if self.failures else (8, None)
        if until >= 0:
            yield Response(accepted=inference_pb2.Accepted(request_id=request.request_id, seed=5))
            tokens = b"abcdefgh"[request.from_position : until]
            committed = inference_pb2.Committed(from_position=request.from_position, token_ids=tokens)
            committed.text = tokens.decode()
            yield Response(committed=committed)
        if self.hangs:
            await asyncio.Event().wait()
        if code is not None:
            await context.abort(code, "gone")
        finished = inference_pb2.Finished(finish_reason=types_pb2.FINISH_REASON_LENGTH)
        finished.usage.cache_mode = types_pb2.CACHE_MODE_DUAL
        yield Response(finished=finished)

    async def Cancel(self, request: Any, context: Any) -> inference_pb2.CancelResponse:
        self.cancelled.append(request.request_id)
        return inference_pb2.CancelResponse(was_running=True)

    async def GetModel(self, request: Any, context: Any) -> Any:
        raise AssertionError("not asked here")

    async def Tokenize(self, request: Any, context: Any) -> Any:
        raise AssertionError("not asked here")


@pytest.fixture
async def serve():
    """Call it with a gateway for its address."""
    servers: list[RpcServer] = []

    async def start(gateway: FailingGateway, port: int = 0) -> str:
        server = RpcServer(service_names=["sangam.v1.InferenceService"])
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(gateway, server.grpc)
        servers.append(server)
        return await server.start("127.0.0.1", port)

    yield start
    for server in servers:
        await server.stop(0)


async def run(address: str, *flags: str) -> int:
    return await asyncio.to_thread(main, ["generate", *PROMPT, *flags, "--address", address])


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def test_a_broken_answer_is_taken_up_where_it_was(serve, capsys):
    gateway = FailingGateway((3, UNAVAILABLE), (3, UNAVAILABLE), (5, grpc.StatusCode.CANCELLED))
    assert await run(await serve(gateway), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], bytes(report["token_ids"]), report["seed"]) == ("abcdefgh", b"abcdefgh", 5)
    assert [request.from_position for request in gateway.requests] == [0, 3, 3, 5]
    assert [bytes(request.committed_token_ids) for request in gateway.requests] == [b"", b"abc", b"abc", b"abcde"]
    (request_id,) = {request.request_id for request in gateway.requests}
    assert len(request_id) > 32 and report["request_id"] == request_id
    assert all(request.detach_grace_ms > 0 for request in gateway.requests)


async def test_the_text_on_the_terminal_never_repeats(serve, capsys):
    gateway = FailingGateway((3, UNAVAILABLE))
    assert await run(await serve(gateway), "--request-id", "mine") == 0
    assert capsys.readouterr().out == "abcdefgh\n"
    assert [request.request_id for request in gateway.requests] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("failure", "flags"),
    [
        ((3, UNAVAILABLE), ["--no-retry"]),
        ((3, grpc.StatusCode.INTERNAL), []),
        ((-1, UNAVAILABLE), ["--no-retry"]),
        ((-1, grpc.StatusCode.INTERNAL), []),
    ],
    ids=["no retry", "a verdict", "no retry before it began", "a verdict before it began"],
)
async def test_what_is_not_tried_again(serve, capsys, failure, flags):
    gateway = FailingGateway(failure)
    assert await run(await serve(gateway), *flags) == 1
    assert len(gateway.requests) == 1
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_call_that_breaks_before_it_began_is_made_again_and_that_is_said_once(serve, capsys):
    gateway = FailingGateway((-1, UNAVAILABLE), (-1, grpc.StatusCode.CANCELLED), (-1, UNAVAILABLE))
    assert await run(await serve(gateway)) == 0
    out, err = capsys.readouterr()
    assert out == "abcdefgh\n"
    assert len({request.request_id for request in gateway.requests}) == 1 and len(gateway.requests) == 4
    assert err.count("does not answer; trying again for 60 s") == 1 and err.count("\n") == 2


async def test_no_gateway_where_none_is_known_to_be_fails_at_once(capsys):
    assert await run("127.0.0.1:1") == 1
    err = capsys.readouterr().err
    assert (
        err.startswith("sangam generate: error: no gateway answers at 127.0.0.1:1: start one") and err.count("\n") == 1
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_gateway_of_a_running_cluster_that_is_just_away_is_waited_for(
    serve, capsys, monkeypatch, tmp_path, host
):
    monkeypatch.setenv("SANGAM_CACHE_DIR", str(tmp_path))
    port = free_port()
    address = f"127.0.0.1:{port}"
    run_dir = new_run_dir()
    RunningCluster(pid=os.getpid(), gateway=address, scheduler="127.0.0.1:1", mode="hybrid").write(run_dir)
    asking = asyncio.create_task(run(f"{host}:{port}"))
    while "trying again" not in (said := capsys.readouterr().err):  # noqa: ASYNC110  # another thread prints it
        await asyncio.sleep(0.01)
    assert said == f"sangam generate: the gateway at {host}:{port} does not answer; trying again for 60 s\n"
    gateway = FailingGateway()
    await serve(gateway, port)
    assert await asking == 0
    assert len(gateway.requests) == 1


async def test_without_retry_the_request_ends_with_its_call(serve):
    gateway = FailingGateway()
    assert await run(await serve(gateway), "--no-retry") == 0
    assert [request.detach_grace_ms for request in gateway.requests] == [0]


async def test_patience_ends(serve):
    gateway = FailingGateway((3, UNAVAILABLE), *[(-1, UNAVAILABLE)] * 1000)
    lines: list[str] = []
    with pytest.raises(WireError) as caught:
        await gateway_client.generate_at(
            await serve(gateway),
            inference_pb2.GenerateRequest(text="Hi", max_tokens=8),
            timeout_s=None,
            on_text=lambda text: None,
            on_notice=lines.append,
            # Longer than the notice's two seconds and the longest pause together: some try falls between the two.
            reconnect=Reconnect(patience_s=4.0),
        )
    assert caught.value.reason is Reason.PEER_LOST
    assert len(lines) == 1 and "trying again" in lines[0]


async def test_the_deadline_is_one_for_all_calls(serve, capsys):
    gateway = FailingGateway((3, UNAVAILABLE), *[(-1, UNAVAILABLE)] * 1000)
    assert await run(await serve(gateway), "--timeout", "1") == 1
    out, err = capsys.readouterr()
    assert out == "abc\n"
    assert "deadline" in err and err.count("\n") == 1


async def test_giving_up_cancels_the_request_by_name(serve):
    gateway = FailingGateway()
    gateway.hangs = True
    heard = asyncio.Event()
    task = asyncio.create_task(
        gateway_client.generate_at(
            await serve(gateway),
            inference_pb2.GenerateRequest(text="Hi", max_tokens=8, request_id="mine"),
            timeout_s=None,
            on_text=lambda text: heard.set(),
            reconnect=Reconnect(),
        )
    )
    await asyncio.wait_for(heard.wait(), 20)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert gateway.cancelled == ["mine"]


def test_flags_of_the_gateway_are_none_of_local(capsys):
    for flags, named in ((["--request-id", "x"], "--request-id"), (["--no-retry"], "--no-retry")):
        assert main(["generate", *PROMPT, *flags, "--local"]) == 2
        assert f"error: {named}: not with --local" in capsys.readouterr().err
