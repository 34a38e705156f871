// gemv: packed weights x one activation vector, at memory speed.
//
// A thread block owns a run of weight blocks that lie next to each other in memory. One warp copies
// them, slot by slot, into a ring in shared memory: it starts before the kernel waits for its
// input, so weights stream across kernel borders, and a full ring covers the time in which nothing
// can be multiplied. Eight warps share each slot, multiply with the tensor cores (an FMA loop would
// be bound by conversions on fp8), and leave partial sums of the tiles they touched, which the
// block adds up in a fixed order.
#pragma once
#include "device/formats.cuh"
#include "kernels/launch.h"

namespace livevoice {

constexpr int kGemvWarps = 8;  // that multiply
constexpr int kGemvThreads = 32 * kGemvWarps;
constexpr int kGemvBlockThreads = kGemvThreads + 32;  // and the warp that copies
constexpr int kSlotBytes = 16384;
constexpr int kMaxSlots = 6;
/// Slots that a thread block has on their way at most. More only makes the queue in front of memory
/// longer for everybody (measured); the rest of the ring is for what has arrived.
constexpr int kSlotsInFlight = 3;
template <class Format>
constexpr int kSlotBlocks = kSlotBytes / Format::kBlockBytes;
template <class Format>
constexpr int kWarpBlocks = kSlotBlocks<Format> / kGemvWarps;  // of a slot, side by side

/// The weight blocks of one thread block: `blocks` of them from block `first_k` of tile
/// `first_tile` on. `tiles` counts all that it touches.
struct Share {
    int first_tile, first_k, tiles, blocks;
};

/// Whole tiles: every row is finished by one thread block.
__device__ __forceinline__ Share whole_tiles(int tiles, int blocks_a_tile) {
    const int part = blockIdx.x, parts = gridDim.x;
    const int begin = tiles * part / parts, end = tiles * (part + 1) / parts;
    return {begin, 0, end - begin, (end - begin) * blocks_a_tile};
}

/// Equal shares. With no more parts than tiles a tile is shared by at most two thread blocks.
__device__ __forceinline__ Share equal_share(int tiles, int blocks_a_tile) {
    const unsigned part = blockIdx.x, parts = gridDim.x, all = tiles * blocks_a_tile;
    const int begin = all * part / parts, end = all * (part + 1) / parts;
    const int first_tile = begin / blocks_a_tile;
    return {first_tile, begin - first_tile * blocks_a_tile,
            ceil_div(end, blocks_a_tile) - first_tile, end - begin};
}

/// Packed rows, what they are scaled by, and its size in tiles and columns.
struct PackedMatrix {
    const uint8_t* weights;
    const float* scales;  // float32, one per packed row; null for bf16
    int tiles, columns;
    __host__ __device__ int blocks_a_tile() const { return columns / kBlockColumns; }
};

/// Where a warp is in the ring.
struct RingCursor {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next(int slots) {
        if (++slot == slots) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/// Slots of weight blocks in shared memory, a barrier each for "has arrived" and "was read".
struct WeightRing {
    uint8_t* memory;
    uint32_t arrived_at, was_read_at;  // shared addresses of the slots' barriers
    int slots;

    /// barriers: two for each slot. All threads of the block come here together.
    __device__ __forceinline__ WeightRing(uint8_t* memory, uint64_t* barriers, int slots)
        : memory(memory),
          arrived_at(shared_address(barriers)),
          was_read_at(arrived_at + slots * kBarrierBytes),
          slots(slots) {
        if (threadIdx.x == kGemvThreads) {
            for (int i = 0; i < slots; ++i) {
                barrier_init(arrived(i), copy_bulk_arrivals());
                barrier_init(was_read(i), kGemvThreads);
            }
            barrier_init_fence();
        }
        __syncthreads();
    }
    __device__ __forceinline__ uint32_t arrived(int slot) const {
        return arrived_at + slot * kBarrierBytes;
    }
    __device__ __forceinline__ uint32_t was_read(int slot) const {
        return was_read_at + slot * kBarrierBytes;
    }
};

/// The copying warp: shares into the ring, slot by slot, one share after the other.
struct RingFiller {
    const WeightRing& ring;
    const int in_flight;  // slots on their way at most
    RingCursor at{}, oldest_on_its_way{};
    int copies = 0;

