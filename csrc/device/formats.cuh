// Weight formats, and the packed layout that every matrix kernel reads.
//
// A matrix [rows, K] is cut into tiles of 16 rows and blocks of 32 columns; padding rows are zero.
// Blocks of one tile follow each other, tiles follow each other: [tile][block]. Inside a block lane
// l = 4 * g + t of a warp owns columns 8t .. 8t+7 of rows g and g + 8, and its bytes lie where one
// coalesced 16-byte load per lane finds them:
//     fp8   512 bytes: [lane][row g: 8 values, row g + 8: 8 values]
//     bf16 1024 bytes: [row half][lane][8 values]
// That is the A operand of mma.m16n8k16 with its columns renumbered. The activation is numbered the
// same way simply by giving lane t eight consecutive values, so it needs no shuffling at all.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/ptx.cuh"

namespace livevoice {

constexpr int kTileRows = 16;
constexpr int kBlockColumns = 32;

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

/// What the kernels of a decode step hand to each other is read in words of 64 bits, two float32 or
/// four 16-bit values, whose lowest bit belongs to the exchange (kernels/exchange.cuh): nobody
/// computes with it, on either path, so both give the same bits. `i`: index of the value.
__device__ __forceinline__ float without_flag(float v, int i) {
    return i % 2 == 0 ? __uint_as_float(__float_as_uint(v) & ~1u) : v;
}
__device__ __forceinline__ uint16_t without_flag(uint16_t v, int i) {
    return i % 4 == 0 ? v & 0xfffeu : v;
}
__device__ __forceinline__ float4 without_flags(float4 v) {
    return make_float4(without_flag(v.x, 0), v.y, without_flag(v.z, 0), v.w);
}

/// An A operand: 16 rows x 32 columns as two k16 steps.
struct Operand {
    uint32_t step[2][4];
};

/// e4m3 weights with one float32 scale per row; float16 activations (W8A16).
struct Fp8 {
    using Activation = __half;
    static constexpr int kBlockBytes = kTileRows * kBlockColumns;
    static constexpr bool kScaled = true;
    /// SwiGLU outputs are stored divided by 16: a trained model's reach beyond float16's 65,504.
    static constexpr float kSwigluScale = 1.0f / 16;
    /// Columns of the B operand that carry one activation vector.
    static constexpr int kParts = 1;

    struct Fragment {
        uint4 bytes;  // row g: x, y; row g + 8: z, w
    };
    /// Requests a lane's bytes of a block; both pointers are at the lane's first 16 bytes.
    static __device__ __forceinline__ void fetch(uint8_t* shared, const uint8_t* block) {
        copy_async(shared, block, true);
    }
    /// Reads a lane's bytes of a block in shared memory.
    static __device__ __forceinline__ Fragment load(const uint8_t* shared) {
        return {load_shared(shared)};
    }
    static __device__ __forceinline__ Operand unpack(const Fragment& f) {
        Operand a;
        e4m3_to_f16(f.bytes.x, a.step[0][0], a.step[0][2]);
        e4m3_to_f16(f.bytes.z, a.step[0][1], a.step[0][3]);
        e4m3_to_f16(f.bytes.y, a.step[1][0], a.step[1][2]);
        e4m3_to_f16(f.bytes.w, a.step[1][1], a.step[1][3]);
        return a;
    }
    static __device__ __forceinline__ void multiply(float (&sum)[4], const Operand& a, uint4 x) {
        mma_f16(sum, a.step[0], x.x, x.y);
        mma_f16(sum, a.step[1], x.z, x.w);
    }
    /// Clamped: an overflow would turn the whole sentence into NaN.
    static __device__ __forceinline__ Activation round(float v) {
        return __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f));
    }
    /// One value as the kernels of a decode step hand it on, i its index.
    static __device__ __forceinline__ void hand_on(uint16_t (&bits)[kParts], int i, float v) {
        bits[0] = without_flag(__half_as_ushort(round(v)), i);
    }
    /// Four neighbouring values, i a multiple of 4.
    static __device__ __forceinline__ void store4(Activation* x, int, int i, float4 v) {
        const __half2 low(round(v.x), round(v.y)), high(round(v.z), round(v.w));
        *reinterpret_cast<uint2*>(x + i) = make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                                                      *reinterpret_cast<const uint32_t*>(&high));
    }
};

