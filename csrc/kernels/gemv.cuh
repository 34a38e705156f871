// gemv: packed weights x one activation vector, at memory speed.
//
// A block of 16 warps owns a contiguous range of weight blocks, and each warp a contiguous part of it:
// long runs in memory, few tiles a warp. Each warp keeps a few batches of blocks on their way into
// shared memory, the first ones before the kernel waits for its input: weights stream across kernel
// borders. (Bulk copies of this size reach half the bandwidth; a register ring is limited by the six
// scoreboards of a warp.) The tensor cores multiply (an FMA loop would be bound by conversions on
// fp8); each warp leaves partial sums of the tiles it touched, and the block adds them up in a fixed
// order.
#pragma once
#include "device/formats.cuh"
#include "kernels/launch.h"

namespace livevoice {

constexpr int kGemvWarps = 16;
constexpr int kGemvThreads = 32 * kGemvWarps;

/// A contiguous range of blocks of a packed matrix.
struct BlockRange {
    int begin, end;
};

/// Whole tiles: every row is finished by one thread block.
__host__ __device__ inline BlockRange whole_tiles(int tiles, int blocks_a_tile, int part, int parts) {
    const auto cut = [=](int i) {
        return static_cast<int>(static_cast<long long>(tiles) * i / parts) * blocks_a_tile;
    };
    return {cut(part), cut(part + 1)};
}

/// Equal shares. With parts <= tiles a tile is shared by at most two thread blocks.
__host__ __device__ inline BlockRange equal_shares(int tiles, int blocks_a_tile, int part,
                                                   int parts) {
    const long long blocks = static_cast<long long>(tiles) * blocks_a_tile;
    return {static_cast<int>(blocks * part / parts), static_cast<int>(blocks * (part + 1) / parts)};
}

/// Bytes that a warp asks for at a time, and how many such batches are on their way; 16 warps then
/// have 48 KB in flight. More only makes the queue in front of memory longer for everybody (measured).
/// Two thread blocks fit a multiprocessor with it: one that multiplies, and the next kernel's, which
/// asks for its first batches meanwhile. GPUs other than Hopper have less shared memory.
#ifndef LV_BYTES
#define LV_BYTES 1024
#define LV_N 3
#endif
constexpr int kBatchBytes = LV_BYTES, kBatchesHopper = LV_N, kBatchesOthers = 2;
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

/// This warp's part of the range of its thread block.
__device__ __forceinline__ BlockRange warp_share(BlockRange range) {
    const int warp = threadIdx.x / 32, blocks = range.end - range.begin;
    return {range.begin + blocks * warp / kGemvWarps, range.begin + blocks * (warp + 1) / kGemvWarps};
}

/// A warp's weight blocks, batch by batch, and the shared memory they arrive in.
template <class Format>
struct WeightStream {
    static constexpr int kBatch = kBatchBytes / Format::kBlockBytes;  // blocks

    const uint8_t* next;  // this lane's first bytes of the next batch to be asked for
    uint8_t* ring;        // this lane's first bytes of the first batch
    int requests;         // blocks still to be asked for
    int slot = 0;         // of the batch in use

    /// range: the warp's own; rings: of the whole thread block.
    __device__ __forceinline__ WeightStream(const uint8_t* weights, BlockRange range,
                                            uint8_t* rings) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        next = weights + static_cast<size_t>(range.begin) * Format::kBlockBytes + lane * 16;
        ring = rings + warp * kRingBytes + lane * 16;
        requests = range.end - range.begin;
#pragma unroll
        for (int i = 0; i < kBatches; ++i) request(i);
    }
    /// A lane copies exactly the bytes that it will use: no barrier is needed anywhere.
    __device__ __forceinline__ void request(int into) {
        uint8_t* to = ring + into * kBatchBytes;
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (i < requests)
                Format::fetch(to + i * Format::kBlockBytes, next + i * Format::kBlockBytes);
        copy_async_commit();  // an empty group keeps the count of groups right
        next += kBatchBytes;
        requests -= kBatch;
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

/// Multiplies a warp's range with x and leaves the partial sums of each tile that it touches.
/// x: Format::Activation [kParts, columns] in shared memory; first_tile: of the thread block.
template <class Format>
__device__ __forceinline__ void multiply_stream(WeightStream<Format>& stream, BlockRange range,
                                                const typename Format::Activation* x, int columns,
                                                int first_tile, float* partials) {
    constexpr int kBatch = WeightStream<Format>::kBatch;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int blocks_a_tile = columns / kBlockColumns;
    const auto* x_lane = x + (Format::kParts == 2 ? g % 2 * columns : 0) + 8 * t;
    int k = range.begin % blocks_a_tile;
    float* out = partials + (range.begin / blocks_a_tile - first_tile) * kPartialsATile +
                 static_cast<int>(threadIdx.x) / 32 * kTileRows;

    TileSum<Format> tile;
    for (int left = range.end - range.begin; left > 0; left -= kBatch) {
        const uint8_t* batch = stream.wait();
        if (left >= kBatch && k + kBatch <= blocks_a_tile) {
            typename Format::Fragment fragment[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
                fragment[i] = Format::load(batch + i * Format::kBlockBytes);
            stream.release();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
                tile.add(i % 2, fragment[i], x_lane + (k + i) * kBlockColumns);
            k += kBatch;
        } else {  // the end of a tile or of the range lies inside
            for (int i = 0; i < min(left, kBatch); ++i) {
                if (k == blocks_a_tile) {
                    tile.leave(out);
                    out += kPartialsATile;
                    k = 0;
                }
                tile.add(0, Format::load(batch + i * Format::kBlockBytes),
                         x_lane + k++ * kBlockColumns);
            }
            stream.release();
        }
        if (k == blocks_a_tile || left <= kBatch) {
            tile.leave(out);
            out += kPartialsATile;
            k = 0;
        }
    }
}

/// Packed rows, what they are scaled by, and its size in tiles and columns.
struct PackedMatrix {
    const uint8_t* weights;
    const float* scales;  // float32, one per packed row; null for bf16
    int tiles, columns;
    __host__ __device__ int blocks_a_tile() const { return columns / kBlockColumns; }
    template <class Format>
    Streamed streamed() const {
        return {weights, static_cast<size_t>(tiles) * blocks_a_tile() * Format::kBlockBytes};
    }
};

/// Row scales of the block's tiles, read before the wait: they come from memory once a frame, and
/// nothing may wait for memory between input and result. scales: float32 [tiles, kTileRows], shared.
template <class Format>
__device__ __forceinline__ void load_scales(const PackedMatrix& matrix, int first_tile, int tiles,
                                            float* scales) {
    for (int i = threadIdx.x; Format::kScaled && i < tiles * kTileRows; i += kGemvThreads)
        scales[i] = matrix.scales[first_tile * kTileRows + i];
}

/// Sum of row `row` of tile `tile` (counted from the block's first) over the warps.
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
    return static_cast<size_t>(kGemvWarps) * on.ring_bytes +
           sizeof(typename Format::Activation) * Format::kParts * columns +
           sizeof(float) * tiles_touched * (kPartialsATile + kTileRows);
}

}  // namespace livevoice
