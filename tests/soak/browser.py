"""Headless Chromium, driven over its debugging pipe: keys are pressed, and pages opened without scripts or printed.

Only what the checks need of the DevTools protocol; a message is JSON that ends with a zero byte.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ANSWER_SECONDS = 60.0
_KEYS = {"Tab": 9, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13}


class Browser:
    """One tab.  Use it with `with`; what it started ends with it."""

    def __init__(self, folder: Path):
        assert CHROMIUM
        (low, self._out), (self._in, also_low) = os.pipe(), os.pipe()
        from_us, to_us = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (low, also_low))  # none of them 3 or 4
        words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        shell = f'exec "$@" 3<&{from_us} 4>&{to_us} {from_us}<&- {to_us}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (low, also_low, from_us, to_us):
            os.close(fd)
        self._rest, self._number, self._session, self._events = b"", 0, "", list[dict[str, Any]]()

    def __enter__(self) -> Browser:
        tabs = self.ask("Target.getTargets")["targetInfos"]
        tab = next(t["targetId"] for t in tabs if t["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self.ask("Page.enable")
        self.ask("Runtime.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._out)
        os.close(self._in)

    def ask(self, method: str, **words: Any) -> dict[str, Any]:
        """What Chromium answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": words}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            found = self._next(until)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self._events.append(found)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._in, 1 << 20) if ready else b""
            assert more, "Chromium does not answer"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, address: str, scripts: bool = True) -> None:
        """A page, loaded completely."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.ask("Page.navigate", url=address)
        until = time.monotonic() + ANSWER_SECONDS
        while not any(e.get("method") == "Page.loadEventFired" for e in self._events):
            self._events.append(self._next(until))

    def window(self, width: int, height: int = 900, media: str = "") -> None:
        """The size of the window in CSS pixels, and the medium (`print`)."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", media=media)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        made = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def press(self, key: str, shift: bool = False) -> None:
        """A key, down and up."""
        words = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": 8 if shift else 0}
        self.ask("Input.dispatchKeyEvent", type="rawKeyDown", **words)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **words)
