"""A worker as it sees itself, for status, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.ids import BlockAttempt, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A snapshot of a `WorkerCore`.

    `running_iteration` is None between iterations. `zombies` are cancelled blocks whose pages a forward or a transfer
    may still touch. `retained` blocks are on offer; `withdrawn` ones wait for the end of a send.
    """

    role: Role
    running_iteration: int | None
    iterations: int
    pages_total: int
    free_pages: int
    deficit_tokens: int
    token_budget_tokens: int
    active_decodes: tuple[BlockAttempt, ...]
    queued_prefills: tuple[BlockAttempt, ...]
    waiting_pages: tuple[BlockAttempt, ...]
    fetching: tuple[BlockAttempt, ...]
    zombies: tuple[BlockAttempt, ...]
    retained: tuple[BlockAttempt, ...]
    withdrawn: tuple[BlockAttempt, ...]

    @property
    def idle(self) -> bool:
        """Nothing is held, running or waiting."""
        return self.running_iteration is None and self.free_pages == self.pages_total and not self.waiting

    @property
    def waiting(self) -> tuple[BlockAttempt, ...]:
        """Blocks that hold no pages yet."""
        return self.queued_prefills + self.waiting_pages
