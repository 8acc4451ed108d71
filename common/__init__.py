"""Everything the five services share: pure policy, engine, data plane, RPC plumbing, the CLI."""
