// gemv: packed weights x one activation vector, at memory speed.
//
// A block of 8 warps owns a contiguous range of weight blocks and reads it interleaved, warp by
// warp. Each warp keeps a ring of weight blocks on their way into shared memory; a lane copies
// exactly the bytes that it will use, so no barrier is needed anywhere. The ring is filled before the
// kernel waits for its input: weights stream across kernel borders. The tensor cores multiply (an
// FMA loop would be bound by conversions on fp8); each warp collects partial sums of the tiles it
// touched, and the block adds them up in a fixed order.
#pragma once
#include "device/formats.cuh"
#include "kernels/launch.h"

namespace livevoice {

constexpr int kGemvWarps = 8;
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
constexpr int kRingBytesHopper = 8192, kRingBytesOthers = 3072;
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

/// This warp's share of a range of weight blocks, and the shared memory they arrive in.
template <class Format>
struct WeightStream {
    static constexpr int kGroup = 1024 / Format::kBlockBytes;  // blocks requested together
    static constexpr int kGroups = kRingBytes / 1024;

    const uint8_t* weights;
    BlockRange range;
    int block;      // next to be used
    uint8_t* ring;  // this warp's
    int slot = 0;   // the group that `block` starts

    __device__ __forceinline__ WeightStream(const uint8_t* weights, BlockRange range, uint8_t* rings)
        : weights(weights), range(range), block(range.begin + static_cast<int>(threadIdx.x) / 32),
          ring(rings + static_cast<int>(threadIdx.x) / 32 * kRingBytes) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i) fetch(i, block + i * kGroup * kGemvWarps);
    }
    __device__ __forceinline__ void fetch(int into, int first) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            const int at = first + i * kGemvWarps;
            // Past the end nothing is read, but the number of groups stays right.
            if (at < range.end)
                Format::fetch(ring + (into * kGroup + i) * Format::kBlockBytes,
                              weights + static_cast<size_t>(at) * Format::kBlockBytes,
                              threadIdx.x % 32, true);
        }
        copy_async_commit();
    }
    /// The next kGroup blocks; refills the place of the ones before.
    __device__ __forceinline__ void take(typename Format::Fragment (&group)[kGroup]) {
        copy_async_wait<kGroups - 1>();
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
            group[i] = Format::load(ring + (slot * kGroup + i) * Format::kBlockBytes,
                                    threadIdx.x % 32);
    }
    __device__ __forceinline__ void refill() {
        fetch(slot, block + kGroups * kGroup * kGemvWarps);
        slot = slot + 1 == kGroups ? 0 : slot + 1;
    }
};

/// Partial sums: float32 [tiles touched, kGemvWarps, kTileRows] in shared memory, zero at first.
constexpr int kPartialsATile = kGemvWarps * kTileRows;

__device__ __forceinline__ void clear_partials(float* partials, int tiles) {
    for (int i = threadIdx.x; i < tiles * kPartialsATile; i += kGemvThreads) partials[i] = 0.0f;
}

/// Multiplies the stream with x and leaves the partial sums of each tile.
/// x: Format::Activation [kParts, columns] in shared memory.
template <class Format>
__device__ __forceinline__ void multiply_stream(WeightStream<Format>& stream, const typename Format::Activation* x,
                                int columns, float* partials) {
    constexpr int kGroup = WeightStream<Format>::kGroup;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int blocks_a_tile = columns / kBlockColumns;
    const int first_tile = stream.range.begin / blocks_a_tile;
    int tile = stream.block / blocks_a_tile, k = stream.block - tile * blocks_a_tile;
    const typename Format::Activation* x_lane = x + (Format::kParts == 2 ? g % 2 * columns : 0) + 8 * t;

    float sum[4] = {};
    const auto leave_tile = [&] {
        // All columns of B are equal (fp8), or even and odd ones are the two parts (bf16).
        const float low = Format::kParts == 2 ? sum[0] + sum[1] : sum[0];
        const float high = Format::kParts == 2 ? sum[2] + sum[3] : sum[2];
        float* out = partials + (tile - first_tile) * kPartialsATile + warp * kTileRows;
        if (t == 0) {
            out[g] = low;
            out[g + 8] = high;
        }
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        __syncwarp();  // the next mma needs the whole warp together again
    };
    while (stream.block < stream.range.end) {
        typename Format::Fragment group[kGroup];
        stream.take(group);
        Operand a[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) a[i] = Format::unpack(group[i]);
        stream.refill();  // after the registers have the bytes
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            if (stream.block < stream.range.end) {
                Format::multiply(sum, a[i], load_shared(x_lane + k * kBlockColumns));
                stream.block += kGemvWarps;
                k += kGemvWarps;
                if (k >= blocks_a_tile || stream.block >= stream.range.end) {
                    leave_tile();
                    for (; k >= blocks_a_tile; k -= blocks_a_tile) ++tile;
                }
            }
        }
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
