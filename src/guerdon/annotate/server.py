"""The process behind the page: it listens, prints where, and ends on Ctrl-C or SIGTERM.

serve(session, "127.0.0.1", 18081)
"""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from guerdon.annotate.app import LIMITS, AnnotateLoad, build_app
from guerdon.annotate.session import Session
from guerdon.errors import ConfigError
from guerdon.serve.logs import log_to_stderr
from guerdon.serve.protocol import address, listen, say, server_config
from guerdon.settings.serve import is_loopback


class _Server(uvicorn.Server):
    """Uvicorn that says where it answers once it does, and ends quietly."""

    def __init__(self, config: uvicorn.Config, session: Session, load: AnnotateLoad) -> None:
        super().__init__(config)
        self._session, self._load = session, load

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and print a line for each person."""
        await super().startup(sockets)
        for where in [address(*one.getsockname()[:2]) for one in sockets or ()]:
            for token, person in self._session.tokens.items():
                say(f"{person}: {where}/#{token}")
            if not self._session.tokens:
                say(f"guerdon annotate {self._session.items.data} at {where}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first one ends the server, a second one at once."""
        self._load.draining = True
        self.force_exit = self.should_exit
        self.should_exit = True


def listening(host: str, port: int, *, has_tokens: bool) -> socket.socket:
    """The socket of the server, from before anything is written.

    Raises:
        ConfigError: the address cannot be used, or is one of other machines and there is no token.
    """
    if not has_tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is reachable from other machines: name those who judge, --people ann,bo", key="--host"
        )
    return listen(host, port)


def serve(session: Session, listener: socket.socket, host: str) -> None:
    """Serve until a signal comes."""
    log_to_stderr()
    if session.pictures is not None:
        session.pictures.start()
    load = AnnotateLoad()
    app = build_app(session, load, host=host, tokens=session.tokens)
    server = _Server(server_config(app, LIMITS, count=lambda status: None), session, load)
    server.run(sockets=[listener])
