// exchange: how the thread blocks of the persistent decode step hand vectors to each other, without
// a barrier of the whole GPU: every word says for itself whether it is there.
//
// A vector is stored as words of 64 bits: two float32, or four 16-bit values. The lowest bit of a
// word is its flag. Use number u of a buffer (u = frame * layers + layer, for the codes u = frame)
// writes every word of it once, with flag u % 2; a reader repeats its load until that flag appears.
//
// Why this is right by the memory model, whatever the timing:
//  1. A word comes whole. Loads and stores are relaxed, of gpu scope, and 64 bits wide: the model
//     treats such an access as one (a vector load of two words as two of them). The value arrives
//     with its flag, so nothing has to be ordered against anything else, and no fence is needed.
//  2. Nothing newer than u is seen. The writer of use u + 1 has then read, in between, values that
//     depend on all that was read from use u. Down the chain: the attention output o(l), the sums
//     of the output projection p(l), the activation a(l), the sums of the down projection d(l), and
//     q(l) with keys and values. Every block reads all of o, p, a and d. p, a and d are sums over
//     all columns of what was read, and each block has a share of each of them (it has a row or a
//     part of one in every matrix), so a block that has seen all of d(l) knows that every block has
//     read all of p(l - 1) .. o(l), p(l), a(l). Then
//       q(l + 1), o(l + 1) and p(l + 1) are written after d(l) was seen, directly or through q;
//       a(l + 1) after p(l + 1), whose writers had all of o(l + 1), which stems from q(l + 1);
//       d(l + 1) after all of a(l + 1), which each block wrote after it had read d(l).
//     A value can't be taken from a write that depends on it (the model's no-thin-air rule).
//  3. Nothing older than u - 1 is seen, so one bit is enough. Each block has accepted use u - 1 of
//     each word that it reads (the same ones each time), and reads of one place never go back in
//     time (coherence), also not across the barriers between the threads of a block.
//  4. It begins so: the buffers are filled with ones, flag 1, the flag of "use -1"; the number of
//     the frame is 0. What a frame leaves behind the next one finds: launches on one stream.
// A frame that was given up breaks this chain: then reset_exchange() comes before the next frame.
#pragma once
#include "device/ptx.cuh"
#include "kernels/state.h"

namespace livevoice {

/// Copies of the residual stream's sums: a block reads one of them, so that fewer blocks ask for
/// the same lines (measured).
constexpr int kHiddenCopies = 8;

/// The buffers, in device memory, words of 64 bits.
struct Exchange {
    uint64_t* attention_delta;  // [copies, hidden / 2] float32: what o adds to the residual stream
    uint64_t* ffn_delta;        // [copies, hidden / 2] float32: what down adds
    uint64_t* qkv;              // [heads + 2 kv_heads, D / 2] float32
    uint64_t* parts;            // [heads, splits, D / 4] float16
    uint64_t* lse;              // [heads, splits], the low half a float32
    uint64_t* activation;       // [kParts, ffn / 4] 16-bit values
    uint64_t* shared_tiles;     // [2: o, down][blocks, rows of a tile]: flag low, float32 high
    uint64_t* codes;            // [codebooks]: the code times two, and the flag
};

/// How patient the persistent step is, and what tests let it suffer: every warp sleeps up to
/// max_delay_ns before each of its publications, at random, and block 0 stall_ms before its first.
struct StepTrial {
    uint32_t limit_ms;  // longest time of a frame
    uint32_t delay_seed, max_delay_ns, stall_ms;
};

/// What steers the persistent step, in device memory.
struct StepControl {
    uint32_t frame;       // number of the next one
    uint32_t has_failed;  // a wait took longer than the limit, or the host said stop
    StepTrial trial;
};

/// What host and device tell each other meanwhile, in mapped host memory.
struct StepSignals {
    uint32_t stop;        // host: leave
    uint32_t has_failed;  // device: as in StepControl
};

/// How long to wait. After the limit, or when another block has given up or the host wants it, no
/// wait of the block waits any more: it runs to its end with wrong values, which nobody uses.
struct Patience {
    StepControl* control;
    StepSignals* signals;
    uint64_t deadline;  // nanoseconds()
    volatile bool* has_ended;  // shared memory
    int watching_lanes;

