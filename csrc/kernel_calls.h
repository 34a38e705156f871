// Single kernels as plain functions of checked tensors, for tests and measurements. The engine does
// not come through here.
#pragma once
#include <cstdint>

#include "tensor.h"

namespace livevoice {

/// packed: uint8; scales: float32 (empty for bf16). precision: "fp8" or "bf16". layout: "rows", or
/// "gate" and "up", whose rows share tiles.
void call_pack(const TensorView& source, const TensorView& packed, const TensorView& scales,
               const std::string& precision, const std::string& layout);
/// y[rows] = W (norm(before + delta) * weight); also writes after = before + delta, zeroes cleared.
void call_norm_gemv(const TensorView& packed, const TensorView& scales, const TensorView& before,
                    const TensorView& delta, const TensorView& after, const TensorView& cleared,
                    const TensorView& weight, double eps, const TensorView& y,
                    const std::string& precision, bool is_swiglu);
/// delta += W x, x merged from attention parts (head_dim > 0), or an activation (head_dim 0).
void call_residual_gemv(const TensorView& packed, const TensorView& scales, const TensorView& x,
                        const TensorView& lse, const TensorView& delta,
                        const std::string& precision, int head_dim);
void call_gemm(const TensorView& packed, const TensorView& scales, const TensorView& x,
               const TensorView& y, const std::string& precision, bool is_swiglu);
void call_rmsnorm(const TensorView& residual, const TensorView& partials, const TensorView& weight,
                  double eps, const TensorView& y, const std::string& precision);
void call_qk_norm_rope(const TensorView& qkv, const TensorView& q_norm, const TensorView& k_norm,
                       const TensorView& rope, double eps, int first_position, const TensorView& q,
                       const TensorView& kv);
void call_attention_prefill(const TensorView& q, const TensorView& kv, int first_position,
                            const TensorView& out, const std::string& precision);
void call_attention_decode(const TensorView& qkv, const TensorView& q_norm,
                           const TensorView& k_norm, const TensorView& rope, double eps,
                           const TensorView& position, const TensorView& kv,
                           const TensorView& parts, const TensorView& lse);
/// Returns nothing; rows [row] of int32 [rows, codebooks] is written. top_k 0 and top_p 1: off.
void call_sample(const TensorView& logits, double temperature, int top_k, double top_p,
                 uint64_t seed, uint32_t stream, int row, const TensorView& rows);
/// residual[S, hidden]: text rows, or sums of rows of the packed table where codes are not
/// negative.
void call_embed(const TensorView& table, const TensorView& text, const TensorView& codes, int vocab,
                const TensorView& residual);
/// A convolution of stride 1, or a transposed one; snake and skip where the tensors are not empty.
void call_codec_conv(const TensorView& x, const TensorView& weight, const TensorView& bias,
                     const TensorView& alpha, const TensorView& skip, const TensorView& raw,
                     const TensorView& activated, int dilation, int stride);
/// Bytes per second of a pure read of `buffer` (uint8), the best of `rounds`.
double call_read_bandwidth(const TensorView& buffer, int rounds);
/// Success when the current device can run the kernels of this build.
cudaError_t probe_kernels();

}  // namespace livevoice
