"""docs/metrics.md and the catalogue say the same."""

from __future__ import annotations

import re
from pathlib import Path

from common.metrics.catalogue import instruments

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(?P<name>sangam_\w+)` \| (?P<kind>\w+) \| [^|]+ \| (?P<labels>[^|]*)\| [^|]+ \|$", re.MULTILINE)


def test_the_document_lists_every_instrument_with_its_kind_and_labels() -> None:
    documented = {
        row["name"]: (row["kind"], tuple(re.findall(r"`(\w+)`", row["labels"])))
        for row in ROW.finditer(DOCS.read_text(encoding="utf-8"))
    }
    assert documented == {name: (found.kind, found.about.labels) for name, found in instruments().items()}


def test_names_say_what_and_in_which_unit() -> None:
    for name, instrument in instruments().items():
        assert re.fullmatch(r"sangam_[a-z][a-z0-9_]*", name), name
        assert name.endswith("_total") == (instrument.kind == "counter"), name
        assert name.endswith("_s") or instrument.kind != "histogram", name
        assert instrument.about.description, name
