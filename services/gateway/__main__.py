"""`python -m services.gateway [flags]`."""

from __future__ import annotations

from common.config import GatewayConfig
from common.rpc.service import missing_packages_told, run_service

if __name__ == "__main__":
    with missing_packages_told("gateway"):
        from services.gateway.service import serve
    run_service("gateway", GatewayConfig, serve)
