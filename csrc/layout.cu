// The arenas of the backbone, region by region.
#include "engine.h"

namespace livevoice {

namespace {

struct PackedSize {
    size_t weights, scales;
};

PackedSize packed_size(Precision precision, int rows, int columns) {
    const size_t tiles = ceil_div(rows, kTileRows), blocks = tiles * (columns / kBlockColumns);
    if (precision == Precision::kFp8) return {blocks * Fp8::kBlockBytes, tiles * kTileRows * 4};
    return {blocks * Bf16::kBlockBytes, 0};
}

void check_shape(const ModelShape& shape) {
    constexpr int kMultiple = 2 * kBlockColumns;  // gemv takes fp8 blocks in pairs
    LIVEVOICE_CHECK(shape.hidden % kMultiple == 0 && shape.ffn % kMultiple == 0,
                    "native backend: hidden size ", shape.hidden, " and feed-forward size ",
                    shape.ffn, " must be multiples of ", kMultiple);
    LIVEVOICE_CHECK(shape.codebooks <= kMaxCodebooks, "native backend: at most ", kMaxCodebooks,
                    " codebooks, got ", shape.codebooks);
    LIVEVOICE_CHECK(shape.capacity > 0, "native backend: the context must hold at least one row");
}

}  // namespace

Arenas::Arenas(const ModelShape& shape, Precision precision) {
    check_shape(shape);
    const auto matrix = [&](const char* name, int rows, int columns, int& region, int& scales) {
        const PackedSize size = packed_size(precision, rows, columns);
        region = weights.reserve(name, size.weights);
        scales = weights.reserve(std::string(name) + " scales", size.scales);
    };
    const auto floats = [](Arena& arena, const char* name, size_t count) {
        return arena.reserve(name, count * sizeof(float));
    };
    for (int i = 0; i < shape.layers; ++i) {
        Layout::Layer layer{};
        matrix("qkv", shape.qkv_rows(), shape.hidden, layer.qkv, layer.qkv_scales);
        matrix("o", shape.hidden, shape.attention_width(), layer.o, layer.o_scales);
        matrix("gate_up", 2 * shape.ffn, shape.hidden, layer.gate_up, layer.gate_up_scales);
        matrix("down", shape.hidden, shape.ffn, layer.down, layer.down_scales);
        layer.input_norm = floats(weights, "input_norm", shape.hidden);
        layer.post_norm = floats(weights, "post_norm", shape.hidden);
        layer.q_norm = floats(weights, "q_norm", shape.head_dim);
        layer.k_norm = floats(weights, "k_norm", shape.head_dim);
        at.layers.push_back(layer);
    }
    at.head = weights.reserve(
        "head", packed_size(Precision::kBf16, shape.table_rows(), shape.hidden).weights);
    at.final_norm = floats(weights, "final_norm", shape.hidden);
    at.rope = floats(weights, "rope", static_cast<size_t>(shape.capacity) * shape.head_dim);

    at.kv = decode.reserve("kv", static_cast<size_t>(shape.layers) * shape.kv_heads *
                                     shape.capacity * 2 * shape.head_dim * 2);
    at.state = decode.reserve("state", sizeof(DecodeState));
    at.residual_a = floats(decode, "residual_a", shape.hidden);
    at.residual_b = floats(decode, "residual_b", shape.hidden);
    at.delta_attention = floats(decode, "delta_attention", shape.hidden);
    at.delta_ffn = floats(decode, "delta_ffn", shape.hidden);
    at.qkv = floats(decode, "qkv", shape.qkv_rows());
    at.parts = decode.reserve("parts", shape.attention_width() * kAttentionSplits * sizeof(__half));
    at.lse = floats(decode, "lse", shape.heads * kAttentionSplits);
    at.activation = floats(decode, "activation", shape.ffn);
    at.logits = floats(decode, "logits", shape.table_rows());
    size_t words = 0;
    exchange_at(nullptr, shape, words);
    at.exchange = decode.reserve("exchange", words * sizeof(uint64_t));
    at.step_control = decode.reserve("step control", sizeof(StepControl));

    const size_t S = kPrefillChunk;
    at.chunk_residual = floats(scratch, "residual", S * shape.hidden);
    at.chunk_normed = scratch.reserve("normed", S * shape.hidden * 2);
    at.chunk_qkv = floats(scratch, "qkv", S * shape.qkv_rows() * kQkvSplits);
    at.chunk_q = scratch.reserve("q", S * shape.attention_width() * 2);
    at.chunk_attention = scratch.reserve("attention", S * shape.attention_width() * 2);
    at.chunk_activation = scratch.reserve("activation", S * shape.ffn * 2);
    at.chunk_partials = floats(scratch, "partials", S * shape.hidden * kGemmSplits);
    at.chunk_text = scratch.reserve("text", S * shape.hidden * 2);
    at.chunk_codes = scratch.reserve("codes", S * shape.codebooks * sizeof(int));
    scratch.reserve_at_least(Loader::kStagingBytes);
}

Exchange exchange_at(uint64_t* base, const ModelShape& shape, size_t& words) {
    words = 0;
    const auto take = [&](size_t count) {
        uint64_t* at = base + words;
        words += (count + 1) / 2 * 2;  // pieces of 16 bytes
        return at;
    };
    const size_t shares = shape.heads * kAttentionSplits;
    Exchange exchange{};
    exchange.attention_delta = take(kHiddenCopies * shape.hidden / 2);
    exchange.ffn_delta = take(kHiddenCopies * shape.hidden / 2);
    exchange.qkv = take(shape.qkv_rows() / 2);
    exchange.parts = take(shares * shape.head_dim / 4);
    exchange.lse = take(shares);
    exchange.activation = take(std::max(Fp8::kParts, Bf16::kParts) * shape.ffn / 4);
    exchange.shared_tiles = take(2 * shape.hidden);  // no more blocks than tiles
    exchange.codes = take(shape.codebooks);
    return exchange;
}

size_t engine_bytes(const ModelShape& shape, Precision precision) {
    return Arenas(shape, precision).layout_bytes();
}

}  // namespace livevoice
