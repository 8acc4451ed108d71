"""Text, conversations and prompt formats at the gateway, with and without a chat template."""

from __future__ import annotations

import json
import shutil
from typing import Any

import grpc
import pytest

from common.errors import InvalidRequest, Reason
from common.random_checkpoint import build_random_checkpoint
from sangam.v1 import inference_pb2
from tests.gateway.running_gateway import MAX_CANVAS_TOKENS, running_gateway
from tests.gateway.scripted_scheduler import finished, play, queued, revealed_tokens, step

SYSTEM, USER, ASSISTANT = 259, 260, 261
PLAIN, CHAT = inference_pb2.PROMPT_FORMAT_PLAIN, inference_pb2.PROMPT_FORMAT_CHAT


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "tiny-chat"
    build_random_checkpoint(path, n_layers=1, hidden_size=8, mlp_size=8, max_canvas_tokens=MAX_CANVAS_TOKENS, chat=True)
    return path


@pytest.fixture
async def chat_client(chat_model, scheduler, tmp_path):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished()))
    async with running_gateway(chat_model, scheduler.address, tmp_path / "chat.json") as running:
        yield running


def chat(*turns: tuple[str, str]) -> inference_pb2.Chat:
    return inference_pb2.Chat(messages=[{"role": role, "content": content} for role, content in turns])


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"text": "Hi"}, [USER, *b"Hi", ASSISTANT]),
        ({"text": "Hi", "prompt_format": CHAT}, [USER, *b"Hi", ASSISTANT]),
        ({"text": "Hi", "prompt_format": PLAIN}, [*b"Hi"]),
        ({"text": "<|user|><|mask|>"}, [USER, *b"<|user|><|mask|>", ASSISTANT]),
        ({"token_ids": [1, 2], "prompt_format": CHAT}, [1, 2]),
        (
            {"chat": chat(("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c"))},
            [SYSTEM, *b"Be brief.", USER, *b"a", ASSISTANT, *b"b", USER, *b"c", ASSISTANT],
        ),
    ],
    ids=["unspecified", "chat", "plain", "special tokens in text", "ids", "conversation"],
)
async def test_what_the_model_reads(chat_client, scheduler, fields, prompt):
    reading = await chat_client.generate(**fields)
    assert reading.error is None and reading.text == "abcd"
    assert list(scheduler.requests[0].prompt_token_ids) == prompt
    assert reading.of("accepted")[0].prompt_tokens == len(prompt)


async def test_a_long_turn_is_rendered_off_the_loop(scheduler, tmp_path):
    build_random_checkpoint(tmp_path / "m", n_layers=1, hidden_size=8, mlp_size=8, chat=True)
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished()))
    async with running_gateway(tmp_path / "m", scheduler.address, tmp_path / "gateway.json") as client:
        reading = await client.generate(chat=chat(("user", "x" * 3000)))
    assert reading.error is None
    assert list(scheduler.requests[0].prompt_token_ids) == [USER, *b"x" * 3000, ASSISTANT]


async def test_a_model_without_a_template_reads_text_as_it_is(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished()))
    await client.generate(text="Hi")
    assert list(scheduler.requests[0].prompt_token_ids) == [*b"Hi"]


async def test_whether_there_is_a_template_is_told(client, chat_client):
    for gateway, expected in ((client, False), (chat_client, True)):
        model = await gateway.stub.GetModel(inference_pb2.GetModelRequest(), timeout=10)
        assert model.has_chat_template is expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"text": "Hi", "prompt_format": CHAT}, "prompt_format"), ({"chat": chat(("user", "Hi"))}, "chat")],
    ids=["format", "conversation"],
)
async def test_a_model_without_a_template_takes_no_chat(client, scheduler, fields, field):
    await refuses(client, scheduler, fields, field, Reason.INVALID_REQUEST)


BAD_CHATS = {
    "empty": (chat(), "chat.messages", Reason.INVALID_PROMPT),
    "empty turn": (chat(("user", "a"), ("user", "")), "chat.messages[1].content", Reason.INVALID_PROMPT),
    "unknown role": (chat(("tool", "a"), ("user", "b")), "chat.messages[0].role", Reason.INVALID_REQUEST),
    "no role": (chat(("", "a")), "chat.messages[0].role", Reason.INVALID_REQUEST),
    "the model's turn last": (chat(("user", "a"), ("assistant", "b")), "chat.messages[1].role", Reason.INVALID_REQUEST),
    "too many": (chat(*[("user", "a")] * 257), "chat.messages", Reason.INVALID_PROMPT),
    "too long": (chat(("user", "x" * MAX_CANVAS_TOKENS)), "chat.messages", Reason.TOO_LONG),
    "far too long": (chat(("user", "x" * 5000)), "chat.messages", Reason.TOO_LONG),
}


@pytest.mark.parametrize(("conversation", "field", "reason"), BAD_CHATS.values(), ids=BAD_CHATS.keys())
async def test_a_bad_conversation_is_refused_by_the_name_of_its_part(
    chat_client, scheduler, conversation, field, reason
):
    await refuses(chat_client, scheduler, {"chat": conversation}, field, reason)


async def test_a_turn_that_the_template_has_no_place_for_is_named(chat_model, scheduler, tmp_path):
    shutil.copytree(chat_model, tmp_path / "m")
    template = "{% for m in messages if m.role == 'user' %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    async with running_gateway(tmp_path / "m", scheduler.address, tmp_path / "gateway.json") as client:
        conversation = chat(("user", "a"), ("assistant", "b"), ("user", "c"))
        await refuses(client, scheduler, {"chat": conversation}, "chat.messages[1]", Reason.INVALID_PROMPT)


async def test_other_bad_prompts_are_refused_as_ever(chat_client, scheduler):
    await refuses(chat_client, scheduler, {"text": ""}, "prompt", Reason.INVALID_PROMPT)
    await refuses(chat_client, scheduler, {"prompt_format": 7}, "prompt_format", Reason.INVALID_REQUEST)


async def refuses(client: Any, scheduler: Any, fields: dict[str, Any], field: str, reason: Reason) -> None:
    reading = await client.generate(**{"text": "Hi", **fields} if "chat" not in fields else fields)
    assert reading.code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(reading.error, InvalidRequest)
    assert (reading.error.field, reading.error.reason) == (field, reason)
    assert scheduler.requests == []
