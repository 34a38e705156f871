// One node's speech in this page: its events in order, its player, and what to say about it.

import { Feed } from "./feed.mjs";
import { PcmPlayer } from "./pcm_player.mjs";
import { PlayerView } from "./player_view.mjs";
import { fromBase64, fromWav } from "./wav.mjs";

/** Where the playhead of a running speech is kept when the page goes away: in this tab only. */
const PLACE_KEY = "LiveVoice.place";

export class Track {
    /** @param {(event: {prompt_id, node_id}, fromSeq: number) => Promise<object[]>} fetchMissed */
    constructor(fetchMissed) {
        this._fetchMissed = fetchMissed;
        this.run = null; // {prompt_id, node_id, workflow_id}
        this.isLive = false; // plays as it comes, and more is to come
        this.outcome = ""; // "", "done", "cancelled", "failed", "lost", "stored", "gone"
        this._speed = 0;
        this._lostSamples = 0;
        this.player = new PcmPlayer();
        this.view = new PlayerView(this.player, () => this._status());
    }

    /**
     * Get ready for a run; what was there before is forgotten.
     * @param {{prompt_id: string, node_id: string, workflow_id?: string}} run
     * @param {boolean} isLive whether to play it as it comes.
     */
    begin(run, isLive) {
        this.run = run;
        this.isLive = isLive;
        this.outcome = "";
        this._speed = 0;
        this._lostSamples = 0;
        this.player.reset();
        this.view.restart();
        this._feed = new Feed(
            (fromSeq) => this._fetchMissed(run, fromSeq),
            (event) => this.run === run && this._take(event),
        );
    }

    /** Take an event of this run from the websocket. */
    push(event) {
        if (event.kind === "hush") this.hush();
        else this._feed.push(event);
    }

    /** Ask for what was missed. */
    catchUp() {
        return this._feed?.catchUp();
    }

    /** Fall silent at once and keep what is there. */
    hush() {
        this.isLive = false;
        this.player.stop();
    }

    /** The run ended; the sound stays. */
    end(outcome) {
        this.outcome = outcome;
        if (outcome !== "done") this.player.stop();
        this.isLive = false;
        this.player.finish();
        this.view.refresh();
    }

    /** Show a clip that was made before: a WAV file of this pack, or null when it is gone. */
    show(run, file) {
        this.begin(run, false);
        this.outcome = file ? "stored" : "gone";
        if (file) {
            const { samples, sampleRate } = fromWav(file);
            this.player.load(samples, sampleRate);
        }
        this.view.refresh();
    }

    /** Keep the playhead of a running speech for the page that comes after a reload. */
    savePlace() {
        const { position, state } = this.player;
        const place = { ...this.run, position, wasHeard: state === "playing" || position > 0 };
        if (this.run && !this.outcome) sessionStorage.setItem(PLACE_KEY, JSON.stringify(place));
    }

    _take(event) {
        const take = { start: this._start, chunk: this._chunk, end: this._end }[event.kind];
        take?.call(this, event);
        this.view.refresh();
    }

    _start({ sample_rate, expected_s }) {
        this.player.reset(sample_rate, expected_s);
        if (!this.isLive) return;
        this._place = readPlace(this.run);
        this.player.playLive();
    }

    _chunk({ start, sent_s, speed, sample_rate, pcm }) {
        const missing = start - this.player.length;
        if (missing > 0) {
            // Silence keeps the clock of the clip right, and its end where it belongs.
            this._lostSamples += missing;
            this.player.append(new Float32Array(missing), { sentS: sent_s, speed });
        }
        this._speed = speed;
        this.player.append(fromBase64(pcm), { sentS: sent_s, speed });
        if (this._place && this.player.length >= this._place) {
            this.player.seek(this._place);
            this._place = 0;
        }
        if (this.player.sampleRate !== sample_rate) this.player.sampleRate = sample_rate;
    }

    _end({ reason, speed }) {
        this._speed = speed || this._speed;
        this.end(reason);
    }

    _status() {
        const text = this.outcome ? this._endStatus() : this._runStatus();
        if (!this._lostSamples) return text;
        return `${text} · ${seconds(this._lostSamples / this.player.sampleRate)} were missed`;
    }

    _runStatus() {
        const { state, cushion, length, position, sampleRate, isComplete } = this.player;
        const speed = times(cushion.speed);
        if (!this.run) return "Plays here while it is being spoken";
        if (state === "blocked") return "Press play: the browser wants a click before any sound";
        if (state === "queued") return "Waits until another preview has ended";
        if (!length) return "Getting ready to speak";
        if (state === "gathering" && !isComplete) {
            const lackingS = cushion.wantedS - (length - position) / sampleRate;
            if (!cushion.isSlow || lackingS <= 0) return "Waiting for more speech";
            return `Slower than real time (${speed}): gathering ${seconds(lackingS)} more`;
        }
        if (cushion.isSlow) return `Speaking at ${speed} real time: may pause`;
        return `Speaking at ${speed} real time`;
    }

    _endStatus() {
        const length = this.player.length / this.player.sampleRate;
        if (this.player.state === "blocked") return "Press play: the browser wants a click first";
        if (this.player.state === "queued") return "Waits until another preview has ended";
        return {
            done: this._speed ? `Spoken at ${times(this._speed)} real time` : "Spoken",
            cancelled: length ? `Cancelled: ${seconds(length)} were kept` : "Cancelled",
            failed: length ? `Ended by an error: ${seconds(length)} were kept` : "Ended by an error",
            lost: `The server is gone: ${seconds(length)} were kept`,
            stored: "Spoken before with these settings",
            gone: "The clip is no longer there: change the seed and run again",
        }[this.outcome];
    }
}

function readPlace(run) {
    const place = JSON.parse(sessionStorage.getItem(PLACE_KEY) ?? "null");
    const isSame = place?.prompt_id === run.prompt_id && place?.node_id === run.node_id;
    return isSame ? place.position : 0;
}

/** @param {number} s seconds. */
function seconds(s) {
    return `${s.toFixed(1)} s`;
}

function times(speed) {
    return Number.isFinite(speed) ? `${speed.toFixed(speed < 10 ? 1 : 0)}×` : "?";
}
