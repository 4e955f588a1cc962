"""Pieces of an answer go on at once while nothing is before them, and otherwise in their order."""

import asyncio

import httptools

from lanewise.router.exchange import Exchange

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """A connection that takes all and says nothing."""

    def writelines(self, data):
        pass

    def pause_reading(self):
        pass

    def is_closing(self):
        return False


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_order_is_kept_beside_a_task_that_sends():
    sent, takes = [], True

    def sink(body):
        if takes:
            sent.append(body)
        return takes

    async def run():
        nonlocal takes
        exchange = Exchange()
        exchange.connection_made(Wire())
        asking = asyncio.create_task(exchange.ask("GET", b"/", [], b""))
        await asyncio.sleep(0)
        exchange.data_received(HEAD + chunk(b"1"))
        await asking
        exchange.sink = sink
        assert await exchange.more() == b"1"
        exchange.data_received(chunk(b"2"))  # while the task sends the first
        assert sent == []
        assert await exchange.more() == b"2"
        waiting = asyncio.create_task(exchange.more())
        await asyncio.sleep(0)
        exchange.data_received(chunk(b"3") + chunk(b"4"))
        assert sent == [b"3", b"4"]
        assert not waiting.done()
        takes = False  # the client reads slowly
        exchange.data_received(chunk(b"5"))
        takes = True
        exchange.data_received(chunk(b"6"))
        assert await waiting == b"56"
        assert sent == [b"3", b"4"]
        exchange.data_received(b"0\r\n\r\n")
        assert exchange.is_over
        assert await exchange.more() == b""

    asyncio.run(run())


def test_the_next_request_of_a_connection_has_no_sink():
    async def run():
        exchange = Exchange()
        exchange.connection_made(Wire())
        exchange.sink = lambda _: True
        asking = asyncio.create_task(exchange.ask("GET", b"/", [], b""))
        await asyncio.sleep(0)
        assert isinstance(exchange._parser, httptools.HttpResponseParser)
        exchange.data_received(HEAD + chunk(b"1"))
        await asking
        assert await exchange.more() == b"1"

    asyncio.run(run())
