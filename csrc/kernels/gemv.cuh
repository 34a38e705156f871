// gemv: packed weights x one activation vector, at memory speed.
//
// The tiles of a matrix are dealt to thread blocks of 16 warps, so that at any time all of them
// read neighbouring memory. Each warp takes every 16th batch of a thread block's weight blocks and
// keeps a few of them on their way into shared memory, the first ones before the kernel waits for
// its input: weights stream across kernel borders. (Bulk copies of this size reach half the
// bandwidth; a ring of registers is limited by the six scoreboards of a warp.) The tensor cores
// multiply (an FMA loop would be bound by conversions on fp8); each warp leaves partial sums of the
// tiles it touched, and the block adds them up in a fixed order.
#pragma once
#include "device/formats.cuh"
#include "kernels/launch.h"

namespace livevoice {

constexpr int kGemvWarps = 16;
constexpr int kGemvThreads = 32 * kGemvWarps;

/// The weight blocks of one thread block, in order: from block `first_k` of tile `first_tile` on,
/// then through tiles `tile_step` apart. `tiles` counts all that it touches.
struct TileWalk {
    int first_tile, first_k, tile_step, tiles, blocks;
    __device__ __forceinline__ int tile(int i) const { return first_tile + i * tile_step; }
};

/// Whole tiles, dealt like cards: every row is finished by one thread block.
__device__ __forceinline__ TileWalk dealt_tiles(int tiles, int blocks_a_tile) {
    const int part = blockIdx.x, parts = gridDim.x, mine = (tiles - part + parts - 1) / parts;
    return {part, 0, parts, mine, mine * blocks_a_tile};
}

/// Equal shares, cut between batches of `batch` blocks. With no more parts than tiles a tile is
/// shared by at most two thread blocks.
__device__ __forceinline__ TileWalk equal_shares(int tiles, int blocks_a_tile, int batch) {
    const int part = blockIdx.x, parts = gridDim.x;
    const long long batches = static_cast<long long>(tiles) * blocks_a_tile / batch;
    const int begin = static_cast<int>(batches * part / parts) * batch;
    const int end = static_cast<int>(batches * (part + 1) / parts) * batch;
    const int first_tile = begin / blocks_a_tile;
    return {first_tile, begin - first_tile * blocks_a_tile, 1,
            ceil_div(end, blocks_a_tile) - first_tile, end - begin};
}

/// Bytes that a warp asks for at a time, and how many such batches are on their way; 16 warps then
/// have 48 KB in flight. More only makes the queue in front of memory longer for everybody
/// (measured). Two thread blocks fit a multiprocessor with it: one that multiplies, and the next
/// kernel's, which asks for its first batches meanwhile. GPUs other than Hopper have less shared
/// memory.
constexpr int kBatchBytes = 1024, kBatchesHopper = 3, kBatchesOthers = 2;
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int kBatches = kBatchesHopper;
#else
constexpr int kBatches = kBatchesOthers;
#endif
constexpr int kRingBytes = kBatches * kBatchBytes;

/// kRingBytes as the host sees it.
inline int ring_bytes_for(int compute_capability_major) {
    const bool is_large = compute_capability_major == 9 || compute_capability_major == 10;
    return kBatchBytes * (is_large ? kBatchesHopper : kBatchesOthers);
}

/// Where a warp is on its walk: block k of the walk's i-th tile.
struct WalkCursor {
    int i = 0, k;
    __device__ __forceinline__ WalkCursor(const TileWalk& walk, int batch, int blocks_a_tile)
        : k(walk.first_k) {
        advance(static_cast<int>(threadIdx.x) / 32 * batch, blocks_a_tile);
    }
    /// True when that leads to another tile.
    __device__ __forceinline__ bool advance(int blocks, int blocks_a_tile) {
        const int before = i;
        for (k += blocks; k >= blocks_a_tile; k -= blocks_a_tile) ++i;
        return i != before;
    }
};

/// A warp's weight blocks, batch by batch, and the shared memory they arrive in.
template <class Format>
struct WeightStream {
    static constexpr int kBatch = kBatchBytes / Format::kBlockBytes;  // blocks

    const uint8_t* weights;  // this lane's first bytes of block 0
    uint8_t* ring;           // this lane's first bytes of the first batch
    const TileWalk walk;
    const int blocks_a_tile;
    WalkCursor next;  // to be asked for
    int batches;      // of this warp
    int requests;     // batches still to be asked for
    int slot = 0;     // of the batch in use

