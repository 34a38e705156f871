// attention_prefill: causal grouped-query attention of a prompt chunk, in tiles of 64 queries and
// 64 keys, softmax on the way (FlashAttention-2, arXiv 2307.08691). Keys come from the cache, so a
// reused prefix needs nothing special. Key tiles start at position 0 whatever the chunk: a masked
// tile changes nothing, so results do not depend on how the prompt was cut.
#pragma once
#include "kernels/attention_decode.cuh"

namespace livevoice {

template <int D>
struct AttentionTile {
    static constexpr int kWarps = 4, kThreads = 32 * kWarps;
    static constexpr int kQueries = 16 * kWarps, kKeys = 64;
    static constexpr int kParts = kKeys / 32;   // that a warp may leave out
    static constexpr int kKeyStride = D + 32;   // 16-byte reads of 4 lanes a row: 64 bytes of shift
    static constexpr int kValueStride = D + 8;  // ldmatrix reads 16 bytes a row: 16 bytes of shift
    static constexpr int kTileValues = kKeys * (kKeyStride + kValueStride);
    static constexpr int kSharedBytes = 2 * kTileValues * 2;  // one is used, one is on its way
};

/// Keys and values first_key .. first_key + 63 of one head to shared memory; zeros past n_keys.
template <int D>
__device__ __forceinline__ void fetch_keys(__nv_bfloat16* keys, const KvCache& cache, int kv_head,
                                           int first_key, int n_keys) {
    using Tile = AttentionTile<D>;
    __nv_bfloat16* values = keys + Tile::kKeys * Tile::kKeyStride;
    for (int i = threadIdx.x; i < Tile::kKeys * (D / 8); i += Tile::kThreads) {
        const int key = i / (D / 8), d = i % (D / 8) * 8;
        const bool valid = first_key + key < n_keys;
        const __nv_bfloat16* from = cache.at<D>(kv_head, valid ? first_key + key : 0) + d;
        copy_async(keys + key * Tile::kKeyStride + d, from, valid);
        copy_async(values + key * Tile::kValueStride + d, from + D, valid);
    }
}

/// One warp's 16 queries. Lane (g, t) sees rows g and g + 8.
template <int D>
struct QueryTile {
    using Tile = AttentionTile<D>;
    Operand q[D / kBlockColumns];
    float out[D / 8][4] = {};
    float top[2] = {kNothing, kNothing}, total[2] = {0.0f, 0.0f};

    /// queries: bf16 [S, heads, D] at this head; rows past S read row S - 1 and are not stored.
    __device__ __forceinline__ void load(const __nv_bfloat16* queries, int heads, int first,
                                         int S) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const auto* low = queries + static_cast<size_t>(min(first + g, S - 1)) * heads * D;
        const auto* high = queries + static_cast<size_t>(min(first + g + 8, S - 1)) * heads * D;
#pragma unroll
        for (int b = 0; b < D / kBlockColumns; ++b)
            q[b] =
                Bf16::unpack({*reinterpret_cast<const uint4*>(low + b * kBlockColumns + 8 * t),
                              *reinterpret_cast<const uint4*>(high + b * kBlockColumns + 8 * t)});
    }

