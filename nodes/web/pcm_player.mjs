// Plays mono PCM that may still be arriving, without a gap, a click or a repeat.
//
// Each chunk is an AudioBufferSourceNode that starts on an exact sample of the audio clock. The
// audio thread joins them, so a page that is busy for seconds does not disturb what is scheduled,
// and it works on insecure pages, where there is no AudioWorklet. (A worklet was weighed against
// it: it plays the same samples, and starves when the page's thread that feeds it is late.)
//
// A time of the clock is a double in seconds, and at 24 kHz one sample in seven has no double that
// means exactly it; a source that starts between two samples is interpolated. So all sources start
// on multiples of 1/64 s, which are exact; what is left of a chunk waits for the next one.
//
// The clock leaps: an audio thread that was held up catches up as fast as it can, by more than any
// lead. So sources are made ready first; only then is the clock read, and in the same breath they
// are started. Whoever would start too late has not been started, and nothing of it was heard.
//
// Graph: sources -> fade (hides cuts) -> volume -> output. Up to the fade samples are untouched.

import { Cushion } from "./cushion.mjs";
import { Lateness } from "./lateness.mjs";
import { awaitTurn, contextOf, isWaiting, leaveTurn, takeTurn } from "./stage.mjs";

/** Between asking the audio thread to start and the sample it starts on, in seconds. */
const LEAD_S = 0.02;
/** What the audio thread renders at once, in samples. */
const QUANTUM = 128;
/** Length of the fades at cuts (pause, stop, seek, running dry), in seconds. */
const FADE_S = 0.01;
/** Sources start on multiples of this part of a second. */
const GRAINS_HZ = 64;
/** Length of the longest source, in seconds. */
const BLOCK_S = 1;
/** How much sound is scheduled ahead, in seconds: more than a busy page ever stays away. */
const AHEAD_S = 20;
/** How long a context may take to start before it counts as blocked, in milliseconds. */
const UNBLOCK_MS = 400;

/**
 * States: `empty` nothing there · `gathering` waits for sound · `queued` another player sounds ·
 * `blocked` the browser wants a click first · `playing` · `paused` · `stopped` (also at the end).
 * Emits `change` whenever the state or the amount of sound changes.
 */
export class PcmPlayer extends EventTarget {
    /** @param {() => number} nowS the listener's clock in seconds; tests may bring another. */
    constructor(nowS = () => performance.now() / 1000) {
        super();
        this._nowS = nowS;
        this._volume = 1;
        this._silentAt = 0;
        this._lateness = new Lateness();
        this.reset();
    }

    /**
     * Forget the sound and get ready for another.
     * @param {number} sampleRate in Hz.
     * @param {number} expectedS estimated length in seconds, 0 for unknown.
     */
    reset(sampleRate = 24000, expectedS = 0) {
        this._silence();
        leaveTurn(this);
        this.sampleRate = sampleRate;
        this.expectedS = expectedS;
        this.chunks = [];
        this.length = 0; // samples
        this.isComplete = false;
        this.cushion = new Cushion(expectedS);
        this.starts = []; // first sample of each chunk
        this._position = 0; // samples; where playing goes on when nothing sounds
        this._wants = false; // somebody wants to hear it
        this._isBlocked = false;
        this._changed();
    }

    /** Add sound that was made before, all of it. */
    load(samples, sampleRate) {
        this.reset(sampleRate);
        this._add(samples);
        this.finish();
    }

    /**
     * Add a chunk of running speech.
     * @param {Float32Array} samples
     * @param {{sentS: number, speed: number}} measured see Cushion.arrive.
     */
    append(samples, { sentS, speed }) {
        this.cushion.arrive(this._nowS(), sentS, samples.length / this.sampleRate, speed);
        this._add(samples);
        this._advance();
    }

    /** No more will come. */
    finish() {
        this.isComplete = true;
        this._advance();
    }

    /** Play as soon as the cushion allows, after those who sound now. */
    playLive() {
        this._wants = true;
        awaitTurn(this);
        this._advance();
    }

    /** Play now, from where it stands; from the beginning when it stands at the end. */
    play() {
        if (this.isSounding) return;
        if (this.isComplete && this._position >= this.length) this._position = 0;
        this._wants = true;
        takeTurn(this);
        this._advance();
    }

    /** Fall silent and keep the place. */
    pause() {
        this._position = this.position;
        this._wants = false;
        this._silence();
        leaveTurn(this);
        this._changed();
    }

    /** Fall silent and go back to the beginning. */
    stop() {
        this.pause();
        this._position = 0;
        this._changed();
    }

