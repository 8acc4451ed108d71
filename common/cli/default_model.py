"""The model that is served when none is named: the small trained one that is part of the package."""

from __future__ import annotations

from pathlib import Path

import common

DEFAULT_MODEL = "sangam-tiny"


def default_model_dir() -> Path:
    """Its folder; `common/models` has what it can do and how it was trained."""
    return Path(common.__file__).parent / "models" / DEFAULT_MODEL
