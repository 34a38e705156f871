// gemv: packed weights x one activation vector, at memory speed.
//
// A block of 16 warps owns a contiguous range of weight blocks and reads it interleaved, warp by
// warp. Each warp keeps a ring of weight blocks on their way into shared memory; a lane copies
// exactly the bytes that it will use, so no barrier is needed anywhere. The ring is filled before the
// kernel waits for its input: weights stream across kernel borders. The tensor cores multiply (an
// FMA loop would be bound by conversions on fp8); each warp collects partial sums of the tiles it
// touched, and the block adds them up in a fixed order.
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

/// Ring of one warp. Two thread blocks fit a multiprocessor with it: one that multiplies, and the
/// next kernel's, which fills its ring meanwhile. Hopper has 228 KB of shared memory, others 100 KB.
constexpr int kRingBytesHopper = 4096, kRingBytesOthers = 2048;
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int kRingBytes = kRingBytesHopper;
#else
constexpr int kRingBytes = kRingBytesOthers;
#endif

/// kRingBytes as the host sees it.
inline int ring_bytes_for(int compute_capability_major) {
    const bool is_large = compute_capability_major == 9 || compute_capability_major == 10;
    return is_large ? kRingBytesHopper : kRingBytesOthers;
}

/// This warp's share of a range of weight blocks, and the shared memory they arrive in. Every block
/// is a group of its own among the thread's asynchronous copies.
template <class Format>
struct WeightStream {
    static constexpr int kDepth = kRingBytes / Format::kBlockBytes;

    const uint8_t* next;  // this lane's bytes of the next block to be requested
    uint8_t* ring;        // this lane's bytes of the first slot
    int requests;         // blocks still to be requested
    int slot = 0;         // of the next block to be used

    __device__ __forceinline__ WeightStream(const uint8_t* weights, BlockRange range,
                                            uint8_t* rings) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        next = weights + static_cast<size_t>(range.begin + warp) * Format::kBlockBytes + lane * 16;
        ring = rings + warp * kRingBytes + lane * 16;
        requests = n_blocks(range);
#pragma unroll
        for (int i = 0; i < kDepth; ++i) request(i);
    }
    /// Blocks of a range that are this warp's.
    static __device__ __forceinline__ int n_blocks(BlockRange range) {
        const int warp = threadIdx.x / 32, left = range.end - range.begin - warp;
        return left > 0 ? (left + kGemvWarps - 1) / kGemvWarps : 0;
    }
    __device__ __forceinline__ void request(int into) {
        if (requests > 0) {
            Format::fetch(ring + into * Format::kBlockBytes, next);
            next += kGemvWarps * Format::kBlockBytes;
            --requests;
        }
        copy_async_commit();  // an empty group keeps the count of groups right
    }
    /// The next kCount blocks, which arrive together; asks for as many new ones in their place.
    template <int kCount>
    __device__ __forceinline__ void take(typename Format::Fragment (&fragment)[kCount]) {
        copy_async_wait<kDepth - kCount>();
        int from[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            from[i] = slot;
            fragment[i] = Format::load(ring + slot * Format::kBlockBytes);
            slot = slot + 1 == kDepth ? 0 : slot + 1;
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) request(from[i]);  // behind the loads, in order
    }
};

/// Partial sums: float32 [tiles touched, kGemvWarps, kTileRows] in shared memory, zero at first.
constexpr int kPartialsATile = kGemvWarps * kTileRows;

__device__ __forceinline__ void clear_partials(float* partials, int tiles) {
    for (int i = threadIdx.x; i < tiles * kPartialsATile; i += kGemvThreads) partials[i] = 0.0f;
}

/// Multiplies kCount blocks, kGemvWarps apart along K, from x_lane on.
template <class Format, int kCount>
__device__ __forceinline__ void multiply_blocks(WeightStream<Format>& stream,
                                                const typename Format::Activation* x_lane,
                                                float (&sum)[2][4]) {
    typename Format::Fragment fragment[kCount];
    stream.template take<kCount>(fragment);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        Format::multiply(sum[i % 2], Format::unpack(fragment[i]),
                         load_shared(x_lane + i * kGemvWarps * kBlockColumns));
}

/// Multiplies the stream of a range with x and leaves the partial sums of each tile.
/// x: Format::Activation [kParts, columns] in shared memory.
template <class Format>
__device__ __forceinline__ void multiply_stream(WeightStream<Format>& stream, BlockRange range,
                                                const typename Format::Activation* x, int columns,
                                                float* partials) {
    constexpr int kBatch = Format::kBatch;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int blocks_a_tile = columns / kBlockColumns;
    const int first_tile = range.begin / blocks_a_tile;
    const auto* x_lane = x + (Format::kParts == 2 ? g % 2 * columns : 0) + 8 * t;
    int block = range.begin + warp, tile = block / blocks_a_tile;
    int left = WeightStream<Format>::n_blocks(range);

    while (left > 0) {
        int k = block - tile * blocks_a_tile;
        const int in_tile = min((blocks_a_tile - k + kGemvWarps - 1) / kGemvWarps, left);
        float sum[2][4] = {};
        int i = 0;
        for (; i + kBatch <= in_tile; i += kBatch, k += kBatch * kGemvWarps)
            multiply_blocks<Format, kBatch>(stream, x_lane + k * kBlockColumns, sum);
        for (; i < in_tile; ++i, k += kGemvWarps)
            multiply_blocks<Format, 1>(stream, x_lane + k * kBlockColumns, sum);
        // All columns of B are equal (fp8), or even and odd ones are the two parts (bf16).
        float low = sum[0][0] + sum[1][0], high = sum[0][2] + sum[1][2];
        if (Format::kParts == 2) {
            low += sum[0][1] + sum[1][1];
            high += sum[0][3] + sum[1][3];
        }
        float* out = partials + (tile - first_tile) * kPartialsATile + warp * kTileRows;
        if (t == 0) {
            out[g] = low;
            out[g + 8] = high;
        }
        __syncwarp();  // the next mma needs the whole warp together again
        left -= in_tile;
        block += in_tile * kGemvWarps;
        tile = block / blocks_a_tile;
    }
}

/// Sum of row `row` of tile `tile` (counted from the block's first) over the warps.
__device__ __forceinline__ float collect(const float* partials, int tile, int row) {
    const float* from = partials + tile * kPartialsATile + row;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kGemvWarps; ++warp) sum += from[warp * kTileRows];
    return sum;
}

/// Packed rows, what they are scaled by, and its size in tiles and columns.
struct PackedMatrix {
    const uint8_t* weights;
    const float* scales;  // float32, one per packed row; null for bf16
    int tiles, columns;
    __host__ __device__ int blocks_a_tile() const { return columns / kBlockColumns; }
};

/// Rings first, then x, then partial sums.
template <class Format>
size_t gemv_shared_bytes(const Launch& on, int columns, int tiles_touched) {
    return static_cast<size_t>(kGemvWarps) * on.ring_bytes +
           sizeof(typename Format::Activation) * Format::kParts * columns +
           sizeof(float) * tiles_touched * kPartialsATile;
}

}  // namespace livevoice
