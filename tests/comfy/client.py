"""An HTTP and websocket client for a ComfyUI server: the requests that a browser would send.

Knows nothing of processes (`comfyui.py` starts one) nor of UI workflows (`workflow.py` turns them
into prompts). Standard library only, except for `Client.listen`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

Json = dict[str, Any]
_REQUEST_TIMEOUT_S = 60.0


class ServerError(RuntimeError):
    """The server did not start, died, or did not answer in time."""


class PromptRefusedError(ValueError):
    """The server refused a prompt before running it.

    Attributes:
        messages: node id → what is wrong there; key ``""`` for the prompt as a whole.
    """

    def __init__(self, answer: Json) -> None:
        self.messages = _refusal(answer)
        super().__init__("; ".join(f"node {k}: {v}" if k else v for k, v in self.messages.items()))


class PromptFailedError(RuntimeError):
    """A prompt ended with an error or an interrupt.

    Attributes:
        entry: its history entry.
    """

    def __init__(self, entry: Json) -> None:
        self.entry = entry
        super().__init__("; ".join(errors(entry)) or "the prompt failed without a message")


class Client:
    """What a browser can ask of the server at ``url``."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.client_id = uuid.uuid4().hex
        # A proxy named in the environment must not get loopback requests.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def queue(self, prompt: Json, *, workflow: Json | None = None) -> str:
        """Queue an API-format prompt and return its id; raises `PromptRefusedError`."""
        body: Json = {"prompt": prompt, "client_id": self.client_id}
        if workflow is not None:
            body["extra_data"] = {"extra_pnginfo": {"workflow": workflow}}
        try:
            return self.post("/prompt", body)["prompt_id"]
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
            raise PromptRefusedError(json.loads(error.read())) from None

    def wait(self, prompt_id: str, *, timeout_s: float = 300.0) -> Json:
        """Wait for a prompt's end, good or bad, and return its history entry."""
        return self.poll(
            lambda: self.get(f"/history/{prompt_id}").get(prompt_id),
            f"prompt {prompt_id} has not ended",
            timeout_s=timeout_s,
        )

    def run(self, prompt: Json, *, timeout_s: float = 300.0) -> Json:
        """Queue, wait, return the history entry.

        Raises:
            PromptRefusedError: it was not taken.
            PromptFailedError: it ended with an error or an interrupt.
        """
        entry = self.wait(self.queue(prompt), timeout_s=timeout_s)
        if entry["status"]["status_str"] != "success":
            raise PromptFailedError(entry)
        return entry

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Interrupt whatever runs, or only the prompt named."""
        self.post("/interrupt", {} if prompt_id is None else {"prompt_id": prompt_id})

    def free(self, *, unload_models: bool = False, free_memory: bool = False) -> None:
        """Ask for models (and caches) to be dropped; the worker does it after this returns."""
        self.post("/free", {"unload_models": unload_models, "free_memory": free_memory})

    def object_info(self, node_id: str | None = None) -> Json:
        """Description of one node (its own dict), or of all nodes by id."""
        if node_id is None:
            return self.get("/object_info")
        answer = self.get(f"/object_info/{urllib.parse.quote(node_id)}")
        if node_id not in answer:
            raise ServerError(f"the server has no node {node_id}{self.trouble()}")
        return answer[node_id]

    def upload(self, path: Path) -> str:
        """Put a file into the input folder and return the name that a loader node takes."""
        mark = uuid.uuid4().hex
        head = f'form-data; name="image"; filename="{path.name}"'
        body = f"--{mark}\r\nContent-Disposition: {head}\r\n\r\n".encode()
        body += path.read_bytes() + f"\r\n--{mark}--\r\n".encode()
        kind = f"multipart/form-data; boundary={mark}"
        return json.loads(self.request("/upload/image", body, content_type=kind))["name"]

    def view(self, file: Mapping[str, str]) -> bytes:
        """Content of an output file, named by the dict that the history carries."""
        return self.request(f"/view?{urllib.parse.urlencode(file)}")

    def get(self, path: str) -> Any:
        """JSON answer of a GET."""
        return json.loads(self.request(path))

    def post(self, path: str, body: Json) -> Any:
        """JSON answer of a POST of JSON; None for an empty answer."""
        answer = self.request(path, json.dumps(body).encode())
        return json.loads(answer) if answer else None

    def request(
        self, path: str, body: bytes | None = None, *, content_type: str = "application/json"
    ) -> bytes:
        """Answer of a GET, of a POST when there is a body; raises `urllib.error.HTTPError`."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": content_type})
        with self._opener.open(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            return answer.read()

    @contextlib.contextmanager
    def listen(self) -> Iterator[Events]:
        """Collect the websocket events of this client's prompts while the block runs."""
        events = Events(f"{self.url}/ws?clientId={self.client_id}")
        try:
            events.wait_for("status")
            yield events
        finally:
            events.close()

    def poll(self, probe: Callable[[], Any], complaint: str, *, timeout_s: float) -> Any:
        """First true answer of ``probe``, asked ever more slowly; raises `ServerError`."""
        end = time.monotonic() + timeout_s
        pause_s = 0.02
        while not (found := probe()):
            if time.monotonic() > end or not self.is_running:
                raise ServerError(f"{complaint} after {timeout_s:.0f} s{self.trouble()}")
            time.sleep(pause_s)
            pause_s = min(0.25, pause_s * 1.5)
        return found

    @property
    def is_running(self) -> bool:
        """Whether waiting still makes sense; a client that owns no process cannot know."""
        return True

    def trouble(self) -> str:
        """What an error message should say beyond its own sentence."""
        return ""


class Events:
    """What a websocket says, collected by a thread: `seen` is a list of (type, data)."""

    def __init__(self, url: str) -> None:
        self.seen: list[tuple[str, Json]] = []
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._reading = self._loop.create_task(self._read(url))
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._reading])
        self._thread.start()

    def wait_for(self, kind: str, *, timeout_s: float = 60.0, **fields: Any) -> Json:
        """Data of the first event of a type whose data has these fields; waits for it.

        Raises:
            ServerError: it does not come.
        """

        def find() -> tuple[Json] | None:
            for seen_kind, data in self.seen:
                if seen_kind == kind and all(data.get(k) == v for k, v in fields.items()):
                    return (data,)
            return None

        with self._news:
            found = self._news.wait_for(find, timeout_s)
        if found is None:
            kinds = ", ".join(sorted({seen_kind for seen_kind, _ in self.seen}))
            raise ServerError(f"no {kind} event with {fields} in {timeout_s:.0f} s; seen: {kinds}")
        return found[0]

    def close(self) -> None:
        """Hang up and join the thread; idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._reading.cancel)
            self._thread.join()
        self._loop.close()

    async def _read(self, url: str) -> None:
        import aiohttp  # ComfyUI requires it; this file is also imported before it is there

        with contextlib.suppress(asyncio.CancelledError):
            async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        event = json.loads(message.data)
                        with self._news:
                            self.seen.append((event["type"], event["data"]))
                            self._news.notify_all()


def errors(entry: Json) -> list[str]:
    """What went wrong in a history entry, one line each: ``node 3 (LiveVoiceX): the message``."""
    lines = []
    for kind, detail in entry["status"]["messages"]:
        place = f"node {detail.get('node_id')} ({detail.get('node_type')})"
        if kind == "execution_error":
            lines.append(f"{place}: {str(detail['exception_message']).strip()}")
        elif kind == "execution_interrupted":
            lines.append(f"{place}: interrupted")
    return lines


def files(entry: Json, kind: str = "audio") -> list[dict[str, str]]:
    """Output files of one kind in a history entry, in the form that `Client.view` takes."""
    return [file for output in entry["outputs"].values() for file in output.get(kind, ())]


def _refusal(answer: Json) -> dict[str, str]:
    def sentence(error: Json) -> str:
        return ": ".join(part for part in (error["message"], error.get("details")) if part)

    nodes = {
        node: "; ".join(sentence(error) for error in found["errors"])
        for node, found in (answer.get("node_errors") or {}).items()
    }
    return nodes or {"": sentence(answer["error"])}
