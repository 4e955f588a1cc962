"""What hurts below HTTP's requests: heads and bodies without end, slow and silent clients."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress

from loadtests.exchange import Answer, Record, exchange, head, parse
from loadtests.hostile.fields import fields

LIMIT_S = 60.0
POUR_S = 15.0
OPEN = -1  # no status: a connection that should have been closed
HEAD_BYTES = 64 << 20
PIECE = 64 << 10
BODY_BYTES = 7_900_000
BODIES = 100
SLOW_CONNECTIONS = 1_000
HOLD_S = 10.0  # for connections that only wait: as long as the rest is watched beside them
# A server may close a connection on which it has no whole request: it cannot always say why, as
# who is still sending may never read it.
SHORT = (0, 408, 400, 413, 414, 431)
FORGED = "/v1/models%0d%0aINFO%20forged"

Attack = Callable[[int, str, Record], Coroutine[None, None, None]]


async def heads(port: int, key: str, record: Record) -> None:
    """Heads that do not end, in one piece or many, and what else has no bound before the body."""
    get = b"GET /v1/models HTTP/1.1\r\nHost: loadtests\r\n"
    small = b"".join(b"x-%d: %s\r\n" % (i, b"v" * 90) for i in range(1_000))
    chunk = head("/v1/completions", None, key)
    attacks = {
        "one header of 64 MB": (get + b"x: ", b"a" * PIECE),
        "headers of 64 MB": (get, small),
        "a header's name of 64 MB": (get, b"a" * PIECE),
        "a path of 64 MB": (b"GET /", b"a" * PIECE),
        "a method of 64 MB": (b"G", b"E" * PIECE),
        "a chunk's extension of 64 MB": (chunk + b"5;x=", b"a" * PIECE),
        "a chunk's size of 64 MB": (chunk, b"0" * PIECE),
        "trailers of 64 MB": (chunk + b"2\r\n{}\r\n0\r\n", small),
    }
    for what, (begin, piece) in attacks.items():
        answer = await _pour(port, begin, piece)
        record.judge(what, answer, SHORT)
    raw = json.dumps({"prompt": "x" * 100_000, "max_tokens": 1}).encode()
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in raw) + b"0\r\n\r\n"
    record.judge("chunks of one byte", await exchange(port, chunk + body), (200, 400, 413))
    await _expect(record, port, "bytes that are no HTTP", b"\x16\x03\x01\x02" * 9_000, SHORT)
    await _expect(record, port, "2,000 requests at once", _pipelined(2_000), (200, 401, *SHORT))


def _pipelined(count: int) -> bytes:
    get = b"GET /v1/models HTTP/1.1\r\nHost: loadtests\r\n"
    return (get + b"\r\n") * (count - 1) + get + b"Connection: close\r\n\r\n"


async def _expect(
    record: Record, port: int, what: str, raw: bytes, accepted: tuple[int, ...]
) -> None:
    try:
        answer = await exchange(port, raw, LIMIT_S)
    except TimeoutError:
        record.problems.append(f"{what}: still open after {LIMIT_S:g} s")
    else:
        record.judge(what, answer, accepted)


async def _pour(port: int, begin: bytes, piece: bytes) -> Answer:
    """Send ``piece`` after ``begin`` until an answer comes, the connection closes or 64 MB went."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read(1 << 16))
    try:
        async with asyncio.timeout(POUR_S):
            sent = len(begin)
            with suppress(ConnectionError):
                writer.write(begin)
                while sent < HEAD_BYTES and not answer.done():
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                    sent += len(piece)
            return parse(await answer)
    except ConnectionError:
        return Answer(0, {}, b"")
    except TimeoutError:
        return Answer(OPEN, {}, b"(taken, and still open)", complete=False)
    finally:
        answer.cancel()
        writer.close()


