"""The random model: the same bytes for a seed, small, lively enough for thresholds to matter."""

from __future__ import annotations

import pytest

from common.core.params import ConfidenceThreshold
from common.core.work import StepDelta
from common.engine.engine import Engine
from common.engine.generator import GenerationResult, LocalGenerator
from common.errors import ConfigError
from common.random_checkpoint import build_random_checkpoint
from common.tokenizer import load_tokenizer
from tests.engine.runs import request


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_same_seed_writes_the_same_bytes(tmp_path, family):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build_random_checkpoint(tmp_path / name, family=family, seed=seed)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert sum(file.stat().st_size for file in (tmp_path / "a").iterdir()) < 4_000_000


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_text_in_text_out_and_thresholds_matter(tmp_path, family):
    build_random_checkpoint(tmp_path, family=family)
    engine, tokenizer = Engine.load(tmp_path, device="cpu", dtype=None, num_pages=64), load_tokenizer(tmp_path)
    prompt = tuple(tokenizer.encode("Tell me of rivers"))
    forwards, confidences = [], []
    for threshold in (0.3, 0.6, 0.95):
        spec = request(prompt, max_tokens=64, strategy=ConfidenceThreshold(threshold))
        *deltas, result = LocalGenerator(engine).generate(spec)
        assert isinstance(result, GenerationResult)
        forwards.append(result.prefill_forwards + result.decode_forwards)
        confidences += [value for delta in deltas if isinstance(delta, StepDelta) for value in delta.confidences]
        text = tokenizer.decode(result.token_ids)
        assert sum(character.isascii() and character.isprintable() for character in text) >= 60
    assert forwards[0] < forwards[1] < forwards[2]
    assert min(confidences) < 0.3 and max(confidences) > 0.9


def test_an_unknown_family_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="family"):
        build_random_checkpoint(tmp_path, family="gpt")
