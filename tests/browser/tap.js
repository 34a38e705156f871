// Listens in on a page, from outside: the product has no hook for it. Runs before the page's own
// scripts. Records what the sources play, what comes out behind fades and volume, what was asked of
// the sources (an insecure page has no sure tap), when sound arrived at the player, and this pack's
// events, some of which can be made to get lost.
"use strict";

window.taps = { sources: [], output: [], started: [] }; // of [frame, samples]
window.arrivals = []; // of [samples that are there, Infinity for all; the audio clock then, in frames]
window.messages = [];
window.lose = () => false;

const ports = [];
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
    if (to instanceof AudioDestinationNode) connect.call(this, inletsOf(this.context).output);
    if (this instanceof AudioBufferSourceNode) connect.call(this, inletsOf(this.context).sources);
    return connect.call(this, to, ...rest);
};
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when, ...rest) {
    window.taps.started.push([when * this.context.sampleRate, this.buffer.getChannelData(0)]);
    return start.call(this, when, ...rest);
};

/** Where the taps are fed; what listens behind them may come later. */
function inletsOf(context) {
    context.inlets ??= { sources: context.createGain(), output: context.createGain() };
    return context.inlets;
}

async function listen(context) {
    await context.audioWorklet?.addModule(URL.createObjectURL(new Blob([RECORDER], SCRIPT)));
    for (const [name, inlet] of Object.entries(inletsOf(context))) {
        const keep = (frame, samples) => window.taps[name].push([frame, samples]);
        connect.call(inlet, context.audioWorklet ? sure(context, keep) : unsure(context, keep));
    }
}

// Chromium gives a worklet the frame of the quantum before once more when the page holds the lock
// of the audio graph at that moment, as it does where a source ends and is taken away. It lags and
// never runs ahead, and no quantum is left out while sound passes: so they are counted.
const SCRIPT = { type: "text/javascript" };
const RECORDER = `registerProcessor("recorder", class extends AudioWorkletProcessor {
    constructor() {
        super();
        this.frame = -Infinity;
        this.port.onmessage = () => this.port.postMessage({});
    }
    process([[samples]]) {
        this.frame = Math.max(this.frame + 128, currentFrame);
        if (samples?.some((it) => it)) {
            this.port.postMessage({ frame: this.frame, samples: samples.slice() });
        }
        return true;
    }
})`;

function sure(context, keep) {
    const node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
    node.port.onmessage = ({ data }) => (data.samples ? keep(data.frame, data.samples) : node.flushed());
    ports.push(node);
    return node;
}

function unsure(context, keep) {
    const node = context.createScriptProcessor(16384, 1, 1);
    node.onaudioprocess = ({ inputBuffer, playbackTime }) => {
        const samples = inputBuffer.getChannelData(0).slice();
        keep(Math.round(playbackTime * context.sampleRate), samples);
    };
    connect.call(node, context.destination);
    return node;
}

/** Begin to listen to a page whose modules lie beside this one of the pack. */
window.prepareTaps = async (stage) => {
    window.context = (await import(stage)).contextOf(24000);
    await listen(window.context);
    const { PcmPlayer } = await import(new URL("pcm_player.mjs", new URL(stage, location)).href);
    for (const [method, there] of Object.entries({
        append: ({ length }) => length,
        finish: () => Infinity,
    })) {
        const original = PcmPlayer.prototype[method];
        PcmPlayer.prototype[method] = function (...args) {
            original.apply(this, args);
            const frame = window.context.currentTime * window.context.sampleRate;
            window.arrivals.push([there(this), frame]);
        };
    }
};

/** What a tap has recorded up to now; nothing is on its way any more. */
window.heard = async (name) => {
    await Promise.all(
        ports.map((node) => {
            const flushed = new Promise((resolve) => (node.flushed = resolve));
            node.port.postMessage("flush");
            return flushed;
        }),
    );
    return window.taps[name].map(([frame, samples]) => {
        const bytes = new Uint8Array(samples.buffer);
        let text = "";
        for (const byte of bytes) text += String.fromCharCode(byte);
        return [frame, btoa(text)];
    });
};

window.forget = () => {
    for (const it of [...Object.values(window.taps), window.arrivals, window.messages]) {
        it.length = 0;
    }
};

const NativeSocket = window.WebSocket;
window.WebSocket = class extends NativeSocket {
    constructor(...args) {
        super(...args);
        this.addEventListener("message", (event) => {
            if (!String(event.data).includes('"livevoice.preview"')) return;
            const told = JSON.parse(event.data).data;
            if (window.lose(told)) event.stopImmediatePropagation();
            else window.messages.push({ ...told, gotMs: Date.now() });
        });
    }
};
