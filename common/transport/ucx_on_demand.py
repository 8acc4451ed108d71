"""UCX for a transport that hardly ever needs it: started by the first read that does."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

from common.errors import ConfigError
from common.transport.ucx_runtime import UcxRuntime

_log = logging.getLogger(__name__)

StartUcx = Callable[[asyncio.AbstractEventLoop], UcxRuntime]
"""Makes a runtime for that event loop; may block, and raise `ConfigError`. Called in another thread."""


def start_ucx(loop: asyncio.AbstractEventLoop) -> UcxRuntime:
    """`StartUcx` with every carrier that UCX finds."""
    return UcxRuntime(loop=loop)


class UcxOnDemand:
    """At most one runtime, made beside the event loop: importing UCXX takes 0.4 s, too long for every worker's start.

    Made inside the event loop that uses it.
    """

    def __init__(self, start: StartUcx = start_ucx) -> None:
        self._start = start
        self._starting: asyncio.Task[UcxRuntime | None] | None = None
        self._closed = False

    async def runtime(self) -> UcxRuntime | None:
        """The runtime, started if need be; None where it does not start, or not any more."""
        if self._closed:
            return None
        if self._starting is None:
            self._starting = asyncio.create_task(self._started())
        # Others may wait for it too.
        return await asyncio.shield(self._starting)

    async def _started(self) -> UcxRuntime | None:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, functools.partial(self._start, loop))
        except ConfigError as error:
            _log.warning("K/V does not move over ucx: %s", error)
            return None

    async def close(self) -> None:
        """Stop what was started; no transfer may be under way. Idempotent."""
        self._closed = True
        if self._starting is not None and (runtime := await self._starting) is not None:
            await runtime.close()