    /** Go on playing, or stand, at a sample. */
    seek(sample) {
        const wasSounding = this.isSounding;
        this._silence();
        this._position = Math.max(0, Math.min(this.length, Math.round(sample)));
        if (wasSounding) this._advance();
        this._changed();
    }

    /** Loudness, 0 to 1. */
    get volume() {
        return this._volume;
    }

    set volume(value) {
        this._volume = value;
        this._out?.volume.gain.setTargetAtTime(value, this._context.currentTime, 0.01);
    }

    get isSounding() {
        return this._sources.length > 0;
    }

    /** The sample that is heard now, or at which playing would go on. */
    get position() {
        if (!this.isSounding) return this._position;
        const frame = this._context.currentTime * this.sampleRate;
        return Math.max(this._position, Math.min(this._scheduledEnd, Math.floor(frame - this._origin)));
    }

    get state() {
        if (this.isSounding) return "playing";
        if (this._wants) {
            if (isWaiting(this)) return "queued";
            return this._isBlocked ? "blocked" : "gathering";
        }
        if (!this.length) return "empty";
        return this._position > 0 && this._position < this.length ? "paused" : "stopped";
    }

    /** Called by the stage. */
    onTurn() {
        this._advance();
    }

    _add(samples) {
        if (!samples.length) return;
        this.starts.push(this.length);
        this.chunks.push(samples);
        this.length += samples.length;
    }

    /** Do what the moment allows: schedule what has arrived, or start. */
    _advance() {
        if (this.isSounding) this._join();
        else if (this._wants && !isWaiting(this)) {
            const readyS = (this.length - this._position) / this.sampleRate;
            this.cushion.pageIsLate(this._lateness.worstS);
            if (this.cushion.isReady(readyS, this.isComplete)) this._start();
            else if (this.isComplete) this._end();
        }
        this._changed();
    }

    /** Whether what is scheduled is about to end. */
    get _isEnding() {
        const endS = (this._origin + this._scheduledEnd) / this.sampleRate;
        return this._context.currentTime + LEAD_S > endS;
    }

    /** Whether the speech is scheduled to its end. */
    get _isWhole() {
        return this.isComplete && this._scheduledEnd === this.length;
    }

    _end() {
        this._position = this.length;
        this._wants = false;
        this._silence();
        leaveTurn(this);
    }

    _start() {
        this._context = contextOf(this.sampleRate);
        if (this._context.state !== "running") {
            this._unblock();
            return;
        }
        this._isBlocked = false;
        if (this._out?.fade.context !== this._context) this._out = this._makeOut();
        this._grain = this.sampleRate / GRAINS_HZ;
        const sources = this._prepare(this._position, AHEAD_S * this.sampleRate);
        const startS = Math.max(this._context.currentTime + LEAD_S, this._silentAt);
        const startFrame = Math.ceil((startS * this.sampleRate) / this._grain) * this._grain;
        this._origin = startFrame - this._position;
        this._scheduledEnd = this._position;
        this._fadeIn(startFrame / this.sampleRate);
        this._launch(sources);
    }

    /** Add what has arrived to what sounds; too late for that, it plays out and there is a pause. */
    _join() {
        const horizon = (this._context.currentTime + AHEAD_S) * this.sampleRate - this._origin;
        const sources = this._prepare(this._scheduledEnd, horizon - this._scheduledEnd);
        if (this._isEnding) sources.forEach((source) => source.disconnect());
        else this._launch(sources);
    }

    /** Start the context; until it runs the state is `gathering`, then perhaps `blocked`. */
    _unblock() {
        const context = this._context;
        if (this._isUnblocking) return;
        this._isUnblocking = true;
        const settle = () => {
            if (context.state !== "running") return;
            context.removeEventListener("statechange", settle);
            this._isUnblocking = false;
            this._advance();
        };
        context.addEventListener("statechange", settle);
        setTimeout(() => {
            this._isBlocked = context.state !== "running";
            this._isUnblocking = false;
            this._changed();
        }, UNBLOCK_MS);
        context.resume().catch(() => {});
    }

    _makeOut() {
        const fade = this._context.createGain();
        const volume = this._context.createGain();
        volume.gain.value = this._volume;
        fade.connect(volume).connect(this._context.destination);
        return { fade, volume };
    }

