"""From the prompt that a caller gave to the token ids that the model reads; the gateway and `--local` share it."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import InvalidRequest
from common.generation_input import GenerationInput
from common.prompt import USER_ROLE, ChatMessage, PromptFormat
from common.text_codec import TextCodec


def encode_prompt(codec: TextCodec, wanted: GenerationInput) -> Sequence[int]:
    """Token ids of the prompt; text goes through the model's chat template as `wanted.prompt_format` says.

    Raises an `InvalidRequest` that names the field. Needs `wanted.check()` to have passed.
    """
    if wanted.token_ids is not None:
        return wanted.token_ids
    turns = _turns(codec, wanted)
    return codec.encode(wanted.text or "") if turns is None else codec.encode_chat(turns, wanted.prompt_field)


def fewest_prompt_tokens(codec: TextCodec, wanted: GenerationInput) -> int:
    """A lower bound on the prompt's length, known without encoding. Raises as `encode_prompt` does."""
    if wanted.token_ids is not None:
        return len(wanted.token_ids)
    turns = _turns(codec, wanted)
    if turns is None:
        return codec.fewest_tokens(wanted.text or "")
    # Templates may trim what they write.
    return codec.fewest_tokens("".join(turn.content.strip() for turn in turns))


def _turns(codec: TextCodec, wanted: GenerationInput) -> Sequence[ChatMessage] | None:
    """The conversation that the prompt is, or None when it is text to be read as it is."""
    if wanted.messages is not None:
        if not codec.has_chat_template:
            raise InvalidRequest("chat", "the model has no chat template: give text or token ids")
        return wanted.messages
    if wanted.prompt_format is PromptFormat.CHAT and not codec.has_chat_template:
        raise InvalidRequest("prompt_format", "the model has no chat template: leave the format out or say PLAIN")
    if wanted.prompt_format is PromptFormat.PLAIN or not codec.has_chat_template:
        return None
    return [ChatMessage(role=USER_ROLE, content=wanted.text or "")]
