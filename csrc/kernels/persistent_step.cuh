// persistent_step: a whole decode step in one kernel, one block resident on each multiprocessor.
//
// The step reads as its phases: choose_row, embed_row, then in each layer project_qkv, attend,
// project_out, gate_and_up, down, and in the end head. They give the same bits as the kernels of
// decode_step.cu: the same shares of the same packed weights, the same sums in the same order.
// Between phases vectors go through L2 (exchange.cuh); the residual stream lies in registers, whole
// in every block. One warp of a block copies weights without end (persistent_parts.cuh).
#pragma once
#include "kernels/persistent_parts.cuh"

namespace livevoice {

/// The eight warps that multiply.
template <class Format, int D>
struct StepWorker {
    const StepPlan& plan;
    StepBlock<D>& block;
    const WeightRing& ring;
    uint8_t* const x;       // input of the phase, an activation; scratch of attention
    float* const partials;  // [2][max_tiles]: of whole tiles and of shared ones by turns
    float* const scales;    // [2][max_tiles * kTileRows]
    float4* const residual;  // float32 [hidden]: the stream; a thread minds its own pieces
    const Patience patience;
    RandomDelay delay;
    RingCursor cursor{};
    int thread = threadIdx.x;
    int layer = 0;
    uint32_t flag = 0;

    /// Draws its codebooks' codes, and waits for all of them: the row that this frame computes.
    __device__ void choose_row() {
        const int codebooks = plan.shape.codebooks, vocab = plan.shape.vocab;
        const uint32_t flag = block.control.frame & 1;
        for (int n = blockIdx.x; n < (codebooks + 1) / 2 * 2; n += gridDim.x) {
            int code = n < codebooks ? block.state.codes[n] : 0;
            if (n < codebooks && !plan.is_forced) {
                code = sample_code<kGemvThreads>(block.sample, plan.logits, vocab, block.state, n);
                if (threadIdx.x == 0)
                    tell_host(plan.rows, block.state.row, codebooks, n, code);
                sync_first_threads<kGemvThreads>();
            }
            if (threadIdx.x / 32 == 0) delay();
            if (threadIdx.x == 0)
                store_word(plan.exchange.codes + n, static_cast<uint64_t>(code) << 1 | flag);
        }
        if (threadIdx.x < 32) {
            const int lane = threadIdx.x;
            uint4 v[1];
            receive(v, flag, patience, [&](int) {
                return 2 * lane < codebooks ? plan.exchange.codes + 2 * lane : nullptr;
            });
            const uint32_t last = vocab - 1;  // whatever is there if waiting was given up
            if (2 * lane < codebooks) block.state.codes[2 * lane] = min(v[0].x >> 1, last);
            if (2 * lane + 1 < codebooks) block.state.codes[2 * lane + 1] = min(v[0].z >> 1, last);
            __syncwarp();
            if (lane == 0) {
                advance(&block.state, codebooks, vocab, plan.shape.capacity);
                if (plan.is_forced) block.state.is_done = 0;
            }
        }
        sync_first_threads<kGemvThreads>();
    }

    __device__ void embed_row() {
        for (int p = threadIdx.x; p < plan.shape.hidden / 4; p += kGemvThreads)
            residual[p] = plan.table.sum4(block.state.codes, p);
        if (threadIdx.x < D / 2)  // used after the next barrier
            block.tables.rope[threadIdx.x] =
                plan.first_heads.template angles<D>(block.position)[threadIdx.x];
    }

    __device__ void enter(int next_layer) {
        // Opaque: else every address of a layer would be computed before the first one, and kept.
        thread = keep(thread);
        layer = next_layer;
        flag = plan.flag(block.control.frame, layer);
    }

    __device__ void project_qkv() {
        request(block.tables.q_norm, plan.of_layer(plan.first.q_norm, layer), D);
        request(block.tables.k_norm, plan.of_layer(plan.first.k_norm, layer), D);
        const auto input = [&] {
            normalise<Format>(plan.of_layer(plan.first.input_norm, layer),
                              layer > 0 ? plan.exchange.ffn_delta : nullptr, flag ^ 1);
        };
        multiply<Format>(0, plan.of_layer(plan.first.qkv, layer), block.qkv, input);
        const Share share = block.qkv;
        const int rows = share.tiles * kTileRows;
        delay();
        for (int first = 0; first < rows; first += kGemvThreads) {
            const int i = first + thread, row = share.first_tile * kTileRows + i;
            const float v = i < rows ? row_value<Format>(sums(0), scale(0), i) : 0.0f;
            const uint64_t word = word_of_two(__float_as_uint(v), flag);
            if (i < rows && i % 2 == 0) store_word(plan.exchange.qkv + row / 2, word);
        }
    }

