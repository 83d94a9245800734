"""An HTTP server that a test runs in a thread of its own."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer(ThreadingHTTPServer):
    """A server at a free port of this machine that writes nothing to stderr."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.lock = threading.Lock()

    def handle_error(self, request, client_address):
        """A client that disconnects is not a failure of a test."""


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no line per request."""

    def log_message(self, *_):
        pass


@contextmanager
def running(server):
    """The server, answering until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
