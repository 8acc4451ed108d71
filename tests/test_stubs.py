"""The committed gRPC stubs are what the .proto files generate with the pinned tools."""

import runpy
from pathlib import Path

GENERATOR = runpy.run_path(str(Path(__file__).parent.parent / "protos" / "generate.py"))


def test_committed_stubs_are_fresh():
    assert GENERATOR["stale_stubs"]() == []


def test_a_changed_stub_is_noticed(monkeypatch, tmp_path):
    copy = tmp_path / "protos"
    copy.mkdir()
    source = GENERATOR["ROOT"]
    for path in source.rglob("sangam/v1/*"):
        if path.is_file():
            target = copy / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    proto = copy / "sangam" / "v1" / "prefill.proto"
    proto.write_text(proto.read_text().replace("BlockWork work = 1;", "BlockWork work = 7;"))
    stale = GENERATOR["stale_stubs"]
    monkeypatch.setitem(stale.__globals__, "ROOT", copy)
    assert "sangam/v1/prefill_pb2.py" in stale()
