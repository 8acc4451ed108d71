"""Config and weight headers are read without torch; whatever is wrong is named by file and key or tensor."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.checkpoint import check_checkpoint, weights_fingerprint
from common.errors import CheckpointError, InvalidPrompt
from common.model_config import load_model_config
from common.random_checkpoint import build_random_checkpoint

GOLDEN_DIR = Path(__file__).parent / "data" / "golden"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    build_random_checkpoint(tmp_path / "model", n_layers=2, hidden_size=16, mlp_size=16)
    return tmp_path / "model"


def edit(path: Path, **changes) -> None:
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps(document))


def read_weights(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_weights(path: Path, header: dict[str, Any], body: bytes) -> None:
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body)


def test_llada_facts():
    config = load_model_config(GOLDEN_DIR / "llada-gqa")
    assert (config.family, config.model_id, config.query_lookback_tokens) == ("llada", "llada-gqa", 0)
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert (config.vocab_size_tokens, config.mask_token_id, config.eos_token_id, config.pad_token_id) == (
        512,
        511,
        500,
        500,
    )
    assert (config.max_canvas_tokens, config.rope_theta, config.rms_norm_eps) == (512, 500000.0, 1e-5)
    assert not (config.qkv_bias or config.linear_bias or config.tied_embeddings) and config.rope_full_precision


def test_dream_facts():
    config = load_model_config(GOLDEN_DIR / "dream-gqa")
    assert (config.family, config.query_lookback_tokens) == ("dream", 1)
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert config.qkv_bias and not config.linear_bias
    assert (config.rope_theta, config.rms_norm_eps, config.mlp_size) == (1000000.0, 1e-6, 160)


def test_n_kv_heads_null_means_all_heads(model_dir):
    edit(model_dir / "config.json", n_kv_heads=None)
    assert load_model_config(model_dir).n_kv_heads == 4


@pytest.mark.parametrize("name", ["llada-mha", "llada-gqa", "dream-gqa"])
def test_golden_checkpoints_are_whole(name):
    index = check_checkpoint(GOLDEN_DIR / name)
    assert len(index.tensors) == (39 if name.startswith("dream") else 30)
    assert all(entry.dtype == "F32" for entry in index.tensors.values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2'"),
        ({"model_type": None}, "model_type"),
        ({"d_model": None}, "d_model"),
        ({"d_model": "64"}, "d_model"),
        ({"n_layers": 0}, "n_layers"),
        ({"n_layers": True}, "n_layers"),
        ({"n_heads": 3}, "heads"),
        ({"n_kv_heads": 3}, "kv heads"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.*not supported"),
        ({"activation_type": "gelu"}, "activation_type"),
        ({"layer_norm_type": "default"}, "layer_norm_type"),
        ({"alibi": True}, "alibi"),
        ({"include_bias": True}, "bias_for_layer_norm"),
        ({"weight_tying": "yes"}, "weight_tying"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"mask_token_id": 264}, "mask_token_id"),
        ({"mask_token_id": 256}, "mask_token_id: equals eos"),
        ({"eos_token_id": [1, 2]}, "eos_token_id"),
        ({"embedding_size": 100}, "embedding_size"),
    ],
)
def test_a_bad_config_names_file_and_key(model_dir, changes, match):
    edit(model_dir / "config.json", **changes)
    with pytest.raises(CheckpointError, match=rf"config\.json: {match}"):
        check_checkpoint(model_dir)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_unsupported_dream_variants_are_refused(tmp_path, changes, match):
    shutil.copytree(GOLDEN_DIR / "dream-gqa", tmp_path / "m")
    edit(tmp_path / "m" / "config.json", **changes)
    with pytest.raises(CheckpointError, match=rf"config\.json: {match}.*not supported"):
        load_model_config(tmp_path / "m")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"no such file; a model folder needs config\.json and \*\.safetensors"),
        ("{", "not readable as JSON"),
        ("[1]", "holds list where an object is expected"),
        ("\xff", "not UTF-8 text"),
    ],
)
def test_an_unreadable_config_is_named(tmp_path, content, problem):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=rf"config\.json: {problem}"):
        load_model_config(tmp_path)


def test_a_config_that_may_not_be_read_is_named(model_dir, monkeypatch):
    def refuse(path: Path, *_args: Any, **_options: Any) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # a mode of the file would not stop root
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: Permission denied$"):
        load_model_config(model_dir)


def test_a_folder_in_the_configs_place_is_named(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: Is a directory$"):
        load_model_config(tmp_path)


def test_a_folder_without_safetensors_is_refused(model_dir):
    (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        check_checkpoint(model_dir)


WK = "model.transformer.blocks.1.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda header: header.pop(WK), rf"model\.safetensors: tensor {WK} is missing"),
        (lambda header: header[WK].update(shape=[16, 8]), rf"model\.safetensors: tensor {WK} has shape \[16, 8\]"),
        (lambda header: header[WK].update(dtype="I32"), rf"model\.safetensors: tensor {WK} has dtype I32"),
        (lambda header: header[WK].update(data_offsets=[0, 10**9]), rf"model\.safetensors: tensor {WK}: .*truncated"),
        (lambda header: header[WK].update(data_offsets=[0, 4]), rf"model\.safetensors: tensor {WK}: 4 bytes"),
        (lambda header: header[WK].pop("dtype"), rf"model\.safetensors: tensor {WK}: malformed"),
    ],
)
def test_a_bad_tensor_names_file_and_tensor(model_dir, change, match):
    header, body = read_weights(model_dir / "model.safetensors")
    change(header)
    write_weights(model_dir / "model.safetensors", header, body)
    with pytest.raises(CheckpointError, match=match):
        check_checkpoint(model_dir)


def test_a_tensor_that_no_shard_holds_is_named_with_the_place_to_look_at(model_dir):
    header, body = read_weights(model_dir / "model.safetensors")
    del header[WK]
    write_weights(model_dir / "a.safetensors", header, body)
    (model_dir / "model.safetensors").unlink()
    write_weights(model_dir / "b.safetensors", {}, b"")
    with pytest.raises(CheckpointError, match=rf"{model_dir.name}: tensor {WK} is in none of the 2 "):
        check_checkpoint(model_dir)
    weight_map = {WK: "b.safetensors", **{name: "a.safetensors" for name in header}}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=rf"index\.json: tensor {WK} is in none of the 2 "):
        check_checkpoint(model_dir)


@pytest.mark.parametrize("data", [b"", b"1234", b"\xff" * 64, struct.pack("<Q", 8) + b"not json"])
def test_a_file_that_is_no_safetensors_is_named(model_dir, data):
    (model_dir / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        check_checkpoint(model_dir)


def test_a_truncated_file_is_refused(model_dir):
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor .*truncated"):
        check_checkpoint(model_dir)


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ('{"weight_map": {"a": "missing.safetensors"}}', r"missing\.safetensors"),
        ('{"weight_map": {"a": "../model.safetensors"}}', r"index\.json.*malformed"),
        ('{"weight_map": {"a": 3}}', r"index\.json.*malformed"),
        ('{"weight_map": {}}', r"index\.json: tensor model\..* is in none of the 0 "),
        ("{}", r"index\.json.*malformed"),
        ("[", r"index\.json.*malformed"),
    ],
)
def test_a_bad_index_is_named(model_dir, index, match):
    (model_dir / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=match):
        check_checkpoint(model_dir)


def test_a_tensor_in_two_files_is_refused(model_dir):
    shutil.copy(model_dir / "model.safetensors", model_dir / "model-2.safetensors")
    with pytest.raises(CheckpointError, match="is also in"):
        check_checkpoint(model_dir)


def test_the_fingerprint_sees_weights_headers_and_config(model_dir):
    path = model_dir / "model.safetensors"
    before, data = weights_fingerprint(model_dir), path.read_bytes()
    assert weights_fingerprint(model_dir) == before
    for offset in (len(data) - 1, len(data) // 2):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        assert weights_fingerprint(model_dir) != before
    path.write_bytes(data)
    edit(model_dir / "config.json", rope_theta=10000.0)
    assert weights_fingerprint(model_dir) != before


def test_the_fingerprint_does_not_see_the_folders_name(model_dir, tmp_path):
    shutil.copytree(model_dir, tmp_path / "elsewhere")
    assert weights_fingerprint(tmp_path / "elsewhere") == weights_fingerprint(model_dir)


@pytest.mark.parametrize(
    ("prompt", "match"), [((), "empty"), ((1, 512), "id 512"), ((-3, 1), "id -3"), ((1, 511, 2), "mask id 511")]
)
def test_prompts_are_checked(prompt, match):
    with pytest.raises(InvalidPrompt, match=match):
        load_model_config(GOLDEN_DIR / "llada-mha").check_prompt(prompt)


def test_any_id_but_the_mask_may_be_prompted():
    load_model_config(GOLDEN_DIR / "llada-mha").check_prompt(range(511))


def test_reading_a_model_needs_no_torch(model_dir):
    code = (
        "import sys; from pathlib import Path\n"
        "from common.checkpoint import check_checkpoint, weights_fingerprint\n"
        "from common.random_checkpoint import build_random_checkpoint\n"
        "from common.tokenizer import load_tokenizer\n"
        "path = Path(sys.argv[1]); build_random_checkpoint(path / 'built'); check_checkpoint(path)\n"
        "weights_fingerprint(path); load_tokenizer(path).encode('text')\n"
        "bad = {'torch', 'numpy', 'transformers', 'safetensors'} & set(sys.modules); assert not bad, bad\n"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(model_dir)], cwd=root, check=True, timeout=60)
