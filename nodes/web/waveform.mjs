// Draws the waveform: bars that appear as the sound arrives, and how far it has been heard.

/** Peaks are kept at this resolution, in samples; a bar joins as many as its width covers. */
const PEAK_SAMPLES = 240;
const BAR_PX = 2;
const GAP_PX = 1;
/** Share of the remaining way that the picture moves in a frame, so that bars grow smoothly. */
const EASE = 0.16;
/** Speech that peaks here fills the height; what is louder is cut off there. */
const HEADROOM = 0.4;

export class Waveform {
    /** @param {HTMLCanvasElement} canvas drawn in the CSS colours `--heard`, `--ready`, `--coming`. */
    constructor(canvas) {
        this._canvas = canvas;
        this._still = matchMedia("(prefers-reduced-motion: reduce)");
        this.clear();
    }

    /** Forget the sound. */
    clear() {
        this._peaks = [];
        this._nChunks = 0;
        this._carry = [];
        this._shown = 0; // samples drawn
        this._span = 0; // samples that the width stands for
    }

    /**
     * Draw one picture.
     * @param {{chunks: Float32Array[], length: number, expected: number, position: number}} sound
     *     in samples; `expected` is the estimated length while more is coming, else 0.
     * @returns {boolean} whether the picture is still moving.
     */
    draw({ chunks, length, expected, position }) {
        for (; this._nChunks < chunks.length; this._nChunks++) this._addPeaks(chunks[this._nChunks]);
        const span = Math.max(length, expected, 1);
        this._shown = this._towards(this._shown, length);
        this._span = this._span ? this._towards(this._span, span) : span;
        this._paint(position, length);
        return this._shown !== length || this._span !== span;
    }

    _towards(value, goal) {
        const next = value + (goal - value) * EASE;
        return this._still.matches || Math.abs(goal - next) < PEAK_SAMPLES ? goal : next;
    }

    _addPeaks(samples) {
        let peak = this._carry.length ? this._carry[0] : 0;
        let n = this._carry.length ? this._carry[1] : 0;
        for (const sample of samples) {
            peak = Math.max(peak, Math.abs(sample));
            if (++n === PEAK_SAMPLES) {
                this._peaks.push(peak);
                [peak, n] = [0, 0];
            }
        }
        this._carry = [peak, n];
    }

    _paint(position, length) {
        const canvas = this._canvas;
        const scale = devicePixelRatio || 1;
        const [width, height] = [canvas.clientWidth, canvas.clientHeight];
        if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
        if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
        const pen = canvas.getContext("2d");
        pen.setTransform(scale, 0, 0, scale, 0, 0);
        pen.clearRect(0, 0, width, height);
        const style = getComputedStyle(canvas);
        const colours = ["--heard", "--ready", "--coming"].map((name) => style.getPropertyValue(name));
        const n = Math.floor((width + GAP_PX) / (BAR_PX + GAP_PX));
        for (let bar = 0; bar < n; bar++) {
            const [from, to] = [bar, bar + 1].map((edge) => (edge / n) * this._span);
            const isThere = length > 0 && from < this._shown;
            const reach = isThere ? Math.min(1, this._peak(from, to) / HEADROOM) ** 0.7 : 0;
            const barHeight = Math.max(BAR_PX, reach * (height - 4));
            pen.fillStyle = colours[!isThere ? 2 : from < position ? 0 : 1];
            pen.beginPath();
            pen.roundRect(bar * (BAR_PX + GAP_PX), (height - barHeight) / 2, BAR_PX, barHeight, 1);
            pen.fill();
        }
    }

    _peak(fromSample, toSample) {
        const from = Math.floor(fromSample / PEAK_SAMPLES);
        const to = Math.max(from + 1, Math.floor(toSample / PEAK_SAMPLES));
        let peak = 0;
        for (let i = from; i < Math.min(to, this._peaks.length); i++) {
            peak = Math.max(peak, this._peaks[i]);
        }
        return peak;
    }
}

/**
 * Loudness of the last 50 ms before a sample, for a level meter.
 * @returns {number} 0 (-54 dB or less) to 1 (-6 dB or more), root mean square.
 */
export function levelAt(chunks, starts, sample, sampleRate) {
    let at = starts.length - 1;
    while (at > 0 && starts[at] > sample) at -= 1;
    if (at < 0) return 0;
    const end = sample - starts[at];
    const part = chunks[at].subarray(Math.max(0, end - Math.round(0.05 * sampleRate)), end);
    if (!part.length) return 0;
    const rms = Math.sqrt(part.reduce((sum, value) => sum + value * value, 0) / part.length);
    const db = 20 * Math.log10(rms + 1e-9);
    return Math.max(0, Math.min(1, (db + 54) / 48));
}
