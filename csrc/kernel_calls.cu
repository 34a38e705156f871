#include "kernel_calls.h"

#include "graph.h"
#include "kernels/attention_prefill.cuh"
#include "kernels/codec_conv.cuh"
#include "kernels/embed.cuh"
#include "kernels/gemm.cuh"
#include "kernels/norm_gemv.cuh"
#include "kernels/pack.cuh"
#include "kernels/rmsnorm.cuh"
#include "kernels/sample.cuh"

namespace livevoice {

namespace {

/// The current device, the legacy default stream (tests run alone), no overlap between kernels.
Launch plain_launch() {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    return launch_on(cudaStreamLegacy, device, false);
}

template <class Call>
void with_format(const std::string& precision, Call&& call) {
    LIVEVOICE_CHECK(precision == "fp8" || precision == "bf16",
                    "precision must be fp8 or bf16, got ", precision);
    if (precision == "fp8")
        call(Fp8{});
    else
        call(Bf16{});
}

template <class Call>
void with_head_dim(int64_t head_dim, Call&& call) {
    LIVEVOICE_CHECK(head_dim == 64 || head_dim == 128, "head_dim must be 64 or 128, got ",
                    head_dim);
    if (head_dim == 64)
        call(std::integral_constant<int, 64>{});
    else
        call(std::integral_constant<int, 128>{});
}

template <class Format>
constexpr const char* kActivationName = Format::kScaled ? "float16" : "bfloat16";

float* optional_floats(const TensorView& view, const char* name) {
    return view.shape.empty() || view.size(0) == 0
               ? nullptr
               : device_data<float>(view, name, "float32", view.shape);
}

/// columns: of the matrix; packed: uint8 [tiles, blocks * kBlockBytes].
template <class Format>
PackedMatrix matrix(const TensorView& packed, const TensorView& scales, int64_t columns) {
    const int64_t tile_bytes = columns / kBlockColumns * Format::kBlockBytes;
    const auto* weights = device_data<uint8_t>(packed, "packed", "uint8", {kAnySize, tile_bytes});
    return {weights, optional_floats(scales, "scales"), static_cast<int>(packed.size(0)),
            static_cast<int>(columns)};
}

HeadShape head_shape(const TensorView& q_norm, const TensorView& k_norm, const TensorView& rope,
                     double eps, int64_t heads, int64_t kv_heads, int64_t D) {
    return {static_cast<int>(heads),
            static_cast<int>(kv_heads),
            static_cast<float>(eps),
            device_data<float>(q_norm, "q_norm", "float32", {D}),
            device_data<float>(k_norm, "k_norm", "float32", {D}),
            device_data<float2>(rope, "rope", "float32", {kAnySize, D / 2, 2})};
}

/// kv: bf16 [kv heads, capacity, 2, D].
KvCache kv_cache(const TensorView& kv, int64_t D) {
    return {device_data<__nv_bfloat16>(kv, "kv", "bfloat16", {kAnySize, kAnySize, 2, D}),
            static_cast<int>(kv.size(1))};
}

constexpr int kReadThreads = 512;

__global__ void read_kernel(const uint4* from, size_t pieces, uint32_t* sink) {
    constexpr int kUnroll = 8;
    const size_t stride = static_cast<size_t>(gridDim.x) * kReadThreads;
    uint32_t seen = 0;
    size_t i = static_cast<size_t>(blockIdx.x) * kReadThreads + threadIdx.x;
    for (; i + (kUnroll - 1) * stride < pieces; i += kUnroll * stride) {
        uint4 v[kUnroll];
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) v[j] = load_once(from + i + j * stride);
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) seen |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (seen == 0x9E3779B9u) *sink = seen;  // keeps the loads; practically never true
}

}  // namespace

