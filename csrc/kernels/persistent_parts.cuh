// persistent_parts: what the warps of the persistent decode step share, and the two of each block
// that do not multiply: one copies weights, one hands over tiles that two blocks share.
#pragma once
#include "kernels/attention_decode.cuh"
#include "kernels/exchange.cuh"
#include "kernels/sample.cuh"
#include "model.h"

namespace livevoice {

constexpr int kStepThreads = kGemvThreads + 64;
constexpr int kCopyingWarp = kGemvWarps, kHelpingWarp = kGemvWarps + 1;
constexpr int kMaxStepSlots = 13;

/// One frame, as the kernel sees it.
struct StepPlan {
    ModelShape shape;
    LayerWeights first;   // of layer 0
    size_t layer_stride;  // bytes from any of its pointers to the next layer's
    PackedMatrix head;
    int head_rows;
    const float* final_norm;
    AudioTable table;
    KvCache first_cache;
    HeadShape first_heads;
    DecodeState* state;
    StepControl* control;
    StepSignals* signals;
    Exchange exchange;
    float* logits;  // of the row before; in the end of the next one
    int* rows;
    int slots, slots_in_flight;  // of the ring
    int hidden_copies, watching_lanes;
    int x_bytes, max_tiles;      // room for a phase's input, and for tiles of a share
    bool is_forced;              // the row is state->codes; nothing is sampled

    template <class T>
    __device__ __forceinline__ T* of_layer(T* first_layers, int layer) const {
        using Byte = std::conditional_t<std::is_const_v<T>, const uint8_t, uint8_t>;
        return reinterpret_cast<T*>(reinterpret_cast<Byte*>(first_layers) + layer * layer_stride);
    }
    __device__ __forceinline__ PackedMatrix of_layer(PackedMatrix m, int layer) const {
        return {of_layer(m.weights, layer), of_layer(m.scales, layer), m.tiles, m.columns};
    }
    __device__ __forceinline__ KvCache cache(int layer) const {
        const size_t positions = static_cast<size_t>(shape.kv_heads) * shape.capacity;
        return {first_cache.data + layer * positions * 2 * shape.head_dim, shape.capacity};
    }
    /// The flag of what this layer publishes in this frame.
    __device__ __forceinline__ uint32_t flag(uint32_t frame, int layer) const {
        return (frame * shape.layers + layer) & 1;
    }
};

/// Shared memory of a block, besides the ring, x, partial sums and row scales.
template <int D>
struct StepBlock {
    alignas(16) HeadTables<D> tables;
    uint64_t ring_barriers[2 * kMaxStepSlots];
    uint64_t first_tile_is_left, partner_came;
    Share qkv, o, gate_up, down, head;
    DecodeState state;
    StepControl control;
    SampleScratch sample;
    float norm_scratch[kGemvWarps];
    float partner[kTileRows];  // what the next block adds to the last tile
    uint64_t deadline;
    int position;
    bool has_ended;

    __device__ Patience patience(const StepPlan& plan) {
        return {plan.control, plan.signals, deadline, &has_ended, plan.watching_lanes};
    }
};

/// State and shares; the barriers are ready after the next __syncthreads().
template <int D>
__device__ void begin_frame(const StepPlan& plan, StepBlock<D>& block) {
    if (threadIdx.x == 0) {
        block.state = *plan.state;
        block.control = *plan.control;
        block.position = min(block.state.next_position, plan.shape.capacity - 1);
        block.deadline = nanoseconds() + uint64_t{block.control.trial.limit_ms} * 1000000;
        block.has_ended = false;
    }
    if (threadIdx.x == 32) {
        const auto dealt = [](const PackedMatrix& m, auto deal) {
            return deal(m.tiles, m.blocks_a_tile());
        };
        block.qkv = dealt(plan.first.qkv, whole_tiles);
        block.o = dealt(plan.first.o, equal_share);
        block.gate_up = dealt(plan.first.gate_up, whole_tiles);
        block.down = dealt(plan.first.down, equal_share);
        block.head = dealt(plan.head, whole_tiles);
    }
    if (threadIdx.x == 64) {
        barrier_init(shared_address(&block.first_tile_is_left), kGemvThreads);
        barrier_init(shared_address(&block.partner_came), 32);
    }
}

/// The copying warp: all weights of a frame in order of use. It knows nothing of the computation,
/// so the stream goes on over the borders of phases and layers as far as the ring has room.
template <class Format, int D>
__device__ void stream_weights(const StepPlan& plan, const StepBlock<D>& block,
                               const WeightRing& ring) {
    RingFiller filler{ring, plan.slots_in_flight};
#pragma unroll 1
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
        filler.fill<Format>(plan.of_layer(plan.first.qkv, layer), block.qkv);
        filler.fill<Format>(plan.of_layer(plan.first.o, layer), block.o);
        filler.fill<Format>(plan.of_layer(plan.first.gate_up, layer), block.gate_up);
        filler.fill<Format>(plan.of_layer(plan.first.down, layer), block.down);
    }
    filler.fill<Bf16>(plan.head, block.head);
}