/// The checkpoint's bfloat16 weights. One activation is two bfloat16 numbers, value and remainder,
/// in neighbouring columns of the B operand that would idle otherwise: 16 bits of mantissa for
/// free.
struct Bf16 {
    using Activation = __nv_bfloat16;
    static constexpr int kBlockBytes = 2 * kTileRows * kBlockColumns;
    static constexpr bool kScaled = false;
    static constexpr float kSwigluScale = 1.0f;
    static constexpr int kParts = 2;

    struct Fragment {
        uint4 low, high;  // row g, row g + 8
    };
    static __device__ __forceinline__ void fetch(uint8_t* shared, const uint8_t* block) {
        copy_async(shared, block, true);
        copy_async(shared + 512, block + 512, true);
    }
    static __device__ __forceinline__ Fragment load(const uint8_t* shared) {
        return {load_shared(shared), load_shared(shared + 512)};
    }
    static __device__ __forceinline__ Operand unpack(const Fragment& f) {
        return {{{f.low.x, f.high.x, f.low.y, f.high.y}, {f.low.z, f.high.z, f.low.w, f.high.w}}};
    }
    static __device__ __forceinline__ void multiply(float (&sum)[4], const Operand& a, uint4 x) {
        mma_bf16(sum, a.step[0], x.x, x.y);
        mma_bf16(sum, a.step[1], x.z, x.w);
    }
    static __device__ __forceinline__ Activation round(float v) { return __float2bfloat16_rn(v); }
    /// Value and remainder; the remainder makes up for the value's lowest bit.
    static __device__ __forceinline__ void hand_on(uint16_t (&bits)[kParts], int i, float v) {
        bits[0] = without_flag(__bfloat16_as_ushort(round(v)), i);
        const float rest = v - __uint_as_float(static_cast<uint32_t>(bits[0]) << 16);
        bits[1] = without_flag(__bfloat16_as_ushort(round(rest)), i);
    }
    /// x: [2, n], values then remainders.
    static __device__ __forceinline__ void store4(Activation* x, int n, int i, float4 v) {
        const uint2 value = pack4(v);
        const float4 rest = make_float4(
            v.x - __uint_as_float(value.x << 16), v.y - __uint_as_float(value.x & kHigh),
            v.z - __uint_as_float(value.y << 16), v.w - __uint_as_float(value.y & kHigh));
        *reinterpret_cast<uint2*>(x + i) = value;
        *reinterpret_cast<uint2*>(x + n + i) = pack4(rest);
    }

  private:
    static constexpr uint32_t kHigh = 0xffff0000u;
    static __device__ __forceinline__ uint2 pack4(float4 v) {
        return make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    }
};

/// Where column c of an activation lies that a GEMM reads: in the order in which the tensor cores
/// count the columns of a packed block.
__host__ __device__ __forceinline__ int operand_column(int c) {
    const int t = c % 32 / 8, step = c % 8 / 4, half = c % 4 / 2;
    return c / 32 * 32 + 16 * step + 8 * half + 2 * t + c % 2;
}

/// Index of the 16 bytes that hold columns 8p .. 8p+7 of `row` in a packed bf16 matrix.
__host__ __device__ inline size_t packed_bf16_piece(int row, int p, int blocks) {
    const int tile = row / kTileRows, half = row % kTileRows / 8, g = row % 8;
    const size_t block = static_cast<size_t>(tile) * blocks + p / 4;
    return block * (Bf16::kBlockBytes / 16) + half * 32 + g * 4 + p % 4;
}

/// Eight bfloat16 values as floats.
__device__ __forceinline__ void unpack_bf16(float (&out)[8], uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

}  // namespace livevoice