    /**
     * Make sources of what is there from a sample on (whole grains, or to the end); starts none.
     * @param {number} atLeast samples, if so many are there.
     */
    _prepare(from, atLeast) {
        const sources = [];
        for (let at = from; at < from + atLeast; ) {
            const left = this.length - at;
            const whole = this.isComplete ? left : Math.floor(left / this._grain) * this._grain;
            const n = Math.min(whole, BLOCK_S * this.sampleRate);
            if (!n) break;
            sources.push(this._makeSource(this._samples(at, n)));
            at += n;
        }
        return sources;
    }

    _makeSource(samples) {
        const source = this._context.createBufferSource();
        const buffer = this._context.createBuffer(1, samples.length, this.sampleRate);
        buffer.copyToChannel(samples, 0);
        source.buffer = buffer;
        source.connect(this._out.fade);
        source.onended = () => this._onSourceEnded(source);
        return source;
    }

    /** Start sources, one after the other behind what is scheduled. */
    _launch(sources) {
        const from = this._scheduledEnd;
        const starts = sources.map(({ buffer }) => {
            this._scheduledEnd += buffer.length;
            return (this._origin + this._scheduledEnd - buffer.length) / this.sampleRate;
        });
        this._keepOpen();
        // Backwards: when the first was in time, all were.
        for (let i = sources.length; i--; ) sources[i].start(starts[i]);
        const reached = this._context.currentTime * this.sampleRate + QUANTUM;
        if (sources.length && reached > this._origin + from) this._miss(sources, from);
        else this._sources.push(...sources);
    }

    /** The page was held up in that very breath, and nobody knows what was heard: begin again. */
    _miss(sources, from) {
        sources.forEach((source) => source.disconnect());
        this._scheduledEnd = from;
        if (this._sources.length) return; // plays out first
        this._position = from;
        setTimeout(() => this._advance());
    }

    /** A copy of n samples of the clip. */
    _samples(from, n) {
        const copy = new Float32Array(n);
        for (let at = this._chunkAt(from), done = 0; done < n; at++) {
            const skipped = from + done - this.starts[at];
            const part = this.chunks[at].subarray(skipped, skipped + n - done);
            copy.set(part, done);
            done += part.length;
        }
        return copy;
    }

    _onSourceEnded(source) {
        source.disconnect();
        if (!this._sources.includes(source)) return;
        this._sources = this._sources.filter((each) => each !== source);
        if (this._sources.length) return this._advance();
        this._position = this._scheduledEnd;
        if (this.isComplete && this._position >= this.length) {
            this._end();
            this._changed();
        } else {
            this.cushion.ranDry();
            this._advance();
        }
    }

    /** Fade out towards the end of what is scheduled, unless it is the end of the speech. */
    _keepOpen() {
        const gain = this._out.fade.gain;
        const nowS = this._context.currentTime;
        const endS = (this._origin + this._scheduledEnd) / this.sampleRate;
        if (nowS > endS - FADE_S) return; // on its way out already
        if (this._openS > nowS) gain.cancelScheduledValues(this._openS + 1e-6);
        else {
            gain.cancelScheduledValues(0);
            gain.setValueAtTime(1, nowS);
        }
        if (this._isWhole) return;
        gain.setValueAtTime(1, endS - FADE_S);
        gain.linearRampToValueAtTime(0, endS);
    }

    /** Come in softly, except at the beginning, which is heard as it is. */
    _fadeIn(startS) {
        const gain = this._out.fade.gain;
        gain.cancelScheduledValues(0);
        this._openS = startS;
        if (this._position === 0) {
            gain.setValueAtTime(1, startS);
            return;
        }
        this._openS += FADE_S;
        gain.setValueAtTime(0, startS);
        gain.linearRampToValueAtTime(1, this._openS);
    }

    /** Fade out what sounds and forget it. */
    _silence() {
        const sources = this._sources ?? [];
        this._sources = [];
        if (!sources.length) return;
        const nowS = this._context.currentTime;
        const gain = this._out.fade.gain;
        const value = gain.value;
        gain.cancelScheduledValues(0);
        gain.setValueAtTime(value, nowS);
        gain.linearRampToValueAtTime(0, nowS + FADE_S);
        this._silentAt = nowS + FADE_S;
        sources.forEach((source) => source.stop(this._silentAt));
    }

    /** Index of the chunk that holds a sample. */
    _chunkAt(sample) {
        let at = this.starts.length - 1;
        while (at > 0 && this.starts[at] > sample) at -= 1;
        return at;
    }

    _changed() {
        if (this._wants && !this.isComplete) this._lateness.watch();
        else this._lateness.rest();
        this.dispatchEvent(new Event("change"));
    }
}
