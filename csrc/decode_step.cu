// One decode step: the table of contents of the decode kernels, five a layer.
#include "kernels/attention_decode.cuh"
#include "model.h"

namespace livevoice {

template <class Format, int D>
void decode_step(const Launch& on, const Model& model, const DecodeBuffers& b, bool is_forced) {
    const ModelShape& shape = model.shape;
    const Residual into_attention{b.residual_a, b.delta_ffn, b.residual_b, b.delta_attention};
    const Residual into_ffn{b.residual_b, b.delta_attention, b.residual_a, b.delta_ffn};
    const Residual into_head{b.residual_a, b.delta_ffn, nullptr, b.delta_attention};

    embed_row(on, model.table(), b.state, shape.capacity, is_forced, b.residual_a, b.delta_ffn);
    for (int i = 0; i < shape.layers; ++i) {
        const LayerWeights& w = model.weights.layers[i];
        norm_gemv<Format>(on, w.qkv, into_attention, w.input_norm, shape.eps, i == 0,
                          StoreRows{b.qkv, shape.qkv_rows()});
        attention_decode<D>(on, b.qkv, model.heads(i), &b.state->position, model.cache(i), b.parts,
                            b.lse);
        residual_gemv<Format>(on, w.o, AttentionParts<D>{b.parts, b.lse}, 1.0f, b.delta_attention);
        norm_gemv<Format>(on, w.gate_up, into_ffn, w.post_norm, shape.eps, false,
                          StoreSwiglu{b.activation, shape.ffn});
        residual_gemv<Format>(on, w.down, StoredActivation{b.activation},
                              1.0f / Format::kSwigluScale, b.delta_ffn);
    }
    norm_gemv<Bf16>(on, model.weights.head, into_head, model.weights.final_norm, shape.eps, false,
                    StoreRows{b.logits, shape.table_rows()});
}

template void decode_step<Fp8, 64>(const Launch&, const Model&, const DecodeBuffers&, bool);
template void decode_step<Fp8, 128>(const Launch&, const Model&, const DecodeBuffers&, bool);
template void decode_step<Bf16, 64>(const Launch&, const Model&, const DecodeBuffers&, bool);
template void decode_step<Bf16, 128>(const Launch&, const Model&, const DecodeBuffers&, bool);

}  // namespace livevoice
