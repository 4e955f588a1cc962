"""An MCP server over streamable HTTP: two tools, one page of the list each."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "weather", "description": "The weather of a city", "inputSchema": CITY},
    {"name": "fail", "inputSchema": {"type": "object"}},
]
SESSION = "session-1"


@contextmanager
def mcp_server(origin: str = "*") -> Iterator[tuple[str, list[dict]]]:
    """Its address, and the messages that came; pages of ``origin`` may read its answers."""
    messages: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_OPTIONS(self):
            self.answer(204, b"", "text/plain")

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            messages.append(message)
            assert self.headers["accept"] == "application/json, text/event-stream"
            if message["method"] != "initialize":
                assert self.headers["mcp-session-id"] == SESSION
                assert self.headers["mcp-protocol-version"] == "2025-03-26"
            if "id" not in message:
                self.answer(202, b"", "text/plain")
                return
            made = result_of(message["method"], message["params"])
            data = json.dumps({"jsonrpc": "2.0", "id": message["id"], **made})
            if message["method"] != "tools/call":
                self.answer(200, data.encode(), "application/json")
                return
            told = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
            events = f"event: message\ndata: {told}\n\nevent: message\ndata: {data}\n\n"
            self.answer(200, events.encode(), "text/event-stream")

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("access-control-allow-origin", origin)
            self.send_header("access-control-allow-headers", "*")
            self.send_header("access-control-expose-headers", "mcp-session-id")
            self.send_header("mcp-session-id", SESSION)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp", messages
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def result_of(method: str, params: dict) -> dict:
    """What a request gets beside its id."""
    if method == "initialize":
        info = {"name": "toy", "version": "1"}
        made = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
        return {"result": made}
    if method == "tools/list":
        if "cursor" not in params:
            return {"result": {"tools": TOOLS[:1], "nextCursor": "second"}}
        return {"result": {"tools": TOOLS[1:]}}
    if params["name"] == "fail":
        return {"error": {"code": -32603, "message": "no <i>luck</i>"}}
    text = {"type": "text", "text": f"sunny in {params['arguments']['city']}"}
    return {"result": {"content": [text, {"type": "image", "data": "", "mimeType": "image/png"}]}}