void call_pack(const TensorView& source, const TensorView& packed, const TensorView& scales,
               const std::string& precision, const std::string& layout) {
    const bool is_half = layout == "gate" || layout == "up";
    LIVEVOICE_CHECK(is_half || layout == "rows", "layout must be rows, gate or up, got ", layout);
    const RowPlacement place{0, is_half ? 8 : kTileRows, layout == "up" ? 8 : 0};
    with_format(precision, [&](auto format) {
        using Format = decltype(format);
        const void* rows = device_data<void>(source, "source", "bfloat16", {kAnySize, kAnySize});
        const PackedMatrix to = matrix<Format>(packed, scales, source.size(1));
        LIVEVOICE_CHECK(source.size(0) <= static_cast<int64_t>(to.tiles) * place.rows_a_tile,
                        "packed: too few tiles");
        pack<Format>(rows, static_cast<uint8_t*>(packed.data), const_cast<float*>(to.scales), 0,
                     static_cast<int>(source.size(0)), to.columns, place, plain_launch().stream);
    });
}

void call_norm_gemv(const TensorView& packed, const TensorView& scales, const TensorView& before,
                    const TensorView& delta, const TensorView& after, const TensorView& cleared,
                    const TensorView& weight, double eps, const TensorView& y,
                    const std::string& precision, bool is_swiglu) {
    const int64_t hidden = before.size(0);
    const Residual residual{device_data<float>(before, "before", "float32", {hidden}),
                            device_data<float>(delta, "delta", "float32", {hidden}),
                            device_data<float>(after, "after", "float32", {hidden}),
                            device_data<float>(cleared, "cleared", "float32", {hidden})};
    const float* norm = device_data<float>(weight, "weight", "float32", {hidden});
    with_format(precision, [&](auto format) {
        using Format = decltype(format);
        const PackedMatrix m = matrix<Format>(packed, scales, hidden);
        if (is_swiglu) {
            const int ffn = m.tiles * 8;
            norm_gemv<Format>(plain_launch(), m, residual, norm, static_cast<float>(eps), false,
                              StoreSwiglu{device_data<void>(y, "y", kActivationName<Format>,
                                                            {Format::kParts, ffn}),
                                          ffn});
        } else {
            const int rows = static_cast<int>(y.size(0));
            LIVEVOICE_CHECK(rows <= m.tiles * kTileRows, "y: has more rows than the matrix");
            norm_gemv<Format>(plain_launch(), m, residual, norm, static_cast<float>(eps), false,
                              StoreRows{device_data<float>(y, "y", "float32", {rows}), rows});
        }
    });
}

void call_residual_gemv(const TensorView& packed, const TensorView& scales, const TensorView& x,
                        const TensorView& lse, const TensorView& delta,
                        const std::string& precision, int head_dim) {
    with_format(precision, [&](auto format) {
        using Format = decltype(format);
        const int64_t heads = head_dim ? x.size(0) : 0;
        const int64_t columns = head_dim ? heads * head_dim : x.size(1);
        const PackedMatrix m = matrix<Format>(packed, scales, columns);
        float* to = device_data<float>(delta, "delta", "float32", {m.tiles * kTileRows});
        if (head_dim) {
            with_head_dim(head_dim, [&](auto d) {
                const AttentionParts<decltype(d)::value> parts{
                    device_data<__half>(x, "x", "float16", {heads, kAttentionSplits, head_dim}),
                    device_data<float>(lse, "lse", "float32", {heads, kAttentionSplits})};
                residual_gemv<Format>(plain_launch(), m, parts, 1.0f, to);
            });
        } else {
            const StoredActivation activation{
                device_data<void>(x, "x", kActivationName<Format>, {Format::kParts, columns})};
            residual_gemv<Format>(plain_launch(), m, activation, 1.0f, to);
        }
    });
}

void call_gemm(const TensorView& packed, const TensorView& scales, const TensorView& x,
               const TensorView& y, const std::string& precision, bool is_swiglu) {
    with_format(precision, [&](auto format) {
        using Format = decltype(format);
        const int64_t S = x.size(0), columns = x.size(1);
        const PackedMatrix m = matrix<Format>(packed, scales, columns);
        const auto* from =
            device_data<typename Format::Activation>(x, "x", kActivationName<Format>, {S, columns});
        if (is_swiglu) {
            void* to = device_data<void>(y, "y", kActivationName<Format>, {S, m.tiles * 8});
            gemm<Format>(plain_launch(), m, from, static_cast<int>(S), 1,
                         StoreGemmSwiglu{to, m.tiles * 8});
        } else {
            const int64_t splits = y.size(0), rows = y.size(2);
            LIVEVOICE_CHECK(rows <= m.tiles * kTileRows, "y: has more rows than the matrix");
            float* to = device_data<float>(y, "y", "float32", {splits, S, rows});
            gemm<Format>(
                plain_launch(), m, from, static_cast<int>(S), static_cast<int>(splits),
                StoreGemm{to, static_cast<int>(rows), static_cast<size_t>(S * rows), 1.0f});
        }
    });
}

