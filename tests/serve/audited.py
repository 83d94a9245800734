"""A served model that writes down every file and socket that the server's process opens from then on.

`custom_backend: audited:make`, with `journal` in its options; the server itself is as always.
"""

import os
import sys

from foreign import VIDEO, Watching, brightness

SOCKETS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind", "urllib.")
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system", "ctypes.dlopen")


def make(settings):
    journal = os.open(settings.options["journal"], os.O_WRONLY | os.O_APPEND)

    def note(event, given):
        named = event == "open" and not isinstance(given[0], int)  # a number is a descriptor that is open already
        if named or event.startswith((*SOCKETS, *STARTS)):
            os.write(journal, f"{event} {given[0]!r}\n".encode("utf-8", "backslashreplace"))

    sys.addaudithook(note)
    return Watching(VIDEO, brightness)