    template <class Format>
    __device__ __forceinline__ void fill(const PackedMatrix& matrix, const Share& share) {
        const size_t first =
            static_cast<size_t>(share.first_tile) * matrix.blocks_a_tile() + share.first_k;
        const uint8_t* from = matrix.weights + first * Format::kBlockBytes;
        int left = share.blocks * Format::kBlockBytes;
#pragma unroll 1
        for (; left > 0; ++copies, left -= kSlotBytes, from += kSlotBytes) {
            if (copies >= ring.slots) barrier_wait(ring.was_read(at.slot), at.phase ^ 1);
            if (copies >= in_flight) {
                barrier_wait(ring.arrived(oldest_on_its_way.slot), oldest_on_its_way.phase);
                oldest_on_its_way.next(ring.slots);
            }
            copy_bulk(ring.memory + at.slot * kSlotBytes, from, min(left, kSlotBytes),
                      ring.arrived(at.slot));
            at.next(ring.slots);
        }
    }
};

/// Partial sums: float32 [tiles touched, kGemvWarps, kTileRows] in shared memory, zero at first.
constexpr int kPartialsATile = kGemvWarps * kTileRows;

__device__ __forceinline__ void clear_partials(float* partials, int tiles) {
#pragma unroll 1
    for (int i = threadIdx.x; i < tiles * kPartialsATile; i += kGemvThreads) partials[i] = 0.0f;
}

/// What a warp does once it has left its sums of the share's first tile: nothing.
struct GoOn {
    __device__ __forceinline__ void operator()() const {}
};

/// One warp's way through its weight blocks, and the sums of the tile it is at, in independent
/// chains. out: this warp's partial sums of the first tile.
template <class Format, class OnFirstTile>
struct TileSums {
    static constexpr int kChains = kWarpBlocks<Format>;
    float* out;
    const int lane, blocks_a_tile, tiles;
    const OnFirstTile& on_first_tile;
    int k, tile = 0;  // next block
    float sum[kChains][4] = {};

