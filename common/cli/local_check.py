"""What the engine answers in this process, to compare a cluster's answers and times with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.cli.generation_output import SAME, GenerationOutput
from common.core.defaults import DEFAULT_PAGE_SIZE_TOKENS
from common.core.work import RequestSpec
from common.engine.engine import Engine
from common.engine.generator import GenerationResult, LocalGenerator
from common.generation_input import GenerationInput
from common.model_config import ModelConfig, load_model_config
from common.prompt_encoding import encode_prompt
from common.text_codec import TextCodec, load_text_codec


class LocalCheck:
    """One loaded model and a fixed set of requests. Imports torch, which takes seconds: import this module late."""

    def __init__(self, generator: LocalGenerator, codec: TextCodec, specs: dict[GenerationInput, RequestSpec]) -> None:
        self._generator = generator
        self._codec = codec
        self._specs = specs

    @classmethod
    def load(cls, model_dir: Path, requests: Sequence[GenerationInput], *, device: str, dtype: str) -> LocalCheck:
        """Load a checkpoint with pages for the longest of `requests`; `dtype` "auto" is by device.

        Raises CheckpointError, or an InvalidRequest of one of the requests.
        """
        codec = load_text_codec(model_dir)
        model = load_model_config(model_dir)
        specs = {wanted: _spec(codec, model, wanted) for wanted in requests}
        pages = max(spec.pages(DEFAULT_PAGE_SIZE_TOKENS) for spec in specs.values())
        engine = Engine.load(model_dir, device=device, dtype=None if dtype == "auto" else dtype, num_pages=pages)
        return cls(LocalGenerator(engine), codec, specs)

    def run(self, wanted: GenerationInput) -> GenerationResult:
        """The engine's own answer to one of the requests."""
        return self._generator.run(self._specs[wanted])

    def verdict(self, wanted: GenerationInput, output: GenerationOutput) -> str:
        """`SAME` when tokens, text, ending and forwards are the engine's own, else what differs."""
        expected = self.run(wanted)
        pairs = {
            "tokens": (output.token_ids, expected.token_ids),
            "text": (output.text, self._codec.decode(expected.token_ids)),
            "finish reason": (output.finish_reason, expected.finish_reason.value),
            "prefill forwards": (output.prefill_forwards, expected.prefill_forwards),
            "decode forwards": (output.decode_forwards, expected.decode_forwards),
        }
        differing = [f"{name} {got!r}, not {wanted_!r}" for name, (got, wanted_) in pairs.items() if got != wanted_]
        return "; ".join(differing) or SAME


def _spec(codec: TextCodec, model: ModelConfig, wanted: GenerationInput) -> RequestSpec:
    return wanted.to_spec(request_id="local", prompt_token_ids=encode_prompt(codec, wanted), model=model)
