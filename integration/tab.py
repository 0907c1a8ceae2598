"""A page in a browser, by Chrome's DevTools protocol over pipes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from integration.machine import until


class Tab:
    """A page in a browser, in which expressions of JavaScript are evaluated.

    ``requests`` has the addresses that the page asked for, ``complaints`` what stands in its console as an error or a warning.
    """

    def __init__(self, browser: str) -> None:
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        shell = f'exec "$0" --headless --no-sandbox --disable-gpu --remote-debugging-pipe 3<&{to_read} 4>&{to_write}'
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", shell, browser], pass_fds=(to_read, to_write), **quiet)
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number = b"", 0
        self._session: dict[str, str] = {}
        self._target = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def open(self, address: str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a page in the place of the one before."""
        self._session, before = {}, self._target
        target = self._target = self._call("Target.createTarget", url="about:blank")["targetId"]
        if before:
            self._call("Target.closeTarget", targetId=before)
        self.requests, self.complaints = [], []
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.scheme("dark" if dark else "light")
        self._call("Page.navigate", url=address)

    def scheme(self, name: str) -> None:
        """Prefer light or dark pages."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str) -> None:
        """Press a key: ``Tab``, ``Enter``."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, **about)

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def evaluate(self, expression: str) -> Any:
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, element: str) -> str:
        """The text of the element with the id, as it is seen."""
        return str(self.evaluate(f"document.getElementById('{element}').innerText"))

    def each(self, elements: str, value: str) -> list[Any]:
        """The value of an expression for each element, called ``it``, that a selector has."""
        every = f"[...document.querySelectorAll({json.dumps(elements)})]"
        return list(self.evaluate(f"{every}.map(it => {value})"))

    def shows(self, element: str, *words: str) -> None:
        """Assert that words are seen in the element with the id."""
        text = self.text(element)
        for word in words:
            assert word in text, (word, text)

    def wait(self, condition: str) -> None:
        ready = 'location.href !== "about:blank" && document.readyState === "complete"'
        try:
            until(condition, lambda: self.evaluate(f"{ready} && {condition}"), pause_s=0.05)
        except AssertionError as error:
            error.add_note(f"requests: {self.requests}; complaints: {self.complaints}")
            raise

    def wait_for(self, element: str, words: str) -> None:
        """Wait until the words are in the element with the id."""
        self.wait(f"document.getElementById('{element}').textContent.includes({json.dumps(words)})")

    def close(self) -> None:
        os.close(self._write)
        self._process.wait(30)
        os.close(self._read)

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        call = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(call).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._read, 1 << 16)
                assert more, "the browser has ended"
                self._rest += more
            text, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if self._session.get("sessionId") == answer.get("sessionId"):
                self._event(answer)

    def _event(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
