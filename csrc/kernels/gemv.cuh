// gemv: packed weights x one activation vector, at memory speed.
//
// A block of 8 warps owns a contiguous range of weight blocks and reads it interleaved, warp by
// warp, straight into registers: Format::kDepth blocks a warp are always on their way, and the first
// are requested before the kernel waits for its input, so weights stream across kernel borders. The
// tensor cores do the multiplication (an FMA loop would be bound by conversions on fp8); each warp
// collects partial sums of the tiles it touched, and the block adds them up in a fixed order.
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

/// This warp's share of a range of weight blocks, and the registers they arrive in.
template <class Format>
struct WeightStream {
    static constexpr int kDepth = Format::kDepth;

    const uint8_t* weights;
    BlockRange range;
    int block;  // next to be used
    typename Format::Fragment ring[kDepth];

    __device__ WeightStream(const uint8_t* weights, BlockRange range)
        : weights(weights), range(range), block(range.begin + static_cast<int>(threadIdx.x) / 32) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) fetch(i, block + i * kGemvWarps);
    }
    __device__ __forceinline__ void fetch(int slot, int at) {
        if (at < range.end)
            ring[slot] =
                Format::load(weights + static_cast<size_t>(at) * Format::kBlockBytes, threadIdx.x % 32);
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
    constexpr int kDepth = WeightStream<Format>::kDepth;
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
    };
    while (stream.block < stream.range.end) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            if (stream.block < stream.range.end) {
                const Operand a = Format::unpack(stream.ring[i]);
                stream.fetch(i, stream.block + kDepth * kGemvWarps);
                Format::multiply(sum, a, load_shared(x_lane + k * kBlockColumns));
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

/// Rows of the packed matrix, what they are scaled by, and its size in tiles and columns.
struct PackedMatrix {
    const uint8_t* weights;
    const float* scales;  // float32, one per packed row; null for bf16
    int tiles, columns;
    __host__ __device__ int blocks_a_tile() const { return columns / kBlockColumns; }
};

template <class Format>
size_t gemv_shared_bytes(int columns, int tiles_touched) {
    return sizeof(typename Format::Activation) * Format::kParts * columns +
           sizeof(float) * tiles_touched * kPartialsATile;
}

}  // namespace livevoice
