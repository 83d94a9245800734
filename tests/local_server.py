"""An HTTP server that a test runs in a thread of its own."""

import threading
from contextlib import contextmanager


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
