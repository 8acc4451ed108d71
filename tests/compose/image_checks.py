"""What the two images must and must not contain; asked inside containers without a network."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.compose.docker_engine import ProofFailed
from tests.compose.stack import Stack

CONTROL_LIMIT_BYTES = 250_000_000
_BUILD_TOOLS = ("cc", "gcc", "g++", "make", "ld")
_MODEL = "/opt/sangam/common/models/sangam-tiny/model.safetensors"
_QUESTIONS = f"""
import hashlib, importlib.util, json, os, pathlib, shutil, sys
present = lambda name: importlib.util.find_spec(name) is not None
def writable(folder):
    try:
        pathlib.Path(folder, "probe").touch()
    except OSError:
        return False
    return True
print(json.dumps({{
    "uid": os.getuid(),
    "torch": present("torch"),
    "pip": present("pip"),
    "build_tools": [name for name in {_BUILD_TOOLS!r} if shutil.which(name)],
    "writable": [folder for folder in ("/", "/opt/sangam", "/opt/venv", "/tmp") if writable(folder)],
    "model": hashlib.sha256(pathlib.Path({_MODEL!r}).read_bytes()).hexdigest(),
}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSizes:
    """Bytes that each image adds to its base."""

    control_bytes: int
    worker_bytes: int


async def check_images(stack: Stack) -> ImageSizes:
    """Check both built images of the stack. Raises ProofFailed."""
    tag = stack.variables["IMAGE_TAG"]
    control, worker = f"sangam-control:{tag}", f"sangam-worker:{tag}"
    in_control, in_worker = await _answers(stack, control), await _answers(stack, worker)
    for image, facts in ((control, in_control), (worker, in_worker)):
        _check(facts["uid"] != 0, f"{image} runs as root")
        _check(not facts["build_tools"] and not facts["pip"], f"{image} has build tools: {facts}")
        _check(facts["writable"] == ["/tmp"], f"{image}: a read-only container can write to {facts['writable']}")
    _check(not in_control["torch"], f"{control} has torch")
    _check(bool(in_worker["torch"]), f"{worker} has no torch")
    _check(in_control["model"] == in_worker["model"], "the two images hold different default models")
    base_bytes = await _size_bytes(stack, stack.variables.get("PYTHON_IMAGE", "python:3.11-slim-bookworm"))
    sizes = ImageSizes(
        control_bytes=await _size_bytes(stack, control) - base_bytes,
        worker_bytes=await _size_bytes(stack, worker) - base_bytes,
    )
    _check(sizes.control_bytes <= CONTROL_LIMIT_BYTES, f"{control} is {sizes.control_bytes} bytes over its base")
    return sizes


async def _answers(stack: Stack, image: str) -> dict[str, object]:
    limits = ("--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    answers: dict[str, object] = json.loads(await stack.docker("run", *limits, image, "python", "-c", _QUESTIONS))
    return answers


async def _size_bytes(stack: Stack, image: str) -> int:
    return int(await stack.docker("image", "inspect", "--format", "{{.Size}}", image))


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProofFailed(otherwise)