void call_rmsnorm(const TensorView& residual, const TensorView& partials, const TensorView& weight,
                  double eps, const TensorView& y, const std::string& precision) {
    with_format(precision, [&](auto format) {
        using Format = decltype(format);
        const int64_t S = residual.size(0), hidden = residual.size(1), splits = partials.size(0);
        rmsnorm<Format>(
            plain_launch(), device_data<float>(residual, "residual", "float32", {S, hidden}),
            splits ? device_data<float>(partials, "partials", "float32", {splits, S, hidden})
                   : nullptr,
            static_cast<int>(splits), static_cast<size_t>(S * hidden),
            device_data<float>(weight, "weight", "float32", {hidden}), static_cast<float>(eps),
            static_cast<int>(S), static_cast<int>(hidden),
            device_data<typename Format::Activation>(y, "y", kActivationName<Format>, {S, hidden}));
    });
}

void call_qk_norm_rope(const TensorView& qkv, const TensorView& q_norm, const TensorView& k_norm,
                       const TensorView& rope, double eps, int first_position, const TensorView& q,
                       const TensorView& kv) {
    with_head_dim(q.size(2), [&](auto head_dim) {
        constexpr int D = decltype(head_dim)::value;
        const int64_t S = q.size(0), heads = q.size(1), kv_heads = kv.size(0);
        qk_norm_rope<D>(
            plain_launch(), device_data<float>(qkv, "qkv", "float32", {S, heads + 2 * kv_heads, D}),
            0, head_shape(q_norm, k_norm, rope, eps, heads, kv_heads, D), static_cast<int>(S),
            first_position, device_data<__nv_bfloat16>(q, "q", "bfloat16", {S, heads, D}),
            kv_cache(kv, D));
    });
}

void call_attention_prefill(const TensorView& q, const TensorView& kv, int first_position,
                            const TensorView& out, const std::string& precision) {
    with_format(precision, [&](auto format) {
        with_head_dim(q.size(2), [&](auto head_dim) {
            using Format = decltype(format);
            constexpr int D = decltype(head_dim)::value;
            const int64_t S = q.size(0), heads = q.size(1);
            HeadShape shape{};
            shape.heads = static_cast<int>(heads);
            shape.kv_heads = static_cast<int>(kv.size(0));
            attention_prefill<Format, D>(
                plain_launch(), device_data<__nv_bfloat16>(q, "q", "bfloat16", {S, heads, D}),
                shape, static_cast<int>(S), first_position, kv_cache(kv, D),
                device_data<typename Format::Activation>(out, "out", kActivationName<Format>,
                                                         {S, heads * D}));
        });
    });
}

void call_attention_decode(const TensorView& qkv, const TensorView& q_norm,
                           const TensorView& k_norm, const TensorView& rope, double eps,
                           const TensorView& position, const TensorView& kv,
                           const TensorView& parts, const TensorView& lse) {
    with_head_dim(parts.size(2), [&](auto head_dim) {
        constexpr int D = decltype(head_dim)::value;
        const int64_t heads = parts.size(0), kv_heads = kv.size(0);
        attention_decode<D>(
            plain_launch(), device_data<float>(qkv, "qkv", "float32", {heads + 2 * kv_heads, D}),
            head_shape(q_norm, k_norm, rope, eps, heads, kv_heads, D),
            device_data<int>(position, "position", "int32", {1}), kv_cache(kv, D),
            device_data<__half>(parts, "parts", "float16", {heads, kAttentionSplits, D}),
            device_data<float>(lse, "lse", "float32", {heads, kAttentionSplits}));
    });
}