    __device__ void attend() {
        const int shares = plan.shape.heads * kAttentionSplits;
        for (int index = blockIdx.x; index < shares; index += gridDim.x) {
            const AttentionShare share(index, plan.first_heads, block.position);
            const KvCache cache = plan.cache(layer);
            KvStream<D, 2> old(cache, share.kv_head, share.begin, share.end);
            HeadSlice<D> own = receive_head(share);
            const JoinedPart<D> part(
                livevoice::attend(share, plan.first_heads, cache, block.tables, old, own),
                reinterpret_cast<float*>(x));
            delay();
            if (thread < D) {
                const uint64_t word = word_of_four(part.bits(), flag);
                if (thread % 4 == 0)
                    store_word(plan.exchange.parts + (index * D + thread) / 4, word);
            }
            if (thread == 0)
                store_word(plan.exchange.lse + index, __float_as_uint(part.lse) | flag);
            sync_first_threads<kGemvThreads>();  // x is free again
        }
    }

    __device__ void project_out() {
        const PackedMatrix matrix = plan.of_layer(plan.first.o, layer);
        multiply<Format>(1, matrix, block.o, [&] { receive_parts(matrix.columns); },
                         FirstTile{shared_address(&block.first_tile_is_left)});
        publish_delta(matrix, block.o, 1.0f, plan.exchange.attention_delta, 0);
    }

    __device__ void gate_and_up() {
        const auto input = [&] {
            normalise<Format>(plan.of_layer(plan.first.post_norm, layer),
                              plan.exchange.attention_delta, flag);
        };
        multiply<Format>(0, plan.of_layer(plan.first.gate_up, layer), block.gate_up, input);
        const Share share = block.gate_up;
        const int values = share.tiles * 8;
        delay();
        for (int first = 0; first < values; first += kGemvThreads) {
            const int i = first + thread, index = share.first_tile * 8 + i;
            uint16_t bits[Format::kParts];
            Format::hand_on(bits, index,
                            i < values ? swiglu_value<Format>(sums(0), scale(0), i) : 0.0f);
#pragma unroll
            for (int part = 0; part < Format::kParts; ++part) {
                const uint64_t word = word_of_four(bits[part], flag);
                if (i < values && i % 4 == 0)
                    store_word(plan.exchange.activation + (part * plan.shape.ffn + index) / 4,
                               word);
            }
        }
    }

    __device__ void down() {
        const PackedMatrix matrix = plan.of_layer(plan.first.down, layer);
        multiply<Format>(1, matrix, block.down, [&] { receive_activation(matrix.columns); },
                         FirstTile{shared_address(&block.first_tile_is_left)});
        publish_delta(matrix, block.down, 1.0f / Format::kSwigluScale, plan.exchange.ffn_delta, 1);
    }

    __device__ void head() {
        multiply<Bf16>(0, plan.head, block.head, [&] {
            normalise<Bf16>(plan.final_norm, plan.exchange.ffn_delta, flag);
        });
        StoreRows{plan.logits, plan.head_rows}.template finish<Bf16>(sums(0), scale(0),
                                                                             block.head);
    }

    /// The state after this frame. Every block has read the one before it: this one has seen all of
    /// the last down projection.
    __device__ void leave() {
        if (blockIdx.x != 0 || thread != 0 || block.has_ended) return;
        *plan.state = block.state;
        plan.control->frame = block.control.frame + 1;
    }

  private:
    /// Tells the helping warp when no lane will touch the sums of the first tile any more.
    struct FirstTile {
        uint32_t barrier;
        __device__ __forceinline__ void operator()() const { barrier_arrive(barrier); }
    };
    __device__ __forceinline__ float* sums(int turn) const {
        return partials + turn * plan.max_tiles * kPartialsATile;
    }
    __device__ __forceinline__ float* scale(int turn) const {
        return scales + turn * plan.max_tiles * kTileRows;
    }
    /// Asks for floats, a multiple of four, that are there after the next product.
    __device__ __forceinline__ void request(float* to, const float* from, int count) const {
        for (int i = 4 * thread; i < count; i += 4 * kGemvThreads)
            copy_async(to + i, from + i, true);
    }

