"""What the scheduler costs: decisions over 10 to 1 000 workers and over 2 000 with 256 stores, and tokens relayed from
16 workers to 2 gateways.

The relay is a real scheduler process, alone on the first processor, between 16 workers that send a step of 16 tokens
as soon as the gateways have had an earlier one, and 2 gateways that check that every token comes once and in order;
they share the second processor. Story and ledger are on. The processor time of the scheduler per token is told beside
the rate, for the load generators may be what limits that.

    python benchmarks/relay.py [--json] [--seconds 5]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from relaying.decisions import decision_seconds
from relaying.gateways import CountingGateway
from relaying.workers import FINGERPRINT, ROWS, SteppingWorker, stepping_workers
from services.pb import session_pb2, session_pb2_grpc
from services.runtime.session import PROTOCOL, Terms
from services.runtime.session_pool import SessionPool

POOLS = (10, 100, 1000)
MANY_STORES = (2000, 256)
"""Workers and stores of one more case."""
DECISIONS = 500
WORKERS, GATEWAYS = 16, 2
CREDIT = 4
"""Steps that a worker may be ahead of what the gateways have had."""
WARM_SECONDS = 1.0
PROMPT = tuple(range(32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long tokens are relayed")
    parser.add_argument("--port", type=int, default=50_990, help="of the scheduler")
    asked = parser.parse_args()
    decisions = {size: decision_seconds(size, DECISIONS) for size in POOLS}
    workers, stores = MANY_STORES
    beside_stores = decision_seconds(workers, DECISIONS, stores)
    relayed = uvloop.run(relay(asked.port, asked.seconds))
    report = {
        "decision_seconds": {str(size): {"median": median, "p95": p95} for size, (median, p95) in decisions.items()},
        "decision_seconds_with_stores": {
            "workers": workers,
            "stores": stores,
            "median": beside_stores[0],
            "p95": beside_stores[1],
        },
        "relay": relayed,
    }
    if asked.json:
        print(json.dumps(report))
        return
    for size, (median, p95) in decisions.items():
        print(f"decision over {size:5} workers: {median * 1e3:.3f} ms median, {p95 * 1e3:.3f} ms p95")
    median, p95 = beside_stores
    print(f"decision over {workers} workers and {stores} stores: {median * 1e3:.3f} ms median, {p95 * 1e3:.3f} ms p95")
    print(f"relay: {relayed['tokens_per_second']:,.0f} tokens/s; ", end="")
    print(f"{relayed['scheduler_cpu_seconds_per_token'] * 1e6:.1f} us of the scheduler's processor a token")


async def relay(port: int, seconds: float) -> dict[str, float]:
    """Tokens per second through one scheduler process."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    stopping = asyncio.Event()
    async with AsyncExitStack() as stack:
        workers = await stack.enter_async_context(stepping_workers(WORKERS, CREDIT))
        process = stack.enter_context(scheduler(port, [worker.address for worker in workers], cores[0]))
        gateways = await stack.enter_async_context(connected(f"127.0.0.1:{port}", workers))
        for number in range(WORKERS * ROWS):
            gateways[number % GATEWAYS].start(number, PROMPT)
        async with asyncio.timeout(30):
            await asyncio.gather(*(worker.is_full.wait() for worker in workers))
        running = [asyncio.create_task(worker.run(stopping)) for worker in workers]
        await asyncio.sleep(WARM_SECONDS)
        began, before, spent = time.perf_counter(), sum(each.tokens for each in gateways), cpu_seconds(process.pid)
        await asyncio.sleep(seconds)
        took, tokens = time.perf_counter() - began, sum(each.tokens for each in gateways) - before
        cpu = cpu_seconds(process.pid) - spent
        stopping.set()
        await asyncio.gather(*running)
        async with asyncio.timeout(30):
            await asyncio.gather(*(gateway.is_over.wait() for gateway in gateways))
        assert sum(each.tokens for each in gateways) == ROWS * sum(worker.steps for worker in workers), (
            "tokens are lost"
        )
        assert all(gateway.segments for gateway in gateways), "the ledger is missing"
    return {
        "tokens_per_second": tokens / took,
        "scheduler_cpu_share": cpu / took,
        "scheduler_cpu_seconds_per_token": cpu / max(tokens, 1),
        "seconds": took,
        "workers": WORKERS,
        "rows": ROWS,
        "gateways": GATEWAYS,
    }


def scheduler(port: int, workers: list[str], core: int) -> "subprocess.Popen[bytes]":
    """A scheduler process on one processor; ends with the block that it is entered in."""
    prefix = "DIPTYCH_SCHEDULER__"
    environment = dict(os.environ) | {
        f"{prefix}LISTEN": f"127.0.0.1:{port}",
        f"{prefix}WORKERS": json.dumps(workers),
        f"{prefix}EXIT_WITH_PARENT": "true",
        f"{prefix}DRAIN_SECONDS": "0",
        f"{prefix}MAX_QUEUE": "1000",
        f"{prefix}SESSION_TIMEOUT": "30",
        f"{prefix}LOG_LEVEL": "WARNING",
    }
    return Ended(
        [sys.executable, "-m", "services.scheduler"],
        env=environment,
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


class Ended(subprocess.Popen):  # type: ignore[type-arg]
    """A process that is told to stop, and waited for, where its block ends."""

    def __exit__(self, *error: object) -> None:
        self.terminate()
        super().__exit__(*error)  # type: ignore[arg-type]


@asynccontextmanager
async def connected(scheduler_address: str, workers: list[SteppingWorker]) -> AsyncIterator[list[CountingGateway]]:
    """Gateways with a session each. What they have had gives the workers credit, in turn."""
    had = 0

    def told(tokens: int) -> None:
        nonlocal had
        before, had = had // ROWS, had + tokens
        for step in range(before, had // ROWS):
            workers[step % WORKERS].credit.release()

    async with AsyncExitStack() as stack:
        gateways = [CountingGateway(f"gateway-{number}", told) for number in range(GATEWAYS)]
        for gateway in gateways:
            hello = session_pb2.Hello(protocol=PROTOCOL, name=gateway.name, incarnation="life", fingerprint=FINGERPRINT)
            pool = SessionPool(
                session_pb2.Down,
                lambda channel: session_pb2_grpc.SessionStub(channel).Open,
                gateway,
                Terms(hello, 30.0),
                "",
            )
            await stack.enter_async_context(pool)
            pool.ensure(scheduler_address)
        async with asyncio.timeout(30):
            await asyncio.gather(*(gateway.is_open.wait() for gateway in gateways))
        yield gateways


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
