"""The grpcurl calls of README and docs, without grpcurl: body against the request's type, method by reflection."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.rpc.channel import open_channel
from common.rpc.server import RpcServer
from sangam.v1 import inference_pb2

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CALL = re.compile(r"^\s*grpcurl (?:[^\n]*\\\n)*[^\n]*", flags=re.MULTILINE)
SERVICE = "sangam.v1.InferenceService"


def examples() -> list[list[str]]:
    """The words of each call, as a shell splits them."""
    found = [call[0] for page in PAGES for call in CALL.finditer(page.read_text(encoding="utf-8"))]
    return [shlex.split(call.replace("\\\n", " ")) for call in found]


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Where a server listens that has the gateway's reflection: nothing else is asked."""
    server = RpcServer(service_names=[SERVICE])
    yield await server.start("127.0.0.1", 0)
    await server.stop(0.0)


async def reflected_pool(address: str, symbol: str) -> descriptor_pool.DescriptorPool:
    """All that a client without our files learns of `symbol`: its file and those that it imports."""
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    async with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)]
        while asked:
            async for answer in stub.ServerReflectionInfo(iter(asked)):
                assert not answer.HasField("error_response"), answer.error_response
                for data in answer.file_descriptor_response.file_descriptor_proto:
                    file = descriptor_pb2.FileDescriptorProto.FromString(data)
                    files[file.name] = file
            missing = {name for file in files.values() for name in file.dependency} - files.keys()
            asked = [reflection_pb2.ServerReflectionRequest(file_by_filename=name) for name in sorted(missing)]
    pool = descriptor_pool.DescriptorPool()
    while files:
        name = next(name for name, file in files.items() if not files.keys() & set(file.dependency))
        pool.Add(files.pop(name))
    return pool


def test_there_are_examples() -> None:
    assert {words[-1].rpartition("/")[2] for words in examples()} == {"Generate", "Cancel"}
    assert len(examples()) == sum(page.read_text(encoding="utf-8").count("\ngrpcurl ") for page in PAGES)


@pytest.mark.parametrize("words", examples(), ids=lambda words: words[-1].rpartition("/")[2])
async def test_a_call_is_one_that_reflection_allows(address: str, words: list[str]) -> None:
    command, plaintext, data, body, target, symbol = words
    assert (command, plaintext, data, target) == ("grpcurl", "-plaintext", "-d", "127.0.0.1:50051")
    service, _, method = symbol.partition("/")
    assert service == SERVICE
    pool = await reflected_pool(address, service)
    request_type = pool.FindServiceByName(service).FindMethodByName(method).input_type
    request: Message = json_format.Parse(body, message_factory.GetMessageClass(request_type)())
    # What reflection tells is what the gateway parses.
    ours = getattr(inference_pb2, request_type.name).FromString(request.SerializeToString())
    assert json_format.MessageToDict(ours, preserving_proto_field_name=True) == json_format.MessageToDict(
        request, preserving_proto_field_name=True
    )


def test_the_chat_of_the_readme_is_a_prompt() -> None:
    (body,) = re.findall(r"`(\{\"chat\".*?\})`", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    request = json_format.Parse(body, inference_pb2.GenerateRequest())
    assert [message.content for message in request.chat.messages] == ["...", "..."]
