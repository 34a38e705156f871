// The playback cushion: how much sound has to lie ready before playing starts or goes on.
//
// Playing while speech is made is a race. This file decides when to enter it, from three
// measurements: how fast speech is made, how unevenly it arrives (network, or a page that is busy
// drawing), and how often it ran out already.
// Pure arithmetic on seconds: knows nothing of audio, pages or clocks.
//
// What follows from it: a machine that speaks much faster than real time is heard at its first
// chunk; one just above real time waits until the growing chunks cannot overtake the listener; one
// below gathers enough for a while of speech, and twice as long a while after each pause, so that
// pauses stay few (their number grows with the logarithm of the length).

/** Speech that the first cushion has to carry, in seconds; doubles after each pause. */
const FIRST_HORIZON_S = 4;
const LAST_HORIZON_S = 32;

/** The server's longest chunk, in seconds (SCHEDULE of engine/codec.py); each at most doubles. */
const LONGEST_CHUNK_S = 1;

/** The first chunks are short, but the next may have to wait for this much speech to be made... */
const EARLY_WAIT_S = 0.24;
/** ...as so many of them wait for less of what follows them: their pace is not that of speech. */
const EARLY_CHUNKS = 2;

/** Measured speeds are trusted up to this share: they are averages, and the next chunk is one. */
const TRUST = 0.95;

/** Speech may last this much longer than its estimate, as a factor. */
const SURPLUS = 1.25;

/** What an even network and a busy page may cost, in seconds. */
const BASE_MARGIN_S = 0.06;
const MOST_MARGIN_S = 3;

/** The window over which the speed of arrival is measured, in seconds, and its least length. */
const ARRIVAL_WINDOW_S = 5;
const LEAST_WINDOW_S = 0.5;

export class Cushion {
    /** @param {number} expectedS estimated length of the whole speech in seconds; 0 for unknown. */
    constructor(expectedS = 0) {
        this.expectedS = expectedS;
        this.pauses = 0;
        this._soundS = 0;
        this._chunkS = 0;
        this._nChunks = 0;
        this._madeSpeed = Infinity;
        this._quickestS = Infinity;
        this._unevenS = 0;
        this._pageLateS = 0;
        this._arrivals = []; // {nowS, soundS: all sound up to then}
    }

    /**
     * Take note of a chunk.
     * @param {number} nowS when it arrived, on the listener's clock.
     * @param {number} sentS when it was sent, on the server's clock.
     * @param {number} soundS its length.
     * @param {number} speed seconds of speech made in a second, as the server measured it.
     */
    arrive(nowS, sentS, soundS, speed) {
        this._soundS += soundS;
        this._chunkS = soundS;
        if (speed > 0) this._madeSpeed = speed;
        this._quickestS = Math.min(this._quickestS, nowS - sentS);
        this._unevenS = Math.max(this._unevenS, nowS - sentS - this._quickestS);
        this._nChunks += 1;
        if (this._nChunks <= EARLY_CHUNKS) return;
        this._arrivals.push({ nowS, soundS: this._soundS });
        while (this._arrivals[0].nowS < nowS - ARRIVAL_WINDOW_S) this._arrivals.shift();
    }

    /**
     * Take note of how late the page itself is, before there is anything else to go by.
     * @param {number} lateS by how much a timer was late, at worst, in the last moments.
     */
    pageIsLate(lateS) {
        this._pageLateS = lateS;
    }

    /** Sound ran out before the end: be more patient from now on. */
    ranDry() {
        this.pauses += 1;
    }

    /** Seconds of speech that come in a second: as made, or as arriving when that is slower. */
    get speed() {
        const [first, last] = [this._arrivals[0], this._arrivals.at(-1)];
        const tookS = first ? last.nowS - first.nowS : 0;
        if (tookS < LEAST_WINDOW_S) return this._madeSpeed;
        return Math.min(this._madeSpeed, (last.soundS - first.soundS) / tookS);
    }

    /** Whether playing would have to pause: speech comes more slowly than it is spoken. */
    get isSlow() {
        return this.speed < 1;
    }

    /** Seconds of sound that have to lie ready before playing starts or goes on. */
    get wantedS() {
        const speed = Math.max(0.02, this.speed * TRUST);
        const horizonS = Math.min(LAST_HORIZON_S, FIRST_HORIZON_S * 2 ** this.pauses);
        // An estimate that was passed says nothing about what is left.
        const mostS = this.expectedS * SURPLUS;
        const leftS = mostS > this._soundS ? mostS - this._soundS : Infinity;
        let [chunkS, comingS, neededS] = [this._chunkS, 0, 0];
        // Each further chunk must be complete before all that lies ready then has been played.
        while (comingS < leftS && neededS + comingS < horizonS) {
            chunkS = Math.min(LONGEST_CHUNK_S, 2 * chunkS) || LONGEST_CHUNK_S;
            const workS = comingS + Math.max(chunkS, EARLY_WAIT_S);
            neededS = Math.max(neededS, workS / speed - comingS);
            comingS += chunkS;
        }
        const unevenS = Math.max(this._unevenS, this._pageLateS);
        return neededS + Math.min(MOST_MARGIN_S, BASE_MARGIN_S + unevenS);
    }

    /**
     * Whether to play now.
     * @param {number} readyS sound that lies ready after the playhead.
     * @param {boolean} isComplete nothing more will come.
     */
    isReady(readyS, isComplete) {
        return readyS > 0 && (isComplete || readyS >= this.wantedS);
    }
}
