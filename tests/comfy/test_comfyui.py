"""The server and its client, with a trivial pack of two nodes; other server tests stand on it."""

import pytest

from .comfyui import NEWEST, OLDEST, PromptFailedError, PromptRefusedError, Server, ServerError

PACK = """
import time
import comfy.model_management as management
from comfy_api.latest import ComfyExtension, io

class Echo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema("TrialEcho", inputs=[io.String.Input("text")],
                         outputs=[io.String.Output()], is_output_node=True)
    @classmethod
    def validate_inputs(cls, text):
        return "text is empty" if not text else True
    @classmethod
    def execute(cls, text):
        if text == "fail":
            raise ValueError("asked to fail")
        return io.NodeOutput(text, ui={"text": [text]})

class Sleep(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema("TrialSleep", inputs=[io.Float.Input("seconds")],
                         outputs=[io.String.Output()], is_output_node=True)
    @classmethod
    def execute(cls, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
            management.throw_exception_if_processing_interrupted()
        return io.NodeOutput("slept")

class Trial(ComfyExtension):
    async def get_node_list(self):
        return [Echo, Sleep]

async def comfy_entrypoint():
    return Trial()
"""


def echo(text: str) -> dict:
    return {"7": {"class_type": "TrialEcho", "inputs": {"text": text}}}


def sleep(seconds: float) -> dict:
    return {"8": {"class_type": "TrialSleep", "inputs": {"seconds": seconds}}}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack")
    (folder / "__init__.py").write_text(PACK)
    return folder


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def server(request, pack):
    with Server({"A pack ä": pack}, version=request.param) as running:
        yield running


@pytest.mark.comfy
def test_object_info_names_the_pack(server):
    assert server.object_info("TrialEcho")["python_module"] == "custom_nodes.A pack ä"
    assert "TrialSleep" in server.object_info()
    with pytest.raises(ServerError, match="no node Nowhere"):
        server.object_info("Nowhere")


@pytest.mark.comfy
def test_a_prompt_runs_and_its_events_arrive(server):
    with server.listen() as events:
        prompt_id = server.queue(echo("hällo"))
        assert events.wait_for("executed", prompt_id=prompt_id)["output"] == {"text": ["hällo"]}
    assert server.wait(prompt_id)["outputs"]["7"] == {"text": ["hällo"]}


@pytest.mark.comfy
def test_a_bad_input_is_refused_at_its_node(server):
    with pytest.raises(PromptRefusedError, match=r"node 7: .*text is empty") as caught:
        server.run(echo(""))
    assert list(caught.value.messages) == ["7"]


@pytest.mark.comfy
def test_an_unknown_node_is_refused(server):
    with pytest.raises(PromptRefusedError, match="Nowhere"):
        server.queue({"1": {"class_type": "Nowhere", "inputs": {}}})


@pytest.mark.comfy
def test_an_error_names_its_node(server):
    with pytest.raises(PromptFailedError, match=r"node 7 \(TrialEcho\): asked to fail"):
        server.run(echo("fail"))


@pytest.mark.comfy
def test_interrupt_ends_a_running_prompt(server):
    with server.listen() as events:
        prompt_id = server.queue(sleep(120))
        events.wait_for("executing", prompt_id=prompt_id, node="8")
        server.interrupt(prompt_id)
        events.wait_for("execution_interrupted", prompt_id=prompt_id, timeout_s=5)
    assert server.wait(prompt_id)["status"]["status_str"] == "error"


@pytest.mark.comfy
def test_free_is_taken_and_the_next_prompt_runs(server):
    server.free(unload_models=True, free_memory=True)
    assert server.run(echo("after"))["status"]["status_str"] == "success"


@pytest.mark.comfy
def test_upload_and_view(server, tmp_path):
    sound = tmp_path / "a sound.wav"
    sound.write_bytes(b"RIFF\r\n--x")
    name = server.upload(sound)
    assert server.view({"filename": name, "type": "input"}) == sound.read_bytes()


@pytest.mark.comfy
def test_a_server_that_cannot_start_says_why(pack):
    with pytest.raises(ServerError, match="no-such-flag"):
        Server({"p": pack}, flags=["--no-such-flag"]).start()


def test_a_missing_back_end_is_one_sentence():
    with pytest.raises(ServerError, match=r"no ComfyUI in .*make demo puts it there"):
        Server(version="0.0.0").start()