/// A share of o or down, whose ends may lie inside a tile. What begins inside a tile is the end of
/// the last tile of the block before, which adds both parts: its own comes last, so that the other
/// one is there by then.
struct SharedEnds {
    bool begins_inside, ends_inside;
    __device__ SharedEnds(const Share& share, const PackedMatrix& matrix)
        : begins_inside(share.first_k > 0),
          ends_inside((share.first_k + share.blocks) % matrix.blocks_a_tile() != 0) {}
};

/// The helping warp at one matrix: its block's part of the first tile to the block before, and the
/// next block's part of the last tile to `block.partner`. words: [blocks, kTileRows].
template <class Format, int D>
__device__ void hand_over(const PackedMatrix& matrix, const Share share, float input_scale,
                          const float* partials, uint64_t* words, uint32_t phase, uint32_t flag,
                          StepBlock<D>& block, const Patience& patience, RandomDelay& delay) {
    const SharedEnds ends(share, matrix);
    const int lane = lane_id(), row = lane % kTileRows;
    float scale = 1.0f;
    if (Format::kScaled) scale = matrix.scales[share.first_tile * kTileRows + row];
    barrier_wait(shared_address(&block.first_tile_is_left), phase);
    if (ends.begins_inside) {
        float sum = collect(partials, 0, row) * input_scale;
        if (Format::kScaled) sum *= scale;
        delay();
        if (lane < kTileRows)
            store_word(words + blockIdx.x * kTileRows + row,
                       static_cast<uint64_t>(__float_as_uint(sum)) << 32 | flag);
    }
    if (ends.ends_inside) {
        const uint64_t* from = words + (blockIdx.x + 1) * kTileRows;
        uint4 v[1];
        receive(v, flag, patience,
                [&](int) { return lane < kTileRows / 2 ? from + 2 * lane : nullptr; });
        if (lane < kTileRows / 2) {
            block.partner[2 * lane] = __uint_as_float(v[0].y);
            block.partner[2 * lane + 1] = __uint_as_float(v[0].w);
        }
    }
    barrier_arrive(shared_address(&block.partner_came));
}

/// The helping warp: keys and values into L2 ahead of attention, and the tiles of two blocks.
template <class Format, int D>
__device__ void help(const StepPlan& plan, StepBlock<D>& block, const float* partials) {
    const Patience patience = block.patience(plan);
    RandomDelay delay(block.control, plan.signals);
    uint64_t* const o_words = plan.exchange.shared_tiles;
    uint64_t* const down_words = o_words + gridDim.x * kTileRows;
#pragma unroll 1
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
        const int shares = plan.shape.heads * kAttentionSplits;
        for (int index = blockIdx.x; index < shares; index += gridDim.x) {
            const AttentionShare share(index, plan.first_heads, block.position);
            if (share.is_first_of_group(plan.first_heads) && lane_id() == 0 &&
                share.begin < share.end)
                prefetch_to_l2(plan.cache(layer).at<D>(share.kv_head, share.begin),
                               (share.end - share.begin) * 4 * D);
        }
        const uint32_t flag = plan.flag(block.control.frame, layer);
        hand_over<Format>(plan.of_layer(plan.first.o, layer), block.o, 1.0f, partials, o_words, 0,
                          flag, block, patience, delay);
        hand_over<Format>(plan.of_layer(plan.first.down, layer), block.down,
                          1.0f / Format::kSwigluScale, partials, down_words, 1, flag, block,
                          patience, delay);
    }
}

}  // namespace livevoice
