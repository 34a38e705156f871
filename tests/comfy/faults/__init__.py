"""A custom node for tests: makes an engine fail once, at the place where a real one would."""

import sys

from comfy_api.latest import ComfyExtension, io

MODEL = io.Custom("LIVEVOICE_MODEL")
OUT_OF_MEMORY = "CUDA error: out of memory"
_ROWS = 5  # spoken before a generation fails


def fail_loading(engine):
    """The weights are there, the codec does not fit any more."""
    backends = sys.modules[type(engine).__module__].backends
    create_codec = backends.create_codec

    def broken(*_arguments):
        backends.create_codec = create_codec
        raise RuntimeError(OUT_OF_MEMORY)

    backends.create_codec = broken


def fail_speaking(engine, complaint):
    """Some rows come, the next one does not."""
    current, left = engine.current, list(range(_ROWS))

    def broken(epoch):
        if not left:
            del engine.current
            raise RuntimeError(complaint)
        left.pop()
        return current(epoch)

    engine.current = broken


class Fault(io.ComfyNode):
    """Passes a model on, prepared to fail once; ``nonce`` makes ComfyUI run it again."""

    @classmethod
    def define_schema(cls):
        faults = ["none", "load", "speak", "bug"]
        inputs = [MODEL.Input("model"), io.Combo.Input("fault", faults), io.Int.Input("nonce")]
        return io.Schema("TrialFault", inputs=inputs, outputs=[MODEL.Output()])

    @classmethod
    def execute(cls, model, fault, nonce):  # noqa: ARG003
        if fault == "load":
            fail_loading(model.engine)
        elif fault != "none":
            fail_speaking(model.engine, OUT_OF_MEMORY if fault == "speak" else "a bug")
        return io.NodeOutput(model)


class Faults(ComfyExtension):
    """The pack."""

    async def get_node_list(self):
        return [Fault]


async def comfy_entrypoint():
    return Faults()
