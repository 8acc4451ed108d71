"""The KV registry: where K/V lies and until when. Metadata only; it holds no tensors and decides nothing."""
