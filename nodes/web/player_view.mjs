// What a person sees and touches of a player: waveform, buttons, time, level, one line of status.
//
// Plain elements, reachable by keyboard and named for screen readers; colours come from ComfyUI's
// theme (preview.css). Knows the player, not where its sound comes from.

import { levelAt, Waveform } from "./waveform.mjs";
import { toWav } from "./wav.mjs";

const SVG = {
    play: '<path d="M8 5.5v13l10.5-6.5z"/>',
    pause: '<path d="M7.5 5.5h3.2v13H7.5zM13.3 5.5h3.2v13h-3.2z"/>',
    stop: '<path d="M7 7h10v10H7z"/>',
    save: '<path d="M11 4h2v8.2l2.8-2.8 1.4 1.4L12 16l-5.2-5.2 1.4-1.4 2.8 2.8zM5 18h14v2H5z"/>',
    sound: '<path d="M4 9.5v5h3.5L12 18.5v-13L7.5 9.5zM14.5 8.2v7.6a4.2 4.2 0 0 0 0-7.6z"/>',
};
const VOLUME_KEY = "LiveVoice.volume";
/** What an arrow key moves the playhead by, in seconds. */
const STEP_S = 1;

export class PlayerView {
    /**
     * @param {import("./pcm_player.mjs").PcmPlayer} player
     * @param {() => string} status one line about the speech, in words.
     */
    constructor(player, status) {
        this._player = player;
        this._status = status;
        this.element = makeElement();
        const part = (name) => this.element.querySelector(`[data-part=${name}]`);
        this._parts = Object.fromEntries(
            ["wave", "toggle", "stop", "time", "level", "volume", "save", "status"].map((name) => [
                name,
                part(name),
            ]),
        );
        this._waveform = new Waveform(this._parts.wave.firstElementChild);
        this._connect();
        player.volume = readVolume();
        this._parts.volume.value = player.volume;
        player.addEventListener("change", () => this.refresh());
        new ResizeObserver(() => this.refresh()).observe(this._parts.wave);
        this.refresh();
    }

    /** Show another sound: the picture begins anew. */
    restart() {
        this._waveform.clear();
        this.refresh();
    }

    /** Draw with the next animation frame. */
    refresh() {
        this._frame ??= requestAnimationFrame(() => {
            this._frame = null;
            this._draw();
        });
    }

    _draw() {
        const player = this._player;
        const { state, chunks, length, position, sampleRate } = player;
        const expected = player.isComplete ? 0 : player.expectedS * sampleRate;
        const isMoving = this._waveform.draw({ chunks, length, expected, position });
        const isBusy = state === "playing" || state === "gathering" || state === "queued";
        const { toggle, stop, save, time, level, status, wave } = this._parts;
        this.element.dataset.state = state;
        setButton(toggle, isBusy ? "pause" : "play", isBusy ? "Pause" : "Play");
        toggle.disabled = state === "empty";
        stop.disabled = !isBusy && state !== "paused" && state !== "blocked";
        save.disabled = !length;
        setText(time, `${clock(position / sampleRate)} / ${clock(length / sampleRate)}`);
        setText(status, this._status());
        wave.setAttribute("aria-valuemax", Math.round(length / sampleRate));
        wave.setAttribute("aria-valuenow", Math.round(position / sampleRate));
        wave.setAttribute("aria-valuetext", `${clock(position / sampleRate)}`);
        const loud = state === "playing" ? levelAt(chunks, player.starts, position, sampleRate) : 0;
        level.style.setProperty("--level", loud.toFixed(3));
        if (isMoving || state === "playing") this.refresh();
    }

    _connect() {
        const { wave, toggle, stop, volume, save } = this._parts;
        toggle.addEventListener("click", () => this._toggle());
        stop.addEventListener("click", () => this._player.stop());
        save.addEventListener("click", () => this._save());
        volume.addEventListener("input", () => {
            this._player.volume = Number(volume.value);
            writeVolume(volume.value);
        });
        wave.addEventListener("pointerdown", (event) => this._seekTo(event));
        this.element.addEventListener("keydown", (event) => this._onKey(event));
        // The canvas below would drag the node, zoom or open its menu.
        for (const kind of ["pointerdown", "mousedown", "dblclick"]) {
            this.element.addEventListener(kind, (event) => event.stopPropagation());
        }
    }

    _toggle() {
        const { state } = this._player;
        if (state === "playing" || state === "gathering" || state === "queued") this._player.pause();
        else this._player.play();
    }

    _seekTo(event) {
        const { left, width } = this._parts.wave.getBoundingClientRect();
        const { length, isComplete, expectedS, sampleRate } = this._player;
        const span = isComplete ? length : Math.max(length, expectedS * sampleRate);
        this._player.seek(((event.clientX - left) / width) * span);
    }

    _onKey(event) {
        const { key, target } = event;
        const stepS = { ArrowLeft: -STEP_S, ArrowRight: STEP_S, Home: -Infinity, End: Infinity }[key];
        const { position, sampleRate } = this._player;
        if (target === this._parts.wave && stepS) {
            this._player.seek(position + stepS * sampleRate);
            event.preventDefault();
        } else if (target === this._parts.wave && (key === " " || key === "Enter")) {
            this._toggle();
            event.preventDefault();
        }
        // ComfyUI's shortcuts listen above: space pans, delete deletes the node. Tab must travel,
        // and combinations (queue, undo) stay ComfyUI's.
        if (key !== "Tab" && !event.ctrlKey && !event.metaKey) event.stopPropagation();
    }

    _save() {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(toWav(this._player.chunks, this._player.sampleRate));
        link.download = `speech ${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.wav`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    }
}

function makeElement() {
    const element = document.createElement("div");
    element.className = "livevoice-player";
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", "LiveVoice player");
    element.innerHTML = `
        <div data-part="wave" role="slider" tabindex="0" aria-label="Position" aria-valuemin="0">
            <canvas></canvas>
        </div>
        <div class="livevoice-controls">
            <button type="button" data-part="toggle"></button>
            <button type="button" data-part="stop">${icon("stop")}</button>
            <span data-part="time"></span>
            <span data-part="level" role="img" aria-label="Level"></span>
            <label title="Volume">${icon("sound")}
                <input type="range" data-part="volume" aria-label="Volume" min="0" max="1" step="0.01">
            </label>
            <button type="button" data-part="save">${icon("save")}</button>
        </div>
        <div data-part="status" role="status"></div>`;
    setButton(element.querySelector("[data-part=stop]"), "stop", "Stop");
    setButton(element.querySelector("[data-part=save]"), "save", "Download as WAV");
    return element;
}

function setButton(button, picture, name) {
    if (button.dataset.icon === picture) return;
    button.dataset.icon = picture;
    button.innerHTML = icon(picture);
    button.title = name;
    button.setAttribute("aria-label", name);
}

function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

function icon(name) {
    return `<svg viewBox="0 0 24 24" aria-hidden="true">${SVG[name]}</svg>`;
}

/** @param {number} s seconds. @returns {string} "1:02.3" */
function clock(s) {
    const tenths = Math.floor(s * 10 + 1e-6);
    const rest = (tenths % 600) / 10;
    return `${Math.floor(tenths / 600)}:${rest < 10 ? "0" : ""}${rest.toFixed(1)}`;
}

function readVolume() {
    const stored = Number(localStorage.getItem(VOLUME_KEY) ?? 1);
    return stored >= 0 && stored <= 1 ? stored : 1;
}

function writeVolume(value) {
    localStorage.setItem(VOLUME_KEY, value);
}
