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
template <int D, int kDepth>
struct KvStream {
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
        for (int i = 0; i < kDepth; ++i) {
            key[i][0] = key[i][1] = value[i][0] = value[i][1] = make_uint4(0, 0, 0, 0);
            fetch(i, i);
        }
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

/// What a block takes: a query head over a share of the old positions, number `index` of them.
struct AttentionShare {
    int head, split, kv_head, position, begin, end;

    __device__ AttentionShare(int index, const HeadShape& shape, int position)
        : head(index / kAttentionSplits),
          split(index % kAttentionSplits),
          kv_head(head / shape.group()),
          position(position) {
        const int share = ceil_div(position, kAttentionSplits);
        begin = min(split * share, position);
        end = min(begin + share, position);
    }
    /// One warp of one of a head's shares adds the new position.
    __device__ bool is_newest() const {
        return split == kAttentionSplits - 1 && threadIdx.x < 32;
    }
    /// Which head of the projection [q, k, v] this lane begins with: the query; in the warp that
    /// adds the new position the second and third group of lanes take its key and value, all in one
    /// trip to L2.
    template <int D>
    __device__ int head_of_lane(const HeadShape& shape) const {
        const int group = threadIdx.x % 32 / HeadSlice<D>::kLanes;
        if (!is_newest() || group == 0 || group > 2) return head;
        return shape.heads + (group == 2 ? shape.kv_heads : 0) + kv_head;
    }
    __device__ bool is_first_of_group(const HeadShape& shape) const {
        return head % shape.group() == 0;
    }
};

/// How heads are normalised and rotated at one position, in shared memory.
template <int D>
struct HeadTables {
    float q_norm[D], k_norm[D];
    float2 rope[D / 2];
};

/// own: head_of_lane() as the projection left it.
template <int D, int kDepth>
__device__ RunningSoftmax<D> attend(const AttentionShare& share, const HeadShape& shape,
                                    const KvCache& cache, const HeadTables<D>& tables,
                                    KvStream<D, kDepth>& old, HeadSlice<D>& own) {
    constexpr int kLanes = HeadSlice<D>::kLanes;
    const int j = threadIdx.x % kLanes, group = threadIdx.x % 32 / kLanes;
    const bool is_newest = share.is_newest();
    const bool is_key = is_newest && group == 1, is_value = is_newest && group == 2;
    own.norm_rope(is_key ? tables.k_norm : tables.q_norm, tables.rope, shape.eps, j, !is_value);
    RunningSoftmax<D> softmax;
    HeadSlice<D> q = own;
    if (is_newest) {
        own.round();
        __nv_bfloat16* place = cache.at<D>(share.kv_head, share.position);
        if (share.is_first_of_group(shape) && (is_key || is_value))
            own.store(is_key ? place : place + D, j);
        q = q.of_lane(j);
    }
    const float scale = 1.4426950408889634f * rsqrtf(static_cast<float>(D));  // exp2 below
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        q.low[i] *= scale;
        q.high[i] *= scale;
    }
    if (is_newest) {
        const float score = q.dot(own.of_lane(kLanes + j));
        softmax.add(score, own.of_lane(2 * kLanes + j), threadIdx.x < kLanes);
    }
    old.run(q, softmax);
    softmax.join_warp();
    return softmax;
}

/// The warps of a block, joined: thread d < D gets dimension d of the block's part, every thread
/// log2 of the sum that normalised it.
template <int D>
struct JoinedPart {
    static constexpr int kScratchFloats = kAttentionWarps * (D + 2);
    float value = 0.0f, lse;

    /// scratch: float [kScratchFloats], shared.
    __device__ JoinedPart(const RunningSoftmax<D>& softmax, float* scratch) {
        float *tops = scratch + kAttentionWarps * D, *totals = tops + kAttentionWarps;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane < HeadSlice<D>::kLanes) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                scratch[warp * D + 8 * lane + i] = softmax.out.low[i];
                scratch[warp * D + D / 2 + 8 * lane + i] = softmax.out.high[i];
            }
        }
        if (lane == 0) {
            tops[warp] = softmax.top;
            totals[warp] = softmax.sum;
        }
        sync_first_threads<kAttentionThreads>();
        float top = kNothing, total = 0.0f;
        for (int w = 0; w < kAttentionWarps; ++w) top = fmaxf(top, tops[w]);
        for (int w = 0; w < kAttentionWarps; ++w) total += totals[w] * exp2f(tops[w] - top);
        if (threadIdx.x < D) {
            for (int w = 0; w < kAttentionWarps; ++w)
                value += scratch[w * D + threadIdx.x] * exp2f(tops[w] - top);
            value = total > 0.0f ? value / total : 0.0f;  // an early split may be empty
        }
        lse = without_flag(total > 0.0f ? top + log2f(total) : kNothing, 0);
    }
    /// Dimension d = threadIdx.x as it is handed on.
    __device__ uint16_t bits() const {
        uint16_t bits[1];
        Fp8::hand_on(bits, threadIdx.x, value);
        return bits[0];
    }
};

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
    // Final since the frame's first layer kernel: see norm_gemv's first_of_frame.
    const AttentionShare share(blockIdx.x, shape, __ldcg(position_of_step));
    const int kv_head = share.kv_head, j = threadIdx.x % HeadSlice<D>::kLanes;
    constexpr int kDepth = 4;
    KvStream<D, kDepth> old(cache, kv_head, share.begin, share.end);
    // These come from memory once a frame, too.
    __shared__ HeadTables<D> tables;
    __shared__ float scratch[JoinedPart<D>::kScratchFloats];
    if (threadIdx.x < D) {
        tables.q_norm[threadIdx.x] = shape.q_norm[threadIdx.x];
        tables.k_norm[threadIdx.x] = shape.k_norm[threadIdx.x];
    }
    if (threadIdx.x < D / 2) tables.rope[threadIdx.x] = shape.angles<D>(share.position)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0 && share.is_first_of_group(shape))  // for the heads of its group, too
        KvStream<D, kDepth>::prefetch_rest(cache, kv_head, share.begin, share.end);

    wait_for_previous_kernel();
    HeadSlice<D> own;
    own.load(qkv + share.head_of_lane<D>(shape) * D, j);
    const JoinedPart<D> part(attend(share, shape, cache, tables, old, own), scratch);
    if (threadIdx.x < D)
        reinterpret_cast<uint16_t*>(out)[static_cast<size_t>(blockIdx.x) * D + threadIdx.x] =
            part.bits();
    if (threadIdx.x == 0) lse[blockIdx.x] = part.lse;
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