    /// score[n]: keys 8n + 2t, 8n + 2t + 1 for row g, then for row g + 8; scaled for exp2, masked.
    /// last_key: the last one that any of the queries sees, counted from first_key.
    __device__ __forceinline__ void scores(float (&score)[Tile::kKeys / 8][4],
                                           const __nv_bfloat16* keys, int first_key,
                                           int first_position, int last_key) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const float scale = 1.4426950408889634f * rsqrtf(static_cast<float>(D));
#pragma unroll
        for (int part = 0; part < Tile::kParts; ++part) {
            float (&own)[4][4] = *reinterpret_cast<float (*)[4][4]>(&score[4 * part]);
#pragma unroll
            for (int n = 0; n < 4; ++n) own[n][0] = own[n][1] = own[n][2] = own[n][3] = 0.0f;
            if (32 * part <= last_key) {
#pragma unroll
                for (int b = 0; b < D / kBlockColumns; ++b)
#pragma unroll
                    for (int n = 0; n < 4; ++n)
                        Bf16::multiply(
                            own[n], q[b],
                            load_shared(keys + ((4 * part + n) * 8 + g) * Tile::kKeyStride +
                                        b * kBlockColumns + 8 * t));
            }
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int key = first_key + 8 * (4 * part + n) + 2 * t + i % 2;
                    const bool is_seen = key <= first_position + g + (i < 2 ? 0 : 8);
                    own[n][i] = is_seen ? own[n][i] * scale : kNothing;
                }
        }
    }

    /// Scores become weights against the new maximum; what was summed so far is scaled to it.
    __device__ __forceinline__ void softmax(float (&score)[Tile::kKeys / 8][4]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_top = top[half];
#pragma unroll
            for (int n = 0; n < Tile::kKeys / 8; ++n)
                new_top = fmaxf(new_top, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
            new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, 1));
            new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, 2));
            const float keep = exp2f(top[half] - new_top);
            top[half] = new_top;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    score[n][i] =
                        score[n][i] > 0.5f * kNothing ? exp2f(score[n][i] - new_top) : 0.0f;
                    sum += score[n][i];
                }
            }
            total[half] = total[half] * keep + warp_sum<4>(sum);
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                out[d][2 * half] *= keep;
                out[d][2 * half + 1] *= keep;
            }
        }
    }

    /// out += weights x values.
    __device__ __forceinline__ void add_values(const float (&weight)[Tile::kKeys / 8][4],
                                               const __nv_bfloat16* values, int last_key) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < Tile::kKeys / 16; ++k) {
            if (16 * k > last_key) break;
            const uint32_t a[4] = {pack_bf16(weight[2 * k][0], weight[2 * k][1]),
                                   pack_bf16(weight[2 * k][2], weight[2 * k][3]),
                                   pack_bf16(weight[2 * k + 1][0], weight[2 * k + 1][1]),
                                   pack_bf16(weight[2 * k + 1][2], weight[2 * k + 1][3])};
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                uint32_t b[4];
                load_transposed(
                    b, values + (k * 16 + lane % 16) * Tile::kValueStride + d * 16 + lane / 16 * 8);
                mma_bf16(out[2 * d], a, b[0], b[1]);
                mma_bf16(out[2 * d + 1], a, b[2], b[3]);
            }
        }
    }
};

template <class Format, int D>
__global__ void __launch_bounds__(AttentionTile<D>::kThreads)
    attention_prefill_kernel(const __nv_bfloat16* q, int heads, int group, int S,
                             int first_position, KvCache cache, typename Format::Activation* out) {
    using Tile = AttentionTile<D>;
    extern __shared__ __align__(16) uint8_t shared[];
    auto* tiles = reinterpret_cast<__nv_bfloat16*>(shared);
    allow_next_kernel();
    wait_for_previous_kernel();

    const int head = blockIdx.y, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int first_query = blockIdx.x * Tile::kQueries, mine = first_query + threadIdx.x / 32 * 16;
    const int n_keys = first_position + min(first_query + Tile::kQueries, S);
    QueryTile<D> tile;
    tile.load(q + static_cast<size_t>(head) * D, heads, mine, S);
    fetch_keys<D>(tiles, cache, head / group, 0, n_keys);
    copy_async_commit();
    for (int first_key = 0; first_key < n_keys; first_key += Tile::kKeys) {
        const __nv_bfloat16* keys = tiles + first_key / Tile::kKeys % 2 * Tile::kTileValues;
        const __nv_bfloat16* values = keys + Tile::kKeys * Tile::kKeyStride;
        const int next_key = first_key + Tile::kKeys;
        if (next_key < n_keys)
            fetch_keys<D>(tiles + next_key / Tile::kKeys % 2 * Tile::kTileValues, cache,
                          head / group, next_key, n_keys);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const int last_key = min(first_position + mine + 15, n_keys - 1) - first_key;
        if (last_key >= 0 && mine < S) {
            float score[Tile::kKeys / 8][4];
            tile.scores(score, keys, first_key, first_position + mine, last_key);
            tile.softmax(score);
            tile.add_values(score, values, last_key);
        }
        __syncthreads();  // before the tile after the next one overwrites this one
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int s = mine + g + 8 * half;
        if (s >= S) continue;
        auto* to = out + (static_cast<size_t>(s) * heads + head) * D;
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
            typename Format::Activation* pair = to + operand_column(8 * d + 2 * t);
            pair[0] = Format::round(tile.out[d][2 * half] / tile.total[half]);
            pair[1] = Format::round(tile.out[d][2 * half + 1] / tile.total[half]);
        }
    }
}

/// q: bf16 [S, heads, D], normalised and rotated; the chunk's own keys are in the cache already.
/// out: activation [S, heads * D].
template <class Format, int D>
void attention_prefill(const Launch& on, const __nv_bfloat16* q, const HeadShape& shape, int S,
                       int first_position, const KvCache& cache, typename Format::Activation* out) {
    using Tile = AttentionTile<D>;
    launch(on, attention_prefill_kernel<Format, D>, dim3(ceil_div(S, Tile::kQueries), shape.heads),
           Tile::kThreads, Tile::kSharedBytes, q, shape.heads, shape.group(), S, first_position,
           cache, out);
}

}  // namespace livevoice