    /// input: leaves the vector in x, and a barrier behind it. Then this block's partial sums lie
    /// in sums(turn), row scales in scale(turn). The other turn's sums are cleared: nobody has read
    /// them since the barrier.
    template <class F, class Input, class OnFirstTile = GoOn>
    __device__ __forceinline__ void multiply(int turn, const PackedMatrix& matrix,
                                             const Share share, const Input& input,
                                             const OnFirstTile& on_first_tile = {}) {
        if (F::kScaled)
            request(scale(turn), matrix.scales + share.first_tile * kTileRows,
                    share.tiles * kTileRows);
        copy_async_commit();
        input();
        clear_partials(sums(turn ^ 1), plan.max_tiles);
        multiply_share<F>(ring, cursor, share, activation<F>(), matrix.columns, sums(turn),
                          on_first_tile);
        copy_async_wait<0>();
        sync_first_threads<kGemvThreads>();
    }
    template <class F>
    __device__ __forceinline__ typename F::Activation* activation() const {
        return reinterpret_cast<typename F::Activation*>(x);
    }

    /// Brings the residual stream up to date with what all blocks have added, and normalises it
    /// into x. copies: of the sums; null where nothing was added yet.
    template <class F>
    __device__ __forceinline__ void normalise(const float* norm_weight, const uint64_t* copies,
                                              uint32_t flag) {
        const int hidden = plan.shape.hidden, pieces = hidden / 4;
        float4 h[kMaxHiddenPieces], weight[kMaxHiddenPieces];
        load_norm_weight(weight, norm_weight, hidden);
        uint4 v[kMaxHiddenPieces] = {};  // nothing
        const uint64_t* from = copies + blockIdx.x % plan.hidden_copies * (2 * pieces);
        if (copies)
            receive(v, flag, patience, [&](int i) {
                const int p = thread + i * kGemvThreads;
                return p < pieces ? from + 2 * p : nullptr;
            });
#pragma unroll
        for (int i = 0; i < kMaxHiddenPieces; ++i) {
            const int p = thread + i * kGemvThreads;
            h[i] = make_float4(0, 0, 0, 0);
            if (p >= pieces) continue;
            h[i] = add_delta(residual[p],
                             make_float4(__uint_as_float(v[i].x), __uint_as_float(v[i].y),
                                         __uint_as_float(v[i].z), __uint_as_float(v[i].w)));
            residual[p] = h[i];
        }
        store_normalised<F>(h, weight, hidden, plan.shape.eps, activation<F>(), block.norm_scratch);
    }

    /// What this block's share adds to the residual stream, with what the next block adds to the
    /// last tile; phase: of the barrier partner_came.
    __device__ __forceinline__ void publish_delta(const PackedMatrix& matrix, const Share share,
                                                  float input_scale, uint64_t* copies,
                                                  uint32_t phase) {
        const SharedEnds ends(share, matrix);
        const int begin = ends.begins_inside ? kTileRows : 0, end = share.tiles * kTileRows;
        const int shared_from = ends.ends_inside ? end - kTileRows : end;
        delay();
        for (int first = begin; first < end; first += kGemvThreads) {
            const int i = first + thread, row = share.first_tile * kTileRows + i;
            float v = i < end ? row_value<Format>(sums(1), scale(1), i, input_scale) : 0.0f;
            if (first == begin) barrier_wait(shared_address(&block.partner_came), phase);
            if (i >= shared_from && i < end) v += block.partner[i % kTileRows];
            // A zero first, as in residual_gemv: it decides the sign of a zero.
            const uint64_t word = word_of_two(__float_as_uint(0.0f + v), flag);
            if (i >= end || i % 2 != 0) continue;
            for (int copy = 0; copy < plan.hidden_copies; ++copy)
                store_word(copies + (copy * plan.shape.hidden + row) / 2, word);
        }
    }

    /// What this lane begins attention with, as the projection left it.
    __device__ __forceinline__ HeadSlice<D> receive_head(const AttentionShare& share) {
        const int j = thread % HeadSlice<D>::kLanes;
        const uint64_t* head = plan.exchange.qkv +
                               share.template head_of_lane<D>(plan.first_heads) * (D / 2) + 4 * j;
        uint4 pieces[4];
        receive(pieces, flag, patience,
                [&](int i) { return head + i / 2 * (D / 4) + i % 2 * 2; });
        HeadSlice<D> slice;
        slice.set(pieces);
        return slice;
    }