    __device__ __forceinline__ WeightStream(const uint8_t* packed, const TileWalk& walk,
                                            int blocks_a_tile, uint8_t* rings)
        : weights(packed + threadIdx.x % 32 * 16),
          ring(rings + threadIdx.x / 32 * kRingBytes + threadIdx.x % 32 * 16),
          walk(walk),
          blocks_a_tile(blocks_a_tile),
          next(walk, kBatch, blocks_a_tile) {
        const int warp = threadIdx.x / 32, all = walk.blocks / kBatch;
        requests = batches = all > warp ? (all - warp + kGemvWarps - 1) / kGemvWarps : 0;
#pragma unroll
        for (int i = 0; i < kBatches; ++i) request(i);
    }
    /// A lane copies exactly the bytes that it will use: no barrier is needed anywhere.
    __device__ __forceinline__ void request(int into) {
        if (requests > 0) {
            const size_t block = static_cast<size_t>(walk.tile(next.i)) * blocks_a_tile + next.k;
            const uint8_t* from = weights + block * Format::kBlockBytes;
            uint8_t* to = ring + into * kBatchBytes;
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
                Format::fetch(to + i * Format::kBlockBytes, from + i * Format::kBlockBytes);
            next.advance(kBatch * kGemvWarps, blocks_a_tile);
            --requests;
        }
        copy_async_commit();  // an empty group keeps the count of groups right
    }
    /// This lane's bytes of the batch in use, once they are there.
    __device__ __forceinline__ const uint8_t* wait() {
        copy_async_wait<kBatches - 1>();
        return ring + slot * kBatchBytes;
    }
    /// The batch was read: asks for another one in its place.
    __device__ __forceinline__ void release() {
        request(slot);
        slot = slot + 1 == kBatches ? 0 : slot + 1;
    }
};

/// Partial sums: float32 [tiles touched, kGemvWarps, kTileRows] in shared memory, zero at first.
constexpr int kPartialsATile = kGemvWarps * kTileRows;

__device__ __forceinline__ void clear_partials(float* partials, int tiles) {
    for (int i = threadIdx.x; i < tiles * kPartialsATile; i += kGemvThreads) partials[i] = 0.0f;
}

/// Sums of the tile that a warp is at, in two independent chains.
template <class Format>
struct TileSum {
    float sum[2][4] = {};

    __device__ __forceinline__ void add(int chain, const typename Format::Fragment& weights,
                                        const typename Format::Activation* x) {
        Format::multiply(sum[chain], Format::unpack(weights), load_shared(x));
    }
    /// out: float32 [kTileRows] of this tile and warp. Starts the next tile.
    __device__ __forceinline__ void leave(float* out) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        // All columns of B are equal (fp8), or even and odd ones are the two parts (bf16).
        float low = sum[0][0] + sum[1][0], high = sum[0][2] + sum[1][2];
        if (Format::kParts == 2) {
            low += sum[0][1] + sum[1][1];
            high += sum[0][3] + sum[1][3];
        }
        if (t == 0) {
            out[g] = low;
            out[g + 8] = high;
        }
        __syncwarp();  // the next mma needs the whole warp together again
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[0][i] = sum[1][i] = 0.0f;
    }
};

/// Multiplies a warp's blocks with x and leaves the partial sums of each tile that it touches.
/// x: Format::Activation [kParts, columns] in shared memory.
template <class Format>
__device__ __forceinline__ void multiply_stream(WeightStream<Format>& stream,
                                                const typename Format::Activation* x, int columns,
                                                float* partials) {
    constexpr int kBatch = WeightStream<Format>::kBatch;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto* x_lane = x + (Format::kParts == 2 ? g % 2 * columns : 0) + 8 * t;
    float* out = partials + static_cast<int>(threadIdx.x) / 32 * kTileRows;

    TileSum<Format> tile;
    WalkCursor at(stream.walk, kBatch, stream.blocks_a_tile);
    for (int left = stream.batches; left > 0; --left) {
        const uint8_t* batch = stream.wait();
        typename Format::Fragment fragment[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            fragment[i] = Format::load(batch + i * Format::kBlockBytes);
        stream.release();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            tile.add(i % 2, fragment[i], x_lane + (at.k + i) * kBlockColumns);
        const int here = at.i;
        if (at.advance(kBatch * kGemvWarps, stream.blocks_a_tile) || left == 1)
            tile.leave(out + here * kPartialsATile);
    }
}

/// Packed rows, what they are scaled by, and its size in tiles and columns.
struct PackedMatrix {
    const uint8_t* weights;
    const float* scales;  // float32, one per packed row; null for bf16
    int tiles, columns;
    __host__ __device__ int blocks_a_tile() const { return columns / kBlockColumns; }
};

/// Row scales of the block's tiles, read before the wait: they come from memory once a frame, and
/// nothing may wait for memory between input and result. scales: float32 [tiles, kTileRows],
/// shared.
template <class Format>
__device__ __forceinline__ void load_scales(const PackedMatrix& matrix, const TileWalk& walk,
                                            float* scales) {
    for (int i = threadIdx.x; Format::kScaled && i < walk.tiles * kTileRows; i += kGemvThreads)
        scales[i] = matrix.scales[walk.tile(i / kTileRows) * kTileRows + i % kTileRows];
}

/// Sum of row `row` of the walk's tile `tile` over the warps.
__device__ __forceinline__ float collect(const float* partials, int tile, int row) {
    const float* from = partials + tile * kPartialsATile + row;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kGemvWarps; ++warp) sum += from[warp * kTileRows];
    return sum;
}

/// Rings first, then x, partial sums, row scales.
template <class Format>
size_t gemv_shared_bytes(const Launch& on, int columns, int tiles_touched) {
    constexpr int kMultiple = kBlockColumns * WeightStream<Format>::kBatch;
    LIVEVOICE_CHECK(columns % kMultiple == 0, "gemv: columns must be a multiple of ", kMultiple,
                    ", got ", columns);
    return static_cast<size_t>(kGemvWarps) * on.ring_bytes +
           sizeof(typename Format::Activation) * Format::kParts * columns +
           sizeof(float) * tiles_touched * (kPartialsATile + kTileRows);
}

}  // namespace livevoice
