"""The prefill worker: `common.worker` in the role PREFILL."""
