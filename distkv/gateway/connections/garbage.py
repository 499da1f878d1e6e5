"""When the gateway looks for garbage: while no request runs.

Python looks at what was made since it last did whenever ten thousand more objects were made than freed. Where streams
begin and end that is seldom, and then it is all that thousands of streams are made of: the event loop stands still for
200 ms. They leave nothing in circles, nor do requests that fail.
"""

from __future__ import annotations

import asyncio
import gc

from distkv.gateway.operations.concurrency_limit import ConcurrencyLimit

MANY = 2_000_000
"""Where so many more objects were made than freed, it is looked for in any case: no idle moment has come."""
WORTH_IT = 10_000
LOOK_S = 5.0


async def collect_when_idle(limit: ConcurrencyLimit, look_s: float = LOOK_S) -> None:
    """Run it until cancelled, once the process is ready. What is there by then is never looked at."""
    gc.set_threshold(MANY, *gc.get_threshold()[1:])
    while True:
        await asyncio.sleep(look_s)
        if not limit.running and gc.get_count()[0] >= WORTH_IT:
            gc.collect()
