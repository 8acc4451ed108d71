"""What a prompt may be when it is no list of token ids: text, or the turns of a conversation."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InvalidPrompt, InvalidRequest

USER_ROLE = "user"
ROLES = ("system", USER_ROLE, "assistant")
MAX_MESSAGES = 256


class PromptFormat(enum.Enum):
    """How a text prompt is put to the model.

    AUTO: as one user turn of the model's chat template when it has one, else as it is. CHAT insists on the template,
    PLAIN on going without.
    """

    AUTO = "auto"
    PLAIN = "plain"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn of a conversation; `role` is one of `ROLES`, `content` plain text."""

    role: str
    content: str


def check_messages(messages: Sequence[ChatMessage], field: str) -> None:
    """Refuse a conversation that no model could answer: raises an `InvalidRequest` naming the part of `field`."""
    if not messages:
        raise InvalidPrompt(field, "is empty")
    if len(messages) > MAX_MESSAGES:
        raise InvalidPrompt(field, f"has {len(messages)} messages, at most {MAX_MESSAGES} are allowed")
    for index, message in enumerate(messages):
        name = f"{field}[{index}]"
        if message.role not in ROLES:
            raise InvalidRequest(f"{name}.role", f"must be one of {', '.join(ROLES)}, not {message.role!r:.40}")
        if not message.content:
            raise InvalidPrompt(f"{name}.content", "is empty")
        check_unicode(message.content, f"{name}.content")
    if messages[-1].role != USER_ROLE:
        raise InvalidRequest(f"{field}[{len(messages) - 1}].role", "must be user: the model answers the user's turn")


def check_unicode(text: str, field: str) -> None:
    """Raise `InvalidPrompt` for text with lone surrogates, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidPrompt(field, "is not valid Unicode text") from None
