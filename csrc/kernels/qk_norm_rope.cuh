// qk_norm_rope: RMSNorm of each query and key head, rotation, and the append to the KV cache.
// The device body serves decode and prefill; the kernel is the prefill's.
#pragma once
#include "device/formats.cuh"
#include "device/reduce.cuh"
#include "kernels/launch.h"

namespace livevoice {

/// Keys and values of one layer: bfloat16 [kv heads][capacity][K: D, V: D].
struct KvCache {
    __nv_bfloat16* data;
    int capacity;
    template <int D>
    __device__ __forceinline__ __nv_bfloat16* at(int kv_head, int position) const {
        return data + (static_cast<size_t>(kv_head) * capacity + position) * (2 * D);
    }
};

/// Heads of a layer and how its queries and keys are normalised and rotated.
struct HeadShape {
    int heads, kv_heads;
    float eps;
    const float *q_norm, *k_norm;  // float32 [D]
    const float2* rope;            // (cos, sin) [positions, D / 2], rounded to bfloat16
    __host__ __device__ int group() const { return heads / kv_heads; }
    template <int D>
    __device__ const float2* angles(int position) const {
        return rope + static_cast<size_t>(position) * (D / 2);
    }
};

/// A head is spread over D / 16 lanes. Lane j holds dimensions 8j .. 8j+7 (low) and the ones that
/// rotation pairs them with, D/2 + 8j .. (high).
template <int D>
struct HeadSlice {
    static constexpr int kLanes = D / 16;
    float low[8], high[8];

    __device__ __forceinline__ void load(const float* head, int j) {
        load8(low, head + 8 * j);
        load8(high, head + D / 2 + 8 * j);
    }
    /// The four pieces of 16 bytes that load() reads.
    __device__ __forceinline__ void set(const uint4* pieces) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float* to = i < 2 ? low + 4 * i : high + 4 * (i - 2);
            to[0] = __uint_as_float(pieces[i].x), to[1] = __uint_as_float(pieces[i].y);
            to[2] = __uint_as_float(pieces[i].z), to[3] = __uint_as_float(pieces[i].w);
        }
    }
    __device__ __forceinline__ void add(const float* head, int j) {
        HeadSlice other;
        other.load(head, j);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            low[i] += other.low[i];
            high[i] += other.high[i];
        }
    }
    __device__ __forceinline__ void load(const uint4& low_bits, const uint4& high_bits) {
        unpack_bf16(low, low_bits);
        unpack_bf16(high, high_bits);
    }
    /// The slice that another lane holds.
    __device__ __forceinline__ HeadSlice of_lane(int lane) const {
        HeadSlice other;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            other.low[i] = __shfl_sync(~0u, low[i], lane);
            other.high[i] = __shfl_sync(~0u, high[i], lane);
        }
        return other;
    }
    /// weight: float32 [D]; rope: this position's (cos, sin) [D / 2]; !is_wanted: takes part only.
    __device__ __forceinline__ void norm_rope(const float* weight, const float2* rope, float eps,
                                              int j, bool is_wanted = true) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += low[i] * low[i] + high[i] * high[i];
        const float scale = rsqrtf(warp_sum<kLanes>(squares) / D + eps);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float2 angle = rope[8 * j + i];
            const float a = low[i] * scale * weight[8 * j + i];
            const float b = high[i] * scale * weight[D / 2 + 8 * j + i];
            low[i] = is_wanted ? a * angle.x - b * angle.y : low[i];
            high[i] = is_wanted ? b * angle.x + a * angle.y : high[i];
        }
    }
    __device__ __forceinline__ float dot(const HeadSlice& other) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += low[i] * other.low[i] + high[i] * other.high[i];
        return warp_sum<kLanes>(sum);
    }
    __device__ __forceinline__ uint4 low_bits() const { return bits(low); }
    __device__ __forceinline__ uint4 high_bits() const { return bits(high); }
    /// As the cache will give it back.
    __device__ __forceinline__ void round() { load(low_bits(), high_bits()); }
    __device__ __forceinline__ void store(__nv_bfloat16* head, int j) const {
        *reinterpret_cast<uint4*>(head + 8 * j) = low_bits();
        *reinterpret_cast<uint4*>(head + D / 2 + 8 * j) = high_bits();
    }

  private:
    static __device__ __forceinline__ void load8(float (&out)[8], const float* from) {
        const float4 a = reinterpret_cast<const float4*>(from)[0];
        const float4 b = reinterpret_cast<const float4*>(from)[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    }
    static __device__ __forceinline__ uint4 bits(const float (&v)[8]) {
        return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                          pack_bf16(v[6], v[7]));
    }
};

constexpr int kQkThreads = 128;

/// One position and kQkThreads / kLanes heads by one block.
template <int D>
__global__ void qk_norm_rope_kernel(const float* qkv, size_t split_stride, HeadShape shape,
                                    int first_position, __nv_bfloat16* q_out, KvCache cache) {
    constexpr int kLanes = HeadSlice<D>::kLanes;
    allow_next_kernel();
    const int s = blockIdx.x, position = first_position + s, j = threadIdx.x % kLanes;
    const int all_heads = shape.heads + 2 * shape.kv_heads;
    const float2* rope = shape.angles<D>(position);
    const int head = blockIdx.y * (kQkThreads / kLanes) + threadIdx.x / kLanes;
    const int read = min(head, all_heads - 1);  // every lane stays: the sums are over whole warps
    wait_for_previous_kernel();
    HeadSlice<D> slice;
    const float* from = qkv + (static_cast<size_t>(s) * all_heads + read) * D;
    slice.load(from, j);
    if (split_stride > 0) slice.add(from + split_stride, j);
    HeadSlice<D> rotated = slice;
    rotated.norm_rope(read < shape.heads ? shape.q_norm : shape.k_norm, rope, shape.eps, j);
    const int kv_head = head - shape.heads;
    if (head >= all_heads) return;
    if (head < shape.heads)
        rotated.store(q_out + (static_cast<size_t>(s) * shape.heads + head) * D, j);
    else if (kv_head < shape.kv_heads)
        rotated.store(cache.at<D>(kv_head, position), j);
    else
        slice.store(cache.at<D>(kv_head - shape.kv_heads, position) + D, j);
}

/// qkv: float32 [S, heads + 2 kv_heads, D], and when split_stride > 0 a second one to be added,
/// that many floats behind; q_out: bf16 [S, heads, D]; keys and values go to the cache at positions
/// first_position .. first_position + S - 1.
template <int D>
void qk_norm_rope(const Launch& on, const float* qkv, size_t split_stride, const HeadShape& shape,
                  int S, int first_position, __nv_bfloat16* q_out, const KvCache& cache) {
    LIVEVOICE_CHECK(first_position + S <= cache.capacity, "qk_norm_rope: positions up to ",
                    first_position + S, " do not fit the cache of ", cache.capacity);
    constexpr int kHeads = kQkThreads / HeadSlice<D>::kLanes;
    const dim3 grid(S, ceil_div(shape.heads + 2 * shape.kv_heads, kHeads));
    launch(on, qk_norm_rope_kernel<D>, grid, kQkThreads, 0, qkv, split_stride, shape,
           first_position, q_out, cache);
}

}  // namespace livevoice
