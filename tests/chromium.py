"""A page in headless Chromium, driven through the pipe of its debugging protocol: real keys, real time, real policy."""

import base64
import io
import json
import os
import shutil
import subprocess
import time

from PIL import Image

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab; a context manager that ends the browser."""

    def __init__(self, folder, width=1400, height=1000):
        here, out = os.pipe()
        there, into = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        flags += [f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]

        def pipes():
            os.dup2(there, 3)
            os.dup2(out, 4)

        high = [os.dup2(fd, fd + 40) for fd in (there, out)]  # so that 3 and 4 are free in the child
        os.close(there)
        os.close(out)
        there, out = high
        self.process = subprocess.Popen(
            [PROGRAM, *flags], preexec_fn=pipes, pass_fds=(3, 4), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(there)
        os.close(out)
        self.read, self.write = os.fdopen(here, "rb", buffering=0), os.fdopen(into, "wb", buffering=0)
        self.number, self.rest, self.session = 0, b"", None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.read.close()
        self.write.close()

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.write.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = self.read.read(1 << 20)
                assert more, "the browser has ended"
                self.rest += more
            one, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("(document.documentElement?.dataset.ready || document.documentElement?.dataset.error)")

    def js(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not (found := self.js(expression)):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)
        return found

    def wait_for_reload(self, expression):
        """As `wait`, where the page may be left while it is asked."""
        while True:
            try:
                return self.wait(expression)
            except AssertionError as error:
                if "navigated" not in str(error):
                    raise

    def key(self, key, code=0, **more):
        """Press and release a key; `more` is of both events, such as autoRepeat=True or modifiers=2 (Ctrl)."""
        text = "\r" if key == "Enter" else key
        extra = ({"text": text} if len(text) == 1 else {}) | more
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra)

    def type(self, text):
        for letter in text:
            self.key(letter)

    def dark(self, dark=True):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def pixels(self, selector):
        """An element as the screen shows it, in RGB."""
        box = self.js(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
        x, y = self.js("[scrollX, scrollY]")
        clip = {"x": box["x"] + x, "y": box["y"] + y, "width": box["width"], "height": box["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip)
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def picture(self, path, dark=False):
        self.dark(dark)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
