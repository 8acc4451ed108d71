"""GetModel and Tokenize."""

from __future__ import annotations

import grpc
import pytest

from common.errors import InvalidRequest
from common.rpc.status import wire_error
from sangam.v1 import inference_pb2
from tests.gateway.running_gateway import EOS, MASK, MAX_CANVAS_TOKENS

TokenIds = inference_pb2.TokenIds


async def test_the_model_is_described(client):
    model = await client.stub.GetModel(inference_pb2.GetModelRequest(), timeout=10)
    assert (model.model_id, model.family) == ("tiny", "llada")
    assert (model.vocab_size_tokens, model.max_canvas_tokens) == (264, MAX_CANVAS_TOKENS)
    assert (model.mask_token_id, model.eos_token_id, model.default_block_length_tokens) == (MASK, EOS, 32)


@pytest.mark.parametrize("text", ["héllo €", "<|mask|><|endoftext|>", "", "long " * 2000], ids=len)
async def test_text_to_ids_and_back(client, text):
    there = await client.stub.Tokenize(inference_pb2.TokenizeRequest(text=text), timeout=10)
    assert (bytes(there.token_ids), there.text) == (text.encode(), text)
    back = await client.stub.Tokenize(
        inference_pb2.TokenizeRequest(token_ids=TokenIds(ids=there.token_ids)), timeout=10
    )
    assert back.text == text


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (inference_pb2.TokenizeRequest(), "input"),
        (inference_pb2.TokenizeRequest(token_ids=TokenIds(ids=[1, 264])), "token_ids"),
        (inference_pb2.TokenizeRequest(token_ids=TokenIds(ids=[-1])), "token_ids"),
    ],
    ids=["nothing", "above", "below"],
)
async def test_what_cannot_be_converted_is_refused_by_name(client, request_, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stub.Tokenize(request_, timeout=10)
    error = wire_error(caught.value)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, InvalidRequest) and error.field == field
