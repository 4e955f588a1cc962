"""A server of a model that starts in a moment: completions whose words follow from the prompt."""

import asyncio
import hashlib
import json
import signal

WORD_S = 0.002
LEAK, LEAK_BYTES = "leak", 128 << 20  # a prompt that is never answered, and what it takes


def words_of(model: str, prompt: str) -> list[str]:
    """What a model says of a prompt: one to sixteen words."""
    digest = hashlib.sha256(f"{model}\n{prompt}".encode()).hexdigest()
    return [digest[at : at + 4] for at in range(0, 4 + 4 * int(digest[0], 16), 4)]


def serve(given: dict, address: str) -> None:
    """Answer on a socket until told to stop, and what has begun then."""
    asyncio.run(_Server(given["served_model_name"][0]).run(address.removeprefix("unix:")))


class _Server:
    def __init__(self, model: str) -> None:
        self._model = model
        self._answering: set[asyncio.Task] = set()

    async def run(self, path: str) -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        server = await asyncio.start_unix_server(self._connection, path)
        await stopping.wait()
        server.close()
        while self._answering:
            await asyncio.wait(self._answering)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                task = asyncio.create_task(self._answer(head.decode(), reader, writer))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
                await task
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        length = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
        body = await reader.readexactly(int(length[0].split(":")[1])) if length else b""
        if not head.startswith("POST"):
            card = b'{"data":[{}]}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(card), card))
            return
        prompt = json.loads(body)["prompt"]
        if prompt == LEAK:
            self._leaked = bytearray(b"x") * LEAK_BYTES
            await asyncio.Event().wait()
        words = words_of(self._model, prompt)
        kind = b"content-type: text/event-stream\r\ntransfer-encoding: chunked"
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % kind)
        for word in [*words, "[DONE]"]:
            event = f"data: {word}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(WORD_S)
        writer.write(b"0\r\n\r\n")
