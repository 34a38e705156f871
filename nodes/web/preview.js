// The live player on LiveVoice Streaming Preview: ComfyUI's events and nodes on one side, tracks on
// the other.
//
// A track belongs to a place (workflow, execution id), not to a node object: ComfyUI makes new node
// objects whenever a workflow is opened again, and sound goes on when nobody looks.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { Track } from "./track.mjs";

const NODE = "LiveVoiceStreamingPreview";
const EVENT = "livevoice.preview";
const ROUTE = "/livevoice/preview";
const UI = "livevoice_preview";
const WIDGET = "livevoice_player";
const HEIGHT_PX = 148;

const tracks = new Map(); // place -> Track
const shown = new WeakMap(); // node -> {host: HTMLElement, track: Track}

app.registerExtension({
    name: "LiveVoice.Preview",
    setup() {
        addStyle();
        api.addEventListener(EVENT, ({ detail }) => onEvent(detail));
        api.addEventListener("executed", ({ detail }) => onOutput(detail.output));
        api.addEventListener("execution_interrupted", ({ detail }) => onInterrupted(detail));
        api.addEventListener("reconnected", catchUp);
        addEventListener("pagehide", () => tracks.forEach((track) => track.savePlace()));
        if (clientId()) catchUp();
        else api.addEventListener("status", catchUp, { once: true });
    },
    nodeCreated(node) {
        if (node.comfyClass === NODE) addPlayer(node);
    },
    afterConfigureGraph() {
        tracks.forEach(present);
    },
    onNodeOutputsUpdated(outputs) {
        Object.values(outputs).forEach(onOutput);
    },
});

function addStyle() {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = new URL("./preview.css", import.meta.url).href;
    document.head.append(link);
}

/** Put a player on a node; it shows the track of the node's place as soon as there is one. */
function addPlayer(node) {
    const host = document.createElement("div");
    host.className = "livevoice-host";
    node.addDOMWidget(WIDGET, WIDGET, host, {
        serialize: false,
        hideOnZoom: false,
        getMinHeight: () => HEIGHT_PX,
        getValue: () => "",
        setValue: () => {},
    });
    show(node, host, new Track(fetchMissed));
    const onRemoved = node.onRemoved;
    node.onRemoved = function (...args) {
        setTimeout(() => dropRemoved(node));
        return onRemoved?.apply(this, args);
    };
}

function show(node, host, track) {
    shown.set(node, { host, track });
    host.replaceChildren(track.view.element);
    track.view.refresh();
}

/** A node that was deleted falls silent; one that is only out of sight does not. */
function dropRemoved(node) {
    const { track } = shown.get(node);
    if (!track.run || track.run.workflow_id !== rootGraph().id) return;
    if (nodeAt(track.run.node_id)) return;
    track.hush();
    tracks.delete(placeOf(track.run));
}

/** Show a track on its node, when the page has that node now. */
function present(track) {
    const { workflow_id, node_id } = track.run;
    const id = rootGraph().id;
    if (workflow_id && id && workflow_id !== id) return;
    const node = nodeAt(node_id);
    const there = node && shown.get(node);
    if (there && there.track !== track) show(node, there.host, track);
}

/** The track of a run's place; the node's idle one when the place has none yet. */
function trackOf(run) {
    const place = placeOf(run);
    let track = tracks.get(place);
    if (!track) {
        const node = nodeAt(run.node_id);
        const idle = node && shown.get(node)?.track;
        track = idle && !idle.run ? idle : new Track(fetchMissed);
        tracks.set(place, track);
    }
    return track;
}

function begin(run, isLive) {
    const track = trackOf(run);
    track.begin(run, isLive);
    present(track);
    return track;
}

/** The track that has this run, or undefined. */
function running({ prompt_id, node_id }) {
    return [...tracks.values()].find(
        ({ run }) => run.prompt_id === prompt_id && run.node_id === node_id,
    );
}

function onEvent(event) {
    let track = running(event);
    if (!track) {
        // Without its opening the run's workflow is unknown; what was missed brings it.
        if (event.kind !== "start") return catchUp();
        track = begin(event, true);
    }
    track.push(event);
}

function onInterrupted({ prompt_id }) {
    for (const track of tracks.values()) if (track.run.prompt_id === prompt_id) track.hush();
}

/** A node's result is there: fresh, of a cached run, or of a workflow that was opened again. */
async function onOutput(output) {
    const run = output?.[UI]?.[0];
    if (!run || running(run)) return; // not ours, or the page has it
    const track = begin(run, false);
    const answer = await api.fetchApi(`/view?${new URLSearchParams(output.audio[0])}`);
    if (track.run === run) track.show(run, answer.ok ? await answer.arrayBuffer() : null);
}

/** Learn of this client's runs, and bring each up to date: after a reload or a reconnection. */
async function catchUp() {
    const { runs } = await ask({}).catch(() => ({ runs: null }));
    if (!runs) return;
    for (const run of runs) {
        const track = running(run) ?? begin(run, run.is_running);
        track.catchUp();
    }
    const isKnown = (run) => runs.some((each) => each.prompt_id === run.prompt_id);
    for (const track of tracks.values()) {
        if (track.isLive && !isKnown(track.run)) track.end("lost");
    }
}

async function fetchMissed({ prompt_id, node_id }, fromSeq) {
    return (await ask({ prompt_id, node_id, from: fromSeq })).events;
}

async function ask(query) {
    const search = new URLSearchParams({ client_id: clientId(), ...query });
    const answer = await api.fetchApi(`${ROUTE}?${search}`);
    if (!answer.ok) throw new Error(`${ROUTE}: ${answer.status}`);
    return answer.json();
}

function clientId() {
    return api.clientId ?? api.initialClientId ?? "";
}

function rootGraph() {
    return app.rootGraph ?? app.graph;
}

function placeOf({ workflow_id, node_id }) {
    return `${workflow_id ?? ""}/${node_id}`;
}

/** The node of an execution id, "5:4" being node 4 in the subgraph of node 5; else null. */
function nodeAt(executionId) {
    let [graph, node] = [rootGraph(), null];
    for (const id of String(executionId).split(":")) {
        node = graph?.getNodeById(id) ?? null;
        graph = node?.subgraph;
    }
    return node?.comfyClass === NODE ? node : null;
}
