// Brings one run's events into order: each once, in sequence, whatever the websocket did.
//
// Events carry sequence numbers. One that is too early waits while the missing ones are asked for;
// what the server no longer has is reported as lost and passed over.

export class Feed {
    /**
     * @param {(fromSeq: number) => Promise<object[]>} fetchMissed events from a number on, in order.
     * @param {(event: object) => void} deliver gets each event once, in order.
     * @param {() => void} lost is called when events are passed over.
     */
    constructor(fetchMissed, deliver, lost = () => {}) {
        this._fetchMissed = fetchMissed;
        this._deliver = deliver;
        this._lost = lost;
        this._early = new Map();
        this._next = 0;
        this._catchingUp = null;
    }

    /** Take an event from the websocket. */
    push(event) {
        this._take(event);
        if (this._early.size) this.catchUp();
    }

    /** Ask for what was missed; also after a reconnection, when nobody knows whether there was. */
    catchUp() {
        this._catchingUp ??= this._catchUp().finally(() => (this._catchingUp = null));
        return this._catchingUp;
    }

    async _catchUp() {
        for (;;) {
            const before = this._next;
            const missed = await this._fetchMissed(before).catch(() => []);
            missed.forEach((event) => this._take(event));
            if (this._next > before) continue; // an answer is bounded: there may be more
            if (!this._early.size) return;
            this._next = Math.min(...this._early.keys());
            this._lost();
            this._drain();
        }
    }

    _take(event) {
        if (event.seq < this._next) return;
        this._early.set(event.seq, event);
        this._drain();
    }

    _drain() {
        for (let event; (event = this._early.get(this._next)); ) {
            this._early.delete(this._next);
            this._next += 1;
            this._deliver(event);
        }
    }
}
