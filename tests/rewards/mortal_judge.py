"""A judge's endpoint in a process of its own: after so many replies it dies, in the middle of a request.

python mortal_judge.py PORT REPLIES LOG    REPLIES 0: it lives; LOG gets a line per reply that was sent
"""

import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

PORT, REPLIES, LOG = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
USAGE = {"prompt_tokens": 100, "completion_tokens": 20}
lock, sent = Lock(), 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global sent
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        with lock:
            if REPLIES and sent >= REPLIES:
                os._exit(9)
            sent += 1
            shown = re.findall(r"<response-\w+[^>]*>\n(.*?)\n</response", text, re.S)
            said = {str(k + 1): {"reason": "ones", "score": one.count("1")} for k, one in enumerate(shown)}
            choice = {"message": {"role": "assistant", "content": json.dumps(said)}, "finish_reason": "stop"}
            body = json.dumps({"choices": [choice], "usage": USAGE, "model": "m"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            with open(LOG, "a") as file:
                file.write(json.dumps(text) + "\n")

    def log_message(self, *args):
        """Say nothing."""


server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
print(server.server_port, flush=True)
server.serve_forever()
