// How late this page is: a busy one hears of events late, and sound has to lie ready for as long.

const EVERY_MS = 50;
/** Only the last moments count, in milliseconds. */
const WINDOW_MS = 3000;

/** Watches a timer; while it is watched, `worstS` is its worst lateness of the last moments. */
export class Lateness {
    constructor() {
        this._timer = null;
        this._late = []; // {atMs, lateMs}
    }

    /** Begin to watch; does nothing when it is watched already. */
    watch() {
        if (this._timer !== null) return;
        this._dueMs = performance.now() + EVERY_MS;
        this._timer = setInterval(() => this._tick(), EVERY_MS);
    }

    /** Stop watching. */
    rest() {
        clearInterval(this._timer);
        this._timer = null;
    }

    /** Seconds. */
    get worstS() {
        const nowMs = performance.now();
        this._late = this._late.filter(({ atMs }) => atMs > nowMs - WINDOW_MS);
        const runningMs = this._timer === null ? 0 : nowMs - this._dueMs;
        return Math.max(0, runningMs, ...this._late.map(({ lateMs }) => lateMs)) / 1000;
    }

    _tick() {
        const nowMs = performance.now();
        this._late.push({ atMs: nowMs, lateMs: nowMs - this._dueMs });
        this._dueMs = nowMs + EVERY_MS;
    }
}
