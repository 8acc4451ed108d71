"""`python -m services.gateway [flags]`."""

from __future__ import annotations

from common.config import GatewayConfig
from common.rpc.service import run_service
from services.gateway.service import serve

if __name__ == "__main__":
    run_service("gateway", GatewayConfig, serve)
