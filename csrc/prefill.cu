// One chunk of a prompt through all layers: the table of contents of the prefill kernels.
#include "kernels/attention_prefill.cuh"
#include "kernels/gemm.cuh"
#include "kernels/rmsnorm.cuh"
#include "model.h"

namespace livevoice {

template <class Format, int D>
void prefill_chunk(const Launch& on, const Model& model, const PrefillBuffers& b,
                   const DecodeBuffers& decode, int S, int first, bool is_last) {
    using T = typename Format::Activation;
    const ModelShape& shape = model.shape;
    const size_t stride = static_cast<size_t>(kPrefillChunk) * shape.hidden;
    const size_t qkv_stride = static_cast<size_t>(kPrefillChunk) * shape.qkv_rows();
    T* normed = static_cast<T*>(b.normed);
    T* attention = static_cast<T*>(b.attention);
    T* activation = static_cast<T*>(b.activation);

    embed_prompt(on, model.table(), b.text, b.codes, S, b.residual);
    for (int i = 0; i < shape.layers; ++i) {
        const LayerWeights& w = model.weights.layers[i];
        // The down projection of the layer before is added here; the first layer has none.
        rmsnorm<Format>(on, b.residual, b.partials, i ? kGemmSplits : 0, stride, w.input_norm,
                        shape.eps, S, shape.hidden, normed);
        gemm<Format>(on, w.qkv, normed, S, kQkvSplits,
                     StoreGemm{b.qkv, shape.qkv_rows(), qkv_stride, 1.0f});
        qk_norm_rope<D>(on, b.qkv, qkv_stride, model.heads(i), S, first, b.q, model.cache(i));
        attention_prefill<Format, D>(on, b.q, model.heads(i), S, first, model.cache(i), attention);
        gemm<Format>(on, w.o, attention, S, kGemmSplits,
                     StoreGemm{b.partials, shape.hidden, stride, 1.0f});
        rmsnorm<Format>(on, b.residual, b.partials, kGemmSplits, stride, w.post_norm, shape.eps, S,
                        shape.hidden, normed);
        gemm<Format>(on, w.gate_up, normed, S, 1, StoreGemmSwiglu{activation, shape.ffn});
        gemm<Format>(on, w.down, activation, S, kGemmSplits,
                     StoreGemm{b.partials, shape.hidden, stride, 1.0f / Format::kSwigluScale});
    }
    if (!is_last) return;
    last_position(on, b.residual, b.partials, kGemmSplits, stride, S, shape.hidden,
                  decode.residual_a, decode.delta_ffn);
    const Residual into_head{decode.residual_a, decode.delta_ffn, nullptr, decode.delta_attention};
    norm_gemv<Bf16>(on, model.weights.head, into_head, model.weights.final_norm, shape.eps, false,
                    StoreRows{decode.logits, shape.table_rows()});
}

template <class Format, int D>
constexpr Passes kPasses{decode_step<Format, D>, persistent_step<Format, D>,
                         persistent_obstacle<Format, D>, prefill_chunk<Format, D>};

Passes passes_for(Precision precision, int head_dim) {
    LIVEVOICE_CHECK(head_dim == 64 || head_dim == 128,
                    "native backend: head_dim must be 64 or 128, got ", head_dim);
    const bool is_fp8 = precision == Precision::kFp8;
    if (head_dim == 64) return is_fp8 ? kPasses<Fp8, 64> : kPasses<Bf16, 64>;
    return is_fp8 ? kPasses<Fp8, 128> : kPasses<Bf16, 128>;
}

}  // namespace livevoice
