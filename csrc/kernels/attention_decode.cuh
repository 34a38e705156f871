// attention_decode: one new position over all positions so far, and its append to the cache.
//
// A block takes one query head and a quarter of the old positions; what it leaves is merged by the
// reader (AttentionParts). Old keys and values are requested before the kernel waits for its query:
// the first steps into registers, the rest into L2.
#pragma once
#include "kernels/qk_norm_rope.cuh"
#include "kernels/residual_gemv.cuh"

namespace livevoice {

constexpr int kAttentionWarps = 8;
constexpr int kAttentionThreads = 32 * kAttentionWarps;
constexpr float kNothing = -1e30f;  // score of a position that is not there; exp2 of it is 0

/// Softmax-weighted sum of values so far, and what is needed to go on: one position at a time.
template <int D>
struct RunningSoftmax {
    float top = kNothing, sum = 0.0f;
    HeadSlice<D> out{};

    __device__ __forceinline__ void add(float score, const HeadSlice<D>& v, bool is_there) {
        const float new_top = fmaxf(top, is_there ? score : kNothing);
        const float keep = exp2f(top - new_top), weight = is_there ? exp2f(score - new_top) : 0.0f;
        top = new_top;
        sum = sum * keep + weight;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Not weight * v alone: what lies behind the last position may be NaN.
            out.low[i] = out.low[i] * keep + (is_there ? weight * v.low[i] : 0.0f);
            out.high[i] = out.high[i] * keep + (is_there ? weight * v.high[i] : 0.0f);
        }
    }
    /// Joins the lanes of a warp that hold the same dimensions of different positions.
    __device__ __forceinline__ void join_warp() {
        float all_top = top;
#pragma unroll
        for (int lane = HeadSlice<D>::kLanes; lane < 32; lane <<= 1)
            all_top = fmaxf(all_top, __shfl_xor_sync(~0u, all_top, lane));
        const float keep = exp2f(top - all_top);
        top = all_top;
        sum = across(sum * keep);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            out.low[i] = across(out.low[i] * keep);
            out.high[i] = across(out.high[i] * keep);
        }
    }

  private:
    static __device__ __forceinline__ float across(float v) {
#pragma unroll
        for (int lane = HeadSlice<D>::kLanes; lane < 32; lane <<= 1)
            v += __shfl_xor_sync(~0u, v, lane);
        return v;
    }
};

/// Old keys and values of one warp: each step takes 32 / (D / 16) positions.
template <int D>
struct KvStream {
    static constexpr int kDepth = 3;
    static constexpr int kPositions = 32 / HeadSlice<D>::kLanes;  // a warp and step
    static constexpr int kStride = kPositions * kAttentionWarps;

    const __nv_bfloat16* from;  // this lane's first key
    int position, end;          // this lane's next position
    uint4 key[kDepth][2], value[kDepth][2];

    __device__ KvStream(const KvCache& cache, int kv_head, int begin, int end_position) {
        const int lane = threadIdx.x % 32, j = lane % HeadSlice<D>::kLanes;
        position = begin + threadIdx.x / 32 * kPositions + lane / HeadSlice<D>::kLanes;
        end = end_position;
        from = cache.at<D>(kv_head, position) + 8 * j;
#pragma unroll
        for (int i = 0; i < kDepth; ++i) fetch(i, i);
    }
    /// What comes after the first steps of all warps. One thread is enough.
    static __device__ __forceinline__ void prefetch_rest(const KvCache& cache, int kv_head,
                                                         int begin, int end) {
        begin += kDepth * kStride;
        if (begin < end) prefetch_to_l2(cache.at<D>(kv_head, begin), (end - begin) * 4 * D);
    }
    __device__ __forceinline__ void fetch(int slot, int steps_ahead) {
        if (position + steps_ahead * kStride >= end) return;
        const __nv_bfloat16* at = from + static_cast<size_t>(steps_ahead) * kStride * (2 * D);
        // Past L1: another multiprocessor wrote them, maybe in the frame before.
        key[slot][0] = __ldcg(reinterpret_cast<const uint4*>(at));
        key[slot][1] = __ldcg(reinterpret_cast<const uint4*>(at + D / 2));
        value[slot][0] = __ldcg(reinterpret_cast<const uint4*>(at + D));
        value[slot][1] = __ldcg(reinterpret_cast<const uint4*>(at + D + D / 2));
    }
    /// True for all lanes of the warp together.
    __device__ __forceinline__ bool has_more() const {
        return position - static_cast<int>(threadIdx.x % 32) / HeadSlice<D>::kLanes < end;
    }
    __device__ __forceinline__ void run(const HeadSlice<D>& q, RunningSoftmax<D>& softmax) {
        while (has_more()) {
#pragma unroll
            for (int i = 0; i < kDepth; ++i) {
                if (!has_more()) break;
                HeadSlice<D> slice;
                slice.load(key[i][0], key[i][1]);
                const float score = q.dot(slice);
                slice.load(value[i][0], value[i][1]);
                fetch(i, kDepth);
                softmax.add(score, slice, position < end);
                position += kStride;
                from += static_cast<size_t>(kStride) * (2 * D);
            }
        }
    }
};