async def _held(
    port: int, count: int, sends: Callable[[int], Iterator[bytes]], seconds: float
) -> list[Answer | None]:
    """Connections that send what ``sends`` yields, then wait; None for one that is still open."""

    async def one(number: int) -> Answer | None:
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                reading = asyncio.create_task(reader.read())
                try:
                    for piece in sends(number):
                        if reading.done():
                            break
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(0 if len(piece) > 1 else 1.0)
                    return parse(await reading)
                finally:
                    reading.cancel()
                    writer.close()
        except TimeoutError:
            return None
        except OSError:
            return Answer(0, {}, b"")

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def _pieces(begin: bytes, size: int) -> Iterator[bytes]:
    yield begin
    for _ in range(size // PIECE):
        yield b" " * PIECE


def _drops(begin: bytes) -> Iterator[bytes]:
    yield begin
    while True:
        yield b"x"  # one a second


async def bodies(port: int, key: str, record: Record) -> None:
    """A hundred bodies of 7.9 MB that never end."""
    announced = head("/v1/completions", 8_000_000, key)
    got = await _held(port, BODIES, lambda _: _pieces(announced, BODY_BYTES), HOLD_S)
    _count(record, "an unfinished body", got)
    got = await _held(
        port, BODIES, lambda _: _pieces(head("/v1/completions", 8_000_000), BODY_BYTES), HOLD_S
    )
    _count(record, "an unfinished body without a key", got, (*SHORT, 401))


async def slow(port: int, key: str, record: Record) -> None:
    """A thousand connections that send a byte a second, or nothing."""
    begin = b"GET /v1/models HTTP/1.1\r\nHost: loadtests\r\nx: "
    body = head("/v1/completions", 1_000_000, key)
    starts = (begin, body, b"", b"G")
    got = await _held(
        port, SLOW_CONNECTIONS, lambda number: _drops(starts[number % len(starts)]), HOLD_S
    )
    _count(record, "a slow connection", got)


async def storm(port: int, _: str, record: Record) -> None:
    """Connections that close or reset at once."""
    for _round in range(20):
        opened = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port) for _ in range(100)),
            return_exceptions=True,
        )
        for one in opened:
            if isinstance(one, BaseException):
                record.outcomes["refused"] += 1
                continue
            record.outcomes["closed by us"] += 1
            one[1].transport.abort()
            with suppress(OSError):
                await one[1].wait_closed()


async def deaf(port: int, key: str, record: Record) -> None:
    """Clients that ask for long streams and never read."""
    fields = {"prompt": "The sea", "max_tokens": 200, "n": 8, "stream": True, "ignore_eos": True}
    raw = json.dumps(fields | {"logprobs": 20}).encode()
    writers = []
    for _ in range(8):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(head("/v1/completions", len(raw), key) + raw)
        writers.append(writer)
    await asyncio.sleep(HOLD_S)
    for writer in writers:
        writer.transport.abort()
        record.outcomes["closed by us"] += 1


async def forged(port: int, key: str, record: Record) -> None:
    """Targets and headers that would write lines of their own into a log."""
    for path in (
        FORGED,
        "/v1/models/%1b[2J%0aINFO%20forged",
        "/%0aINFO%20forged?a=%0aINFO%20forged",
    ):
        raw = f"GET {path} HTTP/1.1\r\nHost: loadtests\r\nConnection: close\r\n"
        raw += f"Authorization: Bearer {key}\r\nX-Request-Id: a%0aINFO forged\r\n\r\n"
        record.judge(path, await exchange(port, raw.encode()), (400, 404))


def _count(
    record: Record, what: str, got: list[Answer | None], accepted: tuple[int, ...] = SHORT
) -> None:
    for answer in got:
        if answer is None:
            record.outcomes["open in the end"] += 1
        else:
            record.judge(what, answer, accepted)


WIRE: dict[str, Attack] = {
    "heads": heads,
    "unfinished bodies": bodies,
    "slow connections": slow,
    "connection storm": storm,
    "deaf clients": deaf,
    "forged log lines": forged,
    "fields of heads": fields,
}
