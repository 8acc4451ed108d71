"""The decode worker: `common.worker` in the role DECODE."""