    /// The attention output into x: the splits of each head, merged.
    __device__ __forceinline__ void receive_parts(int columns) {
        constexpr int kPieces = 2, kLoads = kAttentionSplits + 2;  // a piece: eight columns
#pragma unroll 1
        for (int base = 0; base < columns / 8; base += kPieces * kGemvThreads) {
            uint4 v[kPieces * kLoads];
            const int column = (base + thread) * 8, head = column / D;
            const uint64_t* parts =
                plan.exchange.parts + (head * kAttentionSplits * D + column % D) / 4;
            const uint64_t* lse = plan.exchange.lse + head * kAttentionSplits;
            receive(v, flag, patience, [&](int i) -> const uint64_t* {
                constexpr int kHeads = kGemvThreads * 8 / D;  // from a thread's piece to its next
                const int k = i % kLoads, heads = i / kLoads * kHeads;
                if (column + heads * D >= columns) return nullptr;
                if (k >= kAttentionSplits)
                    return lse + heads * kAttentionSplits + 2 * (k - kAttentionSplits);
                // The last one first: it is the latest, because it adds the new position.
                return parts + (heads * kAttentionSplits + kAttentionSplits - 1 - k) * (D / 4);
            });
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int p = base + thread + i * kGemvThreads;
                const uint4* from = v + i * kLoads;
                const uint4 part[kAttentionSplits] = {from[3], from[2], from[1], from[0]};
                const float4 z = make_float4(__uint_as_float(from[4].x), __uint_as_float(from[4].z),
                                             __uint_as_float(from[5].x), __uint_as_float(from[5].z));
                if (p < columns / 8)
                    AttentionParts<D>::template merge<Format>(activation<Format>(), columns, p,
                                                              part, z);
            }
        }
        sync_first_threads<kGemvThreads>();
    }

    /// silu(gate) * up of all blocks into x.
    __device__ __forceinline__ void receive_activation(int columns) {
        constexpr int kPieces = 5;
        const int pieces = Format::kParts * columns / 8;
#pragma unroll 1
        for (int base = 0; base < pieces; base += kPieces * kGemvThreads) {
            uint4 v[kPieces];
            receive(v, flag, patience, [&](int i) -> const uint64_t* {
                const int p = base + thread + i * kGemvThreads;
                return p < pieces ? plan.exchange.activation + 2 * p : nullptr;
            });
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int p = base + thread + i * kGemvThreads;
                if (p < pieces) reinterpret_cast<uint4*>(x)[p] = v[i];
            }
        }
        sync_first_threads<kGemvThreads>();
    }
};

template <class Format, int D>
__global__ void __launch_bounds__(kStepThreads, 1)
    persistent_step_kernel(const __grid_constant__ StepPlan plan) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ StepBlock<D> block;
    uint8_t* const x = shared + plan.slots * kSlotBytes;
    auto* const partials = reinterpret_cast<float*>(x + plan.x_bytes);
    float* const scales = partials + 2 * plan.max_tiles * kPartialsATile;
    auto* const residual = reinterpret_cast<float4*>(scales + 2 * plan.max_tiles * kTileRows);

    begin_frame(plan, block);
    for (int i = threadIdx.x; i < plan.max_tiles * kPartialsATile; i += kStepThreads)
        partials[i] = 0.0f;
    const WeightRing ring(shared, block.ring_barriers, plan.slots);
    if (block.control.has_failed || (block.state.is_done && !plan.is_forced)) return;

    const int warp = threadIdx.x / 32;
    if (warp == kCopyingWarp) return stream_weights<Format>(plan, block, ring);
    if (warp == kHelpingWarp)
        return help<Format>(plan, block, partials + plan.max_tiles * kPartialsATile);

    StepWorker<Format, D> step{plan,
                               block,
                               ring,
                               x,
                               partials,
                               scales,
                               residual,
                               block.patience(plan),
                               RandomDelay(block.control, plan.signals)};
    step.choose_row();
    step.embed_row();
#pragma unroll 1
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
        step.enter(layer);
        step.project_qkv();
        step.attend();
        step.project_out();
        step.gate_and_up();
        step.down();
    }
    step.head();
    step.leave();
}

}  // namespace livevoice
