"""Heads whose fields two readers may take for different requests."""

import asyncio

from loadtests.exchange import Record, exchange

SINGLE = (
    *("Authorization: Bearer {key}", "Authorization: Bearer other", "Host: loadtests", "Host: a"),
    *("X-Api-Key: a", "Content-Type: text/plain", "Content-Length: 2", "Origin: http://a"),
    "Transfer-Encoding: chunked",
)
START = "POST /v1/completions HTTP/1.1"


async def fields(port: int, key: str, record: Record) -> None:
    """Fields that come twice, in both orders, and heads without a host."""
    usual = ("Host: loadtests", f"Authorization: Bearer {key}", "Content-Length: 2")

    def raw(lines: tuple[str, ...]) -> bytes:
        return "\r\n".join((START, *lines, "", "{}")).encode()

    for line in SINGLE:
        line = line.format(key=key)
        others = tuple(one for one in usual if one.split(":")[0] != line.split(":")[0])
        twice = (line, line) if len(others) == len(usual) else (line, *set(usual) - set(others))
        for order in ((*others, *twice), (*twice[::-1], *others)):
            record.judge(f"two of {line}", await exchange(port, raw(order)), (400,))
    record.judge("no host", await exchange(port, raw(usual[1:])), (400,))
    many = raw(usual[1:]) * 200
    await asyncio.gather(*(_once(port, many, record) for _ in range(20)))


async def _once(port: int, raw: bytes, record: Record) -> None:
    record.judge("two hundred heads without a host", await exchange(port, raw), (0, 400))
