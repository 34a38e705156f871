// The backbone as the passes see it: sizes, weights and buffers. Sizes mirror engine/config.py;
// pointers lead into the engine's arenas.
#pragma once
#include <string>
#include <vector>

#include "kernels/embed.cuh"
#include "kernels/exchange.cuh"
#include "kernels/norm_gemv.cuh"
#include "kernels/qk_norm_rope.cuh"
#include "kernels/residual_gemv.cuh"
#include "kernels/state.h"

namespace livevoice {

enum class Precision { kFp8, kBf16 };

struct ModelShape {
    int layers, hidden, heads, kv_heads, head_dim, ffn, codebooks, vocab, capacity;
    float eps;
    int qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
    int attention_width() const { return heads * head_dim; }
    int table_rows() const { return codebooks * vocab; }
};

struct LayerWeights {
    PackedMatrix qkv;      // [(heads + 2 kv_heads) D, hidden]: q rows, k rows, v rows
    PackedMatrix o;        // [hidden, heads D]
    PackedMatrix gate_up;  // [2 ffn, hidden]: tiles of 8 gate rows and their 8 up rows
    PackedMatrix down;     // [hidden, ffn]
    const float *input_norm, *post_norm;  // float32 [hidden]
    const float *q_norm, *k_norm;         // float32 [D]
};

/// The exchange buffers from `base` on; words: how many of 64 bits they are.
Exchange exchange_at(uint64_t* base, const ModelShape& shape, size_t& words);

struct Weights {
    std::vector<LayerWeights> layers;
    PackedMatrix head;        // bf16 [codebooks * vocab, hidden]: audio head and embedding in one
    const float* final_norm;  // float32 [hidden]
    const float2* rope;       // (cos, sin) [capacity, D / 2]
};

/// What one decode step reads and writes.
struct DecodeBuffers {
    DecodeState* state;
    float *residual_a, *residual_b;      // [hidden]
    float *delta_attention, *delta_ffn;  // [hidden]: what o and down add to the residual
    float* qkv;                          // [heads + 2 kv_heads, D]
    __half* parts;                       // [heads, splits, D]
    float* lse;                          // [heads, splits]
    void* activation;                    // [kParts, ffn]
    float* logits;                       // [codebooks, vocab]
    int* rows;                           // host memory [capacity + 1, codebooks]
    // Of the persistent step only; what it shares with the other: state, logits, rows.
    StepControl* control;
    StepSignals* signals;  // host memory
    Exchange exchange;
};

/// What the prefill of one chunk of S positions reads and writes.
struct PrefillBuffers {
    float* residual;   // [S, hidden]
    void* normed;      // activation [S, hidden]
    float* qkv;        // [kQkvSplits, kPrefillChunk, heads + 2 kv_heads, D]
    __nv_bfloat16* q;  // [S, heads, D]
    void* attention;   // activation [S, heads D]
    void* activation;  // activation [S, ffn]
    float* partials;   // [kGemmSplits, kPrefillChunk, hidden]
    void* text;        // bf16 [S, hidden]
    int* codes;        // [S, codebooks]
};

constexpr int kPrefillChunk = 512;
/// K is split this often where a matrix has too few rows to fill the GPU.
constexpr int kGemmSplits = 4, kQkvSplits = 2;

struct Model {
    ModelShape shape;
    Weights weights;
    __nv_bfloat16* kv;  // [layers][kv heads][capacity][K: D, V: D]

    KvCache cache(int layer) const {
        const size_t positions = static_cast<size_t>(shape.kv_heads) * shape.capacity;
        return {kv + layer * positions * 2 * shape.head_dim, shape.capacity};
    }
    HeadShape heads(int layer) const {
        const LayerWeights& w = weights.layers[layer];
        return {shape.heads, shape.kv_heads, shape.eps, w.q_norm, w.k_norm, weights.rope};
    }
    AudioTable table() const {
        return {weights.head.weights, shape.codebooks, shape.vocab, shape.hidden};
    }
};

/// The passes of one precision and head size.
struct Passes {
    /// Embedding of state->codes, all layers, head: leaves the logits of the next row.
    void (*decode_step)(const Launch&, const Model&, const DecodeBuffers&, bool is_forced);
    /// The same codes and logits by one kernel that stays on all multiprocessors.
    void (*persistent_step)(const Launch&, const Model&, const DecodeBuffers&, bool is_forced);
    /// Why this GPU can't run that one; empty when it can.
    std::string (*persistent_obstacle)(const Launch&, const Model&);
    /// S positions from `first` on; `is_last`: leaves the logits of the row after them.
    void (*prefill_chunk)(const Launch&, const Model&, const PrefillBuffers&, const DecodeBuffers&,
                          int S, int first, bool is_last);
};

/// Thread blocks that a decode step deals its matrices to, on both paths, so that both add in the
/// same order: one on each multiprocessor, but none without a part of every matrix.
int decode_blocks(const ModelShape& shape, int multiprocessors);

/// Raises ValueError for a head size that no kernel was built for.
Passes passes_for(Precision precision, int head_dim);

template <class Format, int D>
void decode_step(const Launch&, const Model&, const DecodeBuffers&, bool is_forced);
template <class Format, int D>
void persistent_step(const Launch&, const Model&, const DecodeBuffers&, bool is_forced);
template <class Format, int D>
std::string persistent_obstacle(const Launch&, const Model&);
template <class Format, int D>
void prefill_chunk(const Launch&, const Model&, const PrefillBuffers&, const DecodeBuffers&, int S,
                   int first, bool is_last);

}  // namespace livevoice
