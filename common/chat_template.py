"""A checkpoint's chat template: what stands around the turns of a conversation, and which of it is special tokens.

The template (Jinja, as Hugging Face folders ship it) never sees what a user wrote. It places one unguessable stand-in
per message, and the message's text takes the stand-in's place afterwards: a special token spelled out in a message
stays the characters it is made of, and no text can change what the template does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.checkpoint_files import read_object, read_text
from common.errors import CheckpointError, InvalidPrompt
from common.prompt import USER_ROLE, ChatMessage
from common.template_sandbox import SandboxedTemplate, TemplateFault, TemplateRefusal
from common.tokenizer import TOKENIZER_CONFIG_FILE

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_KEY = "chat_template"

_NONCE_BYTES = 12
_STAND_IN = rf"q(?P<nonce>[0-9a-f]{{{2 * _NONCE_BYTES}}})q(?P<index>[0-9]+)q"
_MAX_REFUSAL_CHARACTERS = 200
_PROBE = (ChatMessage(role=USER_ROLE, content="Hello"),)


class _LeftOut(TemplateFault):
    """A message that the template did not write."""

    def __init__(self, index: int, role: str) -> None:
        super().__init__(f"it leaves out message {index}, of role {role}")
        self.index = index
        self.role = role


class ChatTemplate:
    """Writes a conversation, up to where the model's answer begins, as plain text and special tokens."""

    def __init__(self, template: SandboxedTemplate, *, variables: Mapping[str, str], special_ids: Mapping[str, int]):
        """`variables` are the tokens that the template may name (`bos_token`), `special_ids` ids by spelling.

        Raises `TemplateFault` when the template cannot write even one user's turn.
        """
        self._template = template
        self._variables = dict(variables)
        self._special_ids = dict(special_ids)
        longest_first = sorted(map(re.escape, special_ids), key=len, reverse=True)
        self._marks = re.compile("|".join([_STAND_IN, *longest_first]))
        self._rendered(_PROBE)

    def render(self, messages: Sequence[ChatMessage], field: str) -> list[str | int]:
        """Runs of plain text, each to be encoded by itself, and ids of special tokens, in order.

        Raises `InvalidPrompt` naming `field` when the template takes no such conversation.
        """
        try:
            return self._rendered(messages)
        except _LeftOut as left_out:
            problem = f"the model's chat template has no place for a message of role {left_out.role}"
            raise InvalidPrompt(f"{field}[{left_out.index}]", problem) from None
        except TemplateRefusal as refusal:
            words = " ".join(str(refusal).split())[:_MAX_REFUSAL_CHARACTERS]
            raise InvalidPrompt(field, f"the model's chat template refuses it: {words}") from None
        except TemplateFault:
            raise InvalidPrompt(field, "the model's chat template cannot write such a conversation") from None

    def _rendered(self, messages: Sequence[ChatMessage]) -> list[str | int]:
        nonce = secrets.token_hex(_NONCE_BYTES)
        # Whitespace around a text stays around its stand-in: most templates trim it.
        texts = [message.content.strip() for message in messages]
        shown = [
            {"role": message.role, "content": message.content.replace(text, f"q{nonce}q{index}q", 1)}
            for index, (message, text) in enumerate(zip(messages, texts, strict=True))
        ]
        spaces = sum(len(message.content) - len(text) for message, text in zip(messages, texts, strict=True))
        variables = {**self._variables, "messages": shown, "add_generation_prompt": True}
        written = self._template.render(variables, more_characters=spaces)
        return self._runs(written, nonce, messages, texts)

    def _runs(self, written: str, nonce: str, messages: Sequence[ChatMessage], texts: Sequence[str]) -> list[str | int]:
        """Cut at special tokens only: a text and the plain words around it are encoded together, as they were read."""
        runs: list[str | int] = []
        pieces: list[str] = []
        missing, at = dict(enumerate(messages)), 0
        for mark in self._marks.finditer(written):
            if mark["nonce"] not in (nonce, None):
                continue
            pieces.append(written[at : mark.start()])
            at = mark.end()
            if mark["nonce"] == nonce:
                pieces.append(texts[int(mark["index"])])
                missing.pop(int(mark["index"]), None)
            else:
                runs += ["".join(pieces), self._special_ids[mark[0]]]
                pieces.clear()
        runs.append("".join([*pieces, written[at:]]))
        for index, message in missing.items():
            raise _LeftOut(index, message.role)
        return [run for run in runs if run != ""]


def load_chat_template(model_dir: Path, *, special_ids: Mapping[str, int]) -> ChatTemplate | None:
    """The folder's template, from a file of its own or from its tokenizer's configuration; None when it has none.

    Raises `CheckpointError` naming the file when there is one that cannot be used.
    """
    config_path, path = model_dir / TOKENIZER_CONFIG_FILE, model_dir / TEMPLATE_FILE
    config = read_object(config_path) if config_path.exists() else {}
    origin = str(path) if path.exists() else f"{config_path}: {CONFIG_KEY}"
    source = read_text(path) if path.exists() else _default_source(config.get(CONFIG_KEY), origin)
    if source is None:
        return None
    try:
        return ChatTemplate(SandboxedTemplate(source), variables=_token_names(config), special_ids=special_ids)
    except TemplateFault as fault:
        raise CheckpointError(f"{origin}: {fault}") from None


def _default_source(value: Any, origin: str) -> str | None:
    """A template, or the one named "default" of a list of named ones."""
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict)]
        value = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{origin}: must be text, not {type(value).__name__}")
    return value


def _token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that a template may call by their part (`bos_token`), each a text or an object with its content."""
    names: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            names[name] = content
    return names