    /// Called by all lanes of a warp after each poll in vain; true: don't go on waiting.
    __device__ __forceinline__ bool ends(int& polls) const {
        if (++polls % 8 != 0) return false;
        return __any_sync(~0u, *has_ended || (polls % 256 == 0 && gives_up()));
    }

  private:
    __device__ __forceinline__ bool gives_up() const {
        const bool is_late = nanoseconds() > deadline;
        if (!is_late && !load_now(&signals->stop) && !load_now(&control->has_failed)) return false;
        store_now(&control->has_failed, 1);
        store_now(&signals->has_failed, 1);
        *has_ended = true;
        return true;
    }
};

/// Both words of 16 bytes carry the flag.
__device__ __forceinline__ bool has_flag(const uint4& words, uint32_t flag) {
    return ((words.x ^ flag) & 1) == 0 && ((words.z ^ flag) & 1) == 0;
}

/// Waits for pieces of 16 bytes, as many for each lane of a warp as `at(i)` gives an address for
/// (null: none), and takes the flags out of them. While nothing is there the warp asks for a few
/// lanes' pieces only: polls compete with the weights on their way.
template <int kPieces, class At>
__device__ __forceinline__ void receive(uint4 (&v)[kPieces], uint32_t flag,
                                        const Patience& patience, const At& at) {
    const uint64_t* first = lane_id() < patience.watching_lanes ? at(0) : nullptr;
    int polls = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) v[i] = make_uint4(0, 0, 0, 0);
    while (!__all_sync(~0u, !first || has_flag(load_words(first), flag)))
        if (patience.ends(polls)) break;
    for (;;) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            if (at(i)) v[i] = load_words(at(i));
        bool is_there = true;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) is_there = is_there && (!at(i) || has_flag(v[i], flag));
        if (__all_sync(~0u, is_there) || patience.ends(polls)) break;
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) v[i].x &= ~1u, v[i].z &= ~1u;
}

/// Two neighbouring lanes' float32 as a word, for the lower one of them.
__device__ __forceinline__ uint64_t word_of_two(uint32_t bits, uint32_t flag) {
    const uint64_t next = __shfl_down_sync(~0u, bits, 1);
    return next << 32 | (bits & ~1u) | flag;
}

/// Four neighbouring lanes' 16-bit values as a word, for the lowest one of them.
__device__ __forceinline__ uint64_t word_of_four(uint16_t bits, uint32_t flag) {
    const uint32_t pair = bits | __shfl_down_sync(~0u, static_cast<uint32_t>(bits), 1) << 16;
    const uint64_t next = __shfl_down_sync(~0u, pair, 2);
    return next << 32 | (pair & ~1u) | flag;
}

/// For tests: a sleep before a publication, another one each time.
struct RandomDelay {
    const StepSignals* signals;
    uint32_t state, max_ns, stall_ms;

    __device__ RandomDelay(const StepControl& control, const StepSignals* signals)
        : signals(signals),
          state((control.trial.delay_seed + control.frame) * 2654435761u + blockIdx.x * 40503u +
                threadIdx.x / 32 * 97u),
          max_ns(control.trial.max_delay_ns),
          stall_ms(blockIdx.x == 0 ? control.trial.stall_ms : 0) {}

    __device__ __forceinline__ void operator()() {
        if (max_ns == 0 && stall_ms == 0) return;
        state = state * 1664525u + 1013904223u;
        if (max_ns > 0) sleep_nanoseconds((state >> 8) % max_ns);
        for (; stall_ms > 0 && !load_now(&signals->stop); --stall_ms) sleep_nanoseconds(1000000);
        stall_ms = 0;
    }
};

}  // namespace livevoice
