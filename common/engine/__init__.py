"""The model on one device: loading, paged K/V, packed forwards, sampling. No I/O beyond loading."""
