// pack: row-major bfloat16 rows -> the packed layout of device/formats.cuh, quantised on the way.
// Runs once per matrix while loading; a row is read twice, the second time from L2.
#pragma once
#include "check.h"
#include "device/formats.cuh"

namespace livevoice {

/// Where the rows of one source matrix go in the packed one.
struct RowPlacement {
    int first_tile;   // tile of source row 0
    int rows_a_tile;  // 16: whole tiles. 8: half tiles, for gate and up rows that share tiles
    int first_row;    // row inside the tile of source row 0: 0, or 8 for the up rows
    __device__ int tile(int row) const { return first_tile + row / rows_a_tile; }
    __device__ int row_in_tile(int row) const { return first_row + row % rows_a_tile; }
};

constexpr int kPackThreads = 256;

template <class Format>
__device__ void store_piece(uint8_t* block, int row_in_tile, int t, const float (&v)[8]) {
    const int half = row_in_tile / 8, lane = row_in_tile % 8 * 4 + t;
    if constexpr (Format::kScaled) {
        uint2 bytes;
        auto* out = reinterpret_cast<__nv_fp8_storage_t*>(&bytes);
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = __nv_cvt_float_to_fp8(v[i], __NV_SATFINITE, __NV_E4M3);
        *reinterpret_cast<uint2*>(block + lane * 16 + half * 8) = bytes;
    } else {
        *reinterpret_cast<uint4*>(block + half * 512 + lane * 16) =
            make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                       pack_bf16(v[6], v[7]));
    }
}

/// One source row by one block. The scale maps the row's largest magnitude to e4m3's largest, 448.
template <class Format>
__global__ void pack_kernel(const uint4* source, uint8_t* packed, float* scales,
                            int first_source_row, int columns, RowPlacement place) {
    __shared__ float warp_max[kPackThreads / 32];
    const int row = first_source_row + blockIdx.x, pieces = columns / 8;
    const uint4* from = source + static_cast<size_t>(blockIdx.x) * pieces;
    const int tile = place.tile(row), row_in_tile = place.row_in_tile(row);
    float scale = 1.0f;
    if constexpr (Format::kScaled) {
        float largest = 0.0f;
        for (int p = threadIdx.x; p < pieces; p += kPackThreads) {
            float v[8];
            unpack_bf16(v, from[p]);
#pragma unroll
            for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i]));
        }
        for (int lane = 16; lane > 0; lane /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lane));
        if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = largest;
        __syncthreads();
        for (int warp = 0; warp < kPackThreads / 32; ++warp)
            largest = fmaxf(largest, warp_max[warp]);
        scale = largest > 0.0f ? __fdiv_rn(largest, 448.0f) : 1.0f;
        if (threadIdx.x == 0) scales[tile * kTileRows + row_in_tile] = scale;
    }
    for (int p = threadIdx.x; p < pieces; p += kPackThreads) {
        float v[8];
        unpack_bf16(v, from[p]);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = Format::kScaled ? __fdiv_rn(v[i], scale) : v[i];
        const size_t block = static_cast<size_t>(tile) * (columns / kBlockColumns) + p / 4;
        store_piece<Format>(packed + block * Format::kBlockBytes, row_in_tile, p % 4, v);
    }
}

/// source: bf16 [rows, columns], rows first_source_row .. of the whole matrix; columns a multiple
/// of 32. packed, scales: the whole packed matrix; scales (float32, one a packed row) only for fp8.
template <class Format>
void pack(const void* source, uint8_t* packed, float* scales, int first_source_row, int rows,
          int columns, RowPlacement place, cudaStream_t stream) {
    LIVEVOICE_CHECK(columns % kBlockColumns == 0, "pack: columns must be a multiple of ",
                    kBlockColumns, ", got ", columns);
    pack_kernel<Format><<<rows, kPackThreads, 0, stream>>>(
        static_cast<const uint4*>(source), packed, scales, first_source_row, columns, place);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace livevoice
