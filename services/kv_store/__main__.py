"""`python -m services.kv_store [flags]`."""

from __future__ import annotations

from common.config import KvStoreConfig
from common.rpc.service import run_service
from services.kv_store.app import serve

if __name__ == "__main__":
    run_service("kv_store", KvStoreConfig, serve)