    /// Goes on by this many blocks; leaves the sums of each tile that ends there.
    __device__ __forceinline__ void advance(int blocks) {
        k += blocks;
#pragma unroll 1
        for (; k >= blocks_a_tile; k -= blocks_a_tile) {
            leave();
            ++tile;
        }
    }
    __device__ __forceinline__ void leave() {
        // All columns of B are equal (fp8), or even and odd ones are the two parts (bf16).
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int i = 0; i < kChains; ++i) {
            low += Format::kParts == 2 ? sum[i][0] + sum[i][1] : sum[i][0];
            high += Format::kParts == 2 ? sum[i][2] + sum[i][3] : sum[i][2];
            sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        }
        if (lane % 4 == 0 && tile < tiles) {
            out[tile * kPartialsATile + lane / 4] = low;
            out[tile * kPartialsATile + lane / 4 + 8] = high;
        }
        __syncwarp();  // the next mma needs the whole warp together again
        if (tile == 0) on_first_tile();
    }
};

/// The multiplying warps: the share times x, as partial sums. cursor: the share's first slot, in
/// the end the one behind it. x: Format::Activation [kParts, columns] in shared memory.
template <class Format, class OnFirstTile = GoOn>
__device__ __forceinline__ void multiply_share(const WeightRing& ring, RingCursor& cursor,
                                               const Share& share,
                                               const typename Format::Activation* x, int columns,
                                               float* partials,
                                               const OnFirstTile& on_first_tile = {}) {
    constexpr int kSlotBlocks = livevoice::kSlotBlocks<Format>;
    constexpr int kWarpBlocks = livevoice::kWarpBlocks<Format>;
    const int lane = lane_id(), warp = keep(static_cast<int>(threadIdx.x) / 32);
    const auto* x_lane = x + (Format::kParts == 2 ? lane / 4 % 2 * columns : 0) + lane % 4 * 8;
    const uint8_t* mine = ring.memory + warp * kWarpBlocks * Format::kBlockBytes + lane * 16;
    const int blocks_a_tile = columns / kBlockColumns, first = share.first_k + warp * kWarpBlocks;
    TileSums<Format, OnFirstTile> at{
        partials + warp * kTileRows, lane, blocks_a_tile, share.tiles, on_first_tile,
        first % blocks_a_tile,       first / blocks_a_tile};
    if (at.tile > 0) on_first_tile();  // it has no part of that one
#pragma unroll 1
    for (int in_ring = share.blocks; in_ring > 0; in_ring -= kSlotBlocks) {
        const int left = in_ring - warp * kWarpBlocks;
        const uint8_t* blocks = mine + cursor.slot * kSlotBytes;
        if (left >= kWarpBlocks && at.k + kWarpBlocks <= blocks_a_tile) {
            uint4 x_here[kWarpBlocks];
            typename Format::Fragment fragment[kWarpBlocks];
#pragma unroll
            for (int i = 0; i < kWarpBlocks; ++i)
                x_here[i] = load_shared(x_lane + (at.k + i) * kBlockColumns);
            barrier_wait(ring.arrived(cursor.slot), cursor.phase);
#pragma unroll
            for (int i = 0; i < kWarpBlocks; ++i)
                fragment[i] = Format::load(blocks + i * Format::kBlockBytes);
#pragma unroll
            for (int i = 0; i < kWarpBlocks; ++i)
                Format::multiply(at.sum[i], Format::unpack(fragment[i]), x_here[i]);
            at.k += kWarpBlocks;
        } else {  // a tile or the share ends in between
            barrier_wait(ring.arrived(cursor.slot), cursor.phase);
#pragma unroll 1
            for (int i = 0; i < min(kWarpBlocks, left); ++i) {
                at.advance(0);
                Format::multiply(at.sum[0],
                                 Format::unpack(Format::load(blocks + i * Format::kBlockBytes)),
                                 load_shared(x_lane + at.k * kBlockColumns));
                ++at.k;
            }
        }
        __syncwarp();
        // Every lane for itself: faster than one lane for its warp, and racecheck can follow it.
        barrier_arrive(ring.was_read(cursor.slot));
        cursor.next(ring.slots);
        if (left > kSlotBlocks) at.advance(kSlotBlocks - kWarpBlocks);
    }
    at.leave();
}

/// Row scales of the block's tiles, read before the wait: they come from memory once a frame, and
/// nothing may wait for memory between input and result. scales: float32 [tiles, kTileRows],
/// shared.
template <class Format>
__device__ __forceinline__ void load_scales(const PackedMatrix& matrix, const Share& share,
                                            float* scales) {
#pragma unroll 1
    for (int i = threadIdx.x; Format::kScaled && i < share.tiles * kTileRows; i += kGemvThreads)
        scales[i] = matrix.scales[share.first_tile * kTileRows + i];
}

/// Sum of row `row` of the share's tile `tile` over the warps.
__device__ __forceinline__ float collect(const float* partials, int tile, int row) {
    const float* from = partials + tile * kPartialsATile + row;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kGemvWarps; ++warp) sum += from[warp * kTileRows];
    return sum;
}

/// The same as the row's value, scaled; i: row of the share.
template <class Format>
__device__ __forceinline__ float row_value(const float* partials, const float* scales, int i,
                                           float input_scale = 1.0f) {
    const float sum = collect(partials, i / kTileRows, i % kTileRows) * input_scale;
    return Format::kScaled ? sum * scales[i] : sum;
}

/// Shared memory of a gemv block: the ring, x, partial sums, row scales.
///
/// Kernels alternate between a little more and a little less than half of a multiprocessor's: one
/// that multiplies and the next one, which fills its ring meanwhile, fit together, two blocks of
/// the larger kind never do. Else blocks of one kernel would pair up where another kernel has just
/// ended, and leave every second multiprocessor without work (seen with fp8: 8 % slower).
template <class Format>
struct GemvShared {
    int slots;
    size_t bytes;

    GemvShared(const Launch& on, int columns, int tiles_touched, bool is_larger_half) {
        constexpr size_t kStatic = 1024;  // barriers and scratch; not more than that
        const size_t half = is_larger_half ? on.shared_bytes : on.shared_bytes - 2 * kStatic;
        const size_t others = sizeof(typename Format::Activation) * Format::kParts * columns +
                              sizeof(float) * tiles_touched * (kPartialsATile + kTileRows);
        const size_t room = std::max(half, others + kStatic) - others - kStatic;
        slots = std::min<size_t>(std::max<size_t>(room / kSlotBytes, 2), kMaxSlots);
        bytes = others + slots * kSlotBytes;
        if (on.overlap && is_larger_half) bytes = std::max(bytes, half + kStatic);
    }
};

}  // namespace livevoice
