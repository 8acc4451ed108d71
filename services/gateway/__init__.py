"""The gateway: what clients call. Text in, text out; admission, limits and resuming; no scheduling, no tensors."""