void call_sample(const TensorView& logits, double temperature, int top_k, double top_p,
                 uint64_t seed, uint32_t stream, int row, const TensorView& rows) {
    const int64_t codebooks = logits.size(0), vocab = logits.size(1);
    constexpr double kGreedy = 1e-5;
    DecodeState state{};
    state.sampling = {static_cast<float>(temperature),
                      temperature <= kGreedy,
                      top_k,
                      static_cast<float>(top_p),
                      static_cast<uint32_t>(seed),
                      static_cast<uint32_t>(seed >> 32),
                      stream};
    state.row = row;
    Arena arena("test state");
    const int region = arena.reserve("state", sizeof state);
    arena.allocate();
    auto* on_device = arena.at<DecodeState>(region);
    CUDA_CHECK(cudaMemcpy(on_device, &state, sizeof state, cudaMemcpyHostToDevice));
    LIVEVOICE_CHECK(row >= 0 && row < rows.size(0), "row: must be below ", rows.size(0));
    sample(plain_launch(), device_data<float>(logits, "logits", "float32", {codebooks, vocab}),
           static_cast<int>(codebooks), static_cast<int>(vocab), on_device,
           device_data<int>(rows, "rows", "int32", {kAnySize, codebooks}));
    CUDA_CHECK(cudaDeviceSynchronize());
}

void call_embed(const TensorView& table, const TensorView& text, const TensorView& codes, int vocab,
                const TensorView& residual) {
    const int64_t S = residual.size(0), hidden = residual.size(1), codebooks = codes.size(1);
    const PackedMatrix packed = matrix<Bf16>(table, TensorView{}, hidden);
    LIVEVOICE_CHECK(codebooks * vocab <= static_cast<int64_t>(packed.tiles) * kTileRows,
                    "table: has too few rows");
    const AudioTable audio{packed.weights, static_cast<int>(codebooks), vocab,
                           static_cast<int>(hidden)};
    embed_prompt(plain_launch(), audio, device_data<void>(text, "text", "bfloat16", {S, hidden}),
                 device_data<int>(codes, "codes", "int32", {S, codebooks}), static_cast<int>(S),
                 device_data<float>(residual, "residual", "float32", {S, hidden}));
}

void call_codec_conv(const TensorView& x, const TensorView& weight, const TensorView& bias,
                     const TensorView& alpha, const TensorView& skip, const TensorView& raw,
                     const TensorView& activated, int dilation, int stride) {
    const int64_t in = x.size(0), samples = x.size(1), taps = weight.size(1), out = bias.size(0);
    Conv conv{device_data<float>(weight, "weight", "float32", {in, taps, stride * out}),
              device_data<float>(bias, "bias", "float32", {out}),
              static_cast<int>(in),
              static_cast<int>(out),
              static_cast<int>(taps),
              dilation,
              stride,
              stride > 1 ? 1 : static_cast<int>(taps - 1) / 2 * dilation,
              stride > 1 ? (stride + 1) / 2 : 0};
    const ConvOut results{optional_floats(raw, "raw"), optional_floats(activated, "activated"),
                          optional_floats(alpha, "alpha"), optional_floats(skip, "skip")};
    codec_conv(plain_launch(), conv, static_cast<const float*>(x.data), static_cast<int>(samples),
               results, static_cast<int>(samples * stride));
}

cudaError_t probe_kernels() {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, sample_kernel);
}

double call_read_bandwidth(const TensorView& buffer, int rounds) {
    const auto* from = device_data<uint4>(buffer, "buffer", "uint8", {kAnySize});
    const size_t pieces = buffer.size(0) / sizeof(uint4);
    const Launch on = plain_launch();
    Event begin, end;
    begin.create(cudaEventDefault);
    end.create(cudaEventDefault);
    double best = 0.0;
    for (int i = 0; i < rounds; ++i) {
        CUDA_CHECK(cudaEventRecord(begin.get(), on.stream));
        launch(on, read_kernel, on.multiprocessors * 4, kReadThreads, 0, from, pieces,
               static_cast<uint32_t*>(buffer.data));
        CUDA_CHECK(cudaEventRecord(end.get(), on.stream));
        CUDA_CHECK(cudaEventSynchronize(end.get()));
        float milliseconds = 0.0f;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
        best = std::max(best, pieces * sizeof(uint4) / (milliseconds * 1e-3));
    }
    return best;
}

}  // namespace livevoice
