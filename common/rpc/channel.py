"""How services and clients reach a server."""

from __future__ import annotations

import grpc.aio

from common.rpc.options import channel_options


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to `address` (host:port); it connects when first used and belongs to the running event loop."""
    return grpc.aio.insecure_channel(address, options=channel_options())
