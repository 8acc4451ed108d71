"""The transformer that both families share, over fused weights."""
