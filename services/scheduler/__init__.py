"""The central scheduler: runs `common.core.scheduler.SchedulerCore` over gRPC. No tensors, no text."""