/// Joins the warps through shared memory and writes the block's part of the head.
template <int D>
__device__ void store_part(const RunningSoftmax<D>& softmax, __half* out, float* lse) {
    __shared__ float sums[kAttentionWarps][D], tops[kAttentionWarps], totals[kAttentionWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane < HeadSlice<D>::kLanes) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            sums[warp][8 * lane + i] = softmax.out.low[i];
            sums[warp][D / 2 + 8 * lane + i] = softmax.out.high[i];
        }
    }
    if (lane == 0) {
        tops[warp] = softmax.top;
        totals[warp] = softmax.sum;
    }
    __syncthreads();
    float top = kNothing, total = 0.0f;
    for (int w = 0; w < kAttentionWarps; ++w) top = fmaxf(top, tops[w]);
    for (int w = 0; w < kAttentionWarps; ++w) total += totals[w] * exp2f(tops[w] - top);
    for (int d = threadIdx.x; d < D; d += kAttentionThreads) {
        float v = 0.0f;
        for (int w = 0; w < kAttentionWarps; ++w) v += sums[w][d] * exp2f(tops[w] - top);
        out[d] = Fp8::round(total > 0.0f ? v / total : 0.0f);  // an early split may be empty
    }
    if (threadIdx.x == 0) *lse = total > 0.0f ? top + log2f(total) : kNothing;
}

/// More than 128 registers on purpose: two blocks of it must not fit one multiprocessor, else one
/// would take two and another none. A gemv block still fits beside it.
template <int D>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_decode_kernel(const float* qkv, HeadShape shape, const int* position_of_step,
                            KvCache cache, __half* out, float* lse) {
    allow_next_kernel();
    if (blockIdx.x >= shape.heads * kAttentionSplits) {  // only keeps a place, see below
        wait_for_previous_kernel();
        return;
    }
    const int head = blockIdx.x / kAttentionSplits, split = blockIdx.x % kAttentionSplits;
    const int kv_head = head / shape.group(), j = threadIdx.x % HeadSlice<D>::kLanes;
    // Final since the frame's first layer kernel: see norm_gemv's first_of_frame.
    const int position = __ldcg(position_of_step);
    const int share = ceil_div(position, kAttentionSplits);
    const int begin = min(split * share, position), end = min(begin + share, position);
    KvStream<D> old(cache, kv_head, begin, end);
    // These come from memory once a frame, too.
    __shared__ float q_norm[D], k_norm[D];
    __shared__ float2 rope[D / 2];
    if (threadIdx.x < D) {
        q_norm[threadIdx.x] = shape.q_norm[threadIdx.x];
        k_norm[threadIdx.x] = shape.k_norm[threadIdx.x];
    }
    if (threadIdx.x < D / 2)
        rope[threadIdx.x] = shape.rope[static_cast<size_t>(position) * (D / 2) + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0 && head % shape.group() == 0)  // for the heads of its group, too
        KvStream<D>::prefetch_rest(cache, kv_head, begin, end);

    wait_for_previous_kernel();
    HeadSlice<D> q, k, v;
    q.load(qkv + head * D, j);
    const bool is_newest = split == kAttentionSplits - 1 && threadIdx.x < 32;  // one warp adds it
    if (is_newest) {  // together with the query: each trip to L2 counts
        k.load(qkv + (shape.heads + kv_head) * D, j);
        v.load(qkv + (shape.heads + shape.kv_heads + kv_head) * D, j);
    }
    q.norm_rope(q_norm, rope, shape.eps, j);
    const float scale = 1.4426950408889634f * rsqrtf(static_cast<float>(D));  // exp2 below
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        q.low[i] *= scale;
        q.high[i] *= scale;
    }
    RunningSoftmax<D> softmax;
    if (is_newest) {
        k.norm_rope(k_norm, rope, shape.eps, j);
        k.round();
        v.round();
        const bool is_mine = threadIdx.x < HeadSlice<D>::kLanes;  // all lane groups hold the same
        if (is_mine && head % shape.group() == 0) {
            k.store(cache.at<D>(kv_head, position), j);
            v.store(cache.at<D>(kv_head, position) + D, j);
        }
        softmax.add(q.dot(k), v, is_mine);
    }
    old.run(q, softmax);
    softmax.join_warp();
    const size_t part = static_cast<size_t>(head) * kAttentionSplits + split;
    store_part<D>(softmax, out + part * D, lse + part);
}

/// qkv: float32 [heads + 2 kv_heads, D]; position: device int, the new position; out, lse as
/// AttentionParts reads them.
template <int D>
void attention_decode(const Launch& on, const float* qkv, const HeadShape& shape,
                      const int* position, const KvCache& cache, __half* out, float* lse) {
    // A multiprocessor without a block of this kernel would take two of the next one, and so on
    // through the frame: the blocks too many only keep its place.
    launch(on, attention_decode_kernel<D>,
           std::max(shape.heads * kAttentionSplits, on.multiprocessors), kAttentionThreads, 0, qkv,
           shape, position, cache, out, lse);
}

}  // namespace livevoice
