"""A real vLLM server for slow tests; the executable is named by GUERDON_VLLM."""

import os
import socket
import subprocess
from contextlib import contextmanager

import pytest

VLLM = os.environ.get("GUERDON_VLLM")
NEEDS_VLLM = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(VLLM is None, reason="set GUERDON_VLLM to a vllm executable"),
]


@contextmanager
def vllm_server(folder, *arguments):
    """The address of a vLLM that serves a folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [VLLM, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *arguments]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Application startup complete" in line:
                break
        else:
            pytest.fail("".join(lines[-30:]))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)
