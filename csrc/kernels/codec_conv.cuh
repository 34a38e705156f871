// codec_conv: every convolution of the codec's decoder, in float32, with bias, skip connection and
// Snake on the way out. A transposed convolution is one with two taps and stride * channels rows.
//
// A block computes some channels x 64 samples. Its threads are slices that share the input channels
// among them and are added up in a fixed order at the end. The early stages have many channels and
// few samples: there a tile of few channels gives more blocks, and many slices give short loops.
#pragma once
#include "device/ptx.cuh"
#include "kernels/launch.h"

namespace livevoice {

template <int kChannelsOfTile, int kSlicesOfTile>
struct ConvTile {
    static constexpr int kChannels = kChannelsOfTile, kSlices = kSlicesOfTile;
    static constexpr int kSamples = 64, kInputs = 4;
    static constexpr int kThreadChannels = 8, kThreadSamples = 4;
    static constexpr int kColumns = kSamples / kThreadSamples;                    // 16
    static constexpr int kSliceThreads = kColumns * kChannels / kThreadChannels;  // 64
    static constexpr int kThreads = kSlices * kSliceThreads;
};
using WideTile = ConvTile<32, 4>;
using NarrowTile = ConvTile<8, 16>;
constexpr int kMaxReach = 54;  // (7 - 1) taps at dilation 9

/// One convolution. Tensors are float32 [channels, samples].
struct Conv {
    const float* weight;  // [in channels, taps, rows], rows = stride * out channels, phase first
    const float* bias;    // [out channels]
    int in_channels, out_channels, taps, dilation;
    int stride;   // 1, or that of a transposed convolution
    int padding;  // samples that the input is shifted by (before the stride is applied)
    int crop;     // output samples cut off at the start (after the stride)
};

/// Where the results go.
struct ConvOut {
    float* raw;          // y, or null
    float* activated;    // y + sin^2(alpha y) / alpha, or null
    const float* alpha;  // float32 [out channels]
    const float* skip;   // added to y; may be raw itself; or null
};

/// sin^2, to 1e-7. It repeats with pi, so the reduction is short and needs no stack, as sinf would.
__device__ __forceinline__ float sine_squared(float x) {
    const float turns = rintf(x * 0.318309886f);
    float r = fmaf(turns, -3.14159274f, x);
    r = fmaf(turns, 8.74227766e-8f, r);  // pi - float(pi), negated
    const float z = r * r;
    float sine = fmaf(z, -2.50521084e-8f, 2.75573192e-6f);
    sine = fmaf(z, sine, -1.98412698e-4f);
    sine = fmaf(z, sine, 8.33333333e-3f);
    sine = fmaf(z, sine, -1.66666667e-1f);
    sine = fmaf(z * r, sine, r);
    return sine * sine;
}

/// 1e-9 keeps alpha = 0 finite, as in transformers.
__device__ __forceinline__ float snake(float v, float alpha) {
    return v + sine_squared(alpha * v) / (alpha + 1e-9f);
}

/// Shared memory of one slice and one step: kInputs channels of x and of the weights.
template <int kTaps, class Tile>
struct ConvStep {
    static constexpr int kInput = Tile::kInputs * (Tile::kSamples + kMaxReach);
    static constexpr int kWeights = Tile::kInputs * kTaps * Tile::kChannels;
    float x[kInput];
    alignas(16) float weight[kWeights];

    /// Requests the channels from `channel` on; zeros past the ends.
    __device__ __forceinline__ void fetch(const Conv& conv, const float* from, int samples,
                                          int channel) {
        const int me = threadIdx.x % Tile::kSliceThreads;
        const int width = Tile::kSamples + (kTaps - 1) * conv.dilation;
        const int first = blockIdx.x * Tile::kSamples - conv.padding;
        for (int c = 0; c < Tile::kInputs; ++c) {
            for (int i = me; i < width; i += Tile::kSliceThreads) {
                const int s = first + i;
                const bool valid = channel + c < conv.in_channels && s >= 0 && s < samples;
                const size_t at = valid ? static_cast<size_t>(channel + c) * samples + s : 0;
                copy_float_async(x + c * width + i, from + at, valid);
            }
        }
        if (conv.stride * conv.out_channels % 4 == 0)
            fetch_weights<4>(conv, channel);
        else
            fetch_weights<1>(conv, channel);
    }

  private:
    /// In pieces of 1 or 4 rows; the number of rows must be a multiple of it.
    template <int kPiece>
    __device__ __forceinline__ void fetch_weights(const Conv& conv, int channel) {
        const int rows = conv.stride * conv.out_channels, first_row = blockIdx.y * Tile::kChannels;
        constexpr int kPieces = Tile::kChannels / kPiece;
        for (int i = threadIdx.x % Tile::kSliceThreads; i < kWeights / kPiece;
             i += Tile::kSliceThreads) {
            const int k = i / kPieces, row = first_row + i % kPieces * kPiece;
            const bool valid = channel + k / kTaps < conv.in_channels && row < rows;
            const size_t at = valid ? static_cast<size_t>(channel * kTaps + k) * rows + row : 0;
            if (kPiece == 4)
                copy_async(weight + i * kPiece, conv.weight + at, valid);
            else
                copy_float_async(weight + i * kPiece, conv.weight + at, valid);
        }
    }
};

/// Adds the products of this slice's input channels to sum; steps of the slice alternate.
template <int kTaps, class Tile>
__device__ __forceinline__ void accumulate(
    float (&sum)[Tile::kThreadChannels][Tile::kThreadSamples], const Conv& conv, const float* x,
    int samples, ConvStep<kTaps, Tile>* steps) {
    const int slice = threadIdx.x / Tile::kSliceThreads, me = threadIdx.x % Tile::kSliceThreads;
    const int column = me % Tile::kColumns, row = me / Tile::kColumns * Tile::kThreadChannels;
    const int width = Tile::kSamples + (kTaps - 1) * conv.dilation;
    constexpr int kStride = Tile::kSlices * Tile::kInputs;
    const int n_steps = ceil_div(conv.in_channels, kStride);
    steps += 2 * slice;

    steps[0].fetch(conv, x, samples, slice * Tile::kInputs);
    copy_async_commit();
    for (int i = 0; i < n_steps; ++i) {
        if (i + 1 < n_steps)
            steps[(i + 1) % 2].fetch(conv, x, samples, (i + 1) * kStride + slice * Tile::kInputs);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const ConvStep<kTaps, Tile>& step = steps[i % 2];
#pragma unroll
        for (int c = 0; c < Tile::kInputs; ++c) {
#pragma unroll
            for (int tap = 0; tap < kTaps; ++tap) {
                const auto* w = reinterpret_cast<const float4*>(
                    step.weight + (c * kTaps + tap) * Tile::kChannels + row);
                const float4 w0 = w[0], w1 = w[1];
                const float weights[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
                for (int s = 0; s < Tile::kThreadSamples; ++s) {
                    const float v =
                        step.x[c * width + tap * conv.dilation + column + s * Tile::kColumns];
#pragma unroll
                    for (int r = 0; r < Tile::kThreadChannels; ++r) sum[r][s] += weights[r] * v;
                }
            }
        }
        __syncthreads();
    }
}

/// Adds the slices and stores. `exchange`: float32 [kSlices][kChannels][kSamples].
template <class Tile>
__device__ __forceinline__ void finish(
    const float (&sum)[Tile::kThreadChannels][Tile::kThreadSamples], const Conv& conv,
    const ConvOut& out, int samples_out, float* exchange) {
    const int slice = threadIdx.x / Tile::kSliceThreads, me = threadIdx.x % Tile::kSliceThreads;
    const int column = me % Tile::kColumns, row = me / Tile::kColumns * Tile::kThreadChannels;
    constexpr int kResults = Tile::kChannels * Tile::kSamples;
#pragma unroll
    for (int r = 0; r < Tile::kThreadChannels; ++r) {
#pragma unroll
        for (int s = 0; s < Tile::kThreadSamples; ++s)
            exchange[slice * kResults + (row + r) * Tile::kSamples + column + s * Tile::kColumns] =
                sum[r][s];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kResults; i += Tile::kThreads) {
        const int at_row = blockIdx.y * Tile::kChannels + i / Tile::kSamples;
        if (at_row >= conv.stride * conv.out_channels) return;
        const int phase = at_row / conv.out_channels, channel = at_row % conv.out_channels;
        const int input = blockIdx.x * Tile::kSamples + i % Tile::kSamples;
        const int sample = input * conv.stride + phase - conv.crop;
        if (sample < 0 || sample >= samples_out) continue;
        float v = 0.0f;
#pragma unroll
        for (int from = 0; from < Tile::kSlices; ++from) v += exchange[from * kResults + i];
        const size_t to = static_cast<size_t>(channel) * samples_out + sample;
        v += conv.bias[channel];
        if (out.skip) v += out.skip[to];
        if (out.raw) out.raw[to] = v;
        if (out.activated) out.activated[to] = snake(v, out.alpha[channel]);
    }
}

template <int kTaps, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    codec_conv_kernel(Conv conv, const float* x, int samples, ConvOut out, int samples_out) {
    extern __shared__ __align__(16) uint8_t shared[];
    float sum[Tile::kThreadChannels][Tile::kThreadSamples] = {};
    accumulate<kTaps, Tile>(sum, conv, x, samples,
                            reinterpret_cast<ConvStep<kTaps, Tile>*>(shared));
    finish<Tile>(sum, conv, out, samples_out, reinterpret_cast<float*>(shared));
}

template <int kTaps, class Tile>
void launch_conv(const Launch& on, const Conv& conv, const float* x, int samples, int inputs,
                 const ConvOut& out, int samples_out) {
    constexpr size_t kExchange = sizeof(float) * Tile::kSlices * Tile::kChannels * Tile::kSamples;
    constexpr size_t kSteps = 2 * Tile::kSlices * sizeof(ConvStep<kTaps, Tile>);
    const dim3 grid(ceil_div(inputs, Tile::kSamples),
                    ceil_div(conv.stride * conv.out_channels, Tile::kChannels));
    launch(on, codec_conv_kernel<kTaps, Tile>, grid, Tile::kThreads,
           kSteps > kExchange ? kSteps : kExchange, conv, x, samples, out, samples_out);
}

/// x: float32 [in channels, samples]; results: float32 [out channels, samples_out]. The bits depend
/// on the sizes and on the number of multiprocessors.
inline void codec_conv(const Launch& on, const Conv& conv, const float* x, int samples,
                       const ConvOut& out, int samples_out) {
    LIVEVOICE_CHECK(conv.taps == 7 || conv.taps == 2 || conv.taps == 1,
                    "codec_conv: 1, 2 or 7 taps, got ", conv.taps);
    LIVEVOICE_CHECK((conv.taps - 1) * conv.dilation <= kMaxReach, "codec_conv: a reach of at most ",
                    kMaxReach, " samples, got ", (conv.taps - 1) * conv.dilation);
    const int inputs = conv.stride == 1 ? samples_out : samples + 1;
    const int wide_blocks = ceil_div(inputs, WideTile::kSamples) *
                            ceil_div(conv.stride * conv.out_channels, WideTile::kChannels);
    const bool narrow = wide_blocks < on.multiprocessors;
    const auto run = conv.taps == 7 ? narrow ? launch_conv<7, NarrowTile> : launch_conv<7, WideTile>
                     : conv.taps == 2
                         ? narrow ? launch_conv<2, NarrowTile> : launch_conv<2, WideTile>
                     : narrow ? launch_conv<1, NarrowTile>
                              : launch_conv<1, WideTile>;
    run(on, conv, x, samples, inputs, out, samples_out);
}

/// Quantisers, their output projections and fc2 are linear in the one-hot code: one table each.
static __global__ void codec_lookup_kernel(const float* tables, const float* bias, const int* codes,
                                           int codebooks, int entries, int channels, int frames,
                                           float* latent) {
    const int t = blockIdx.x;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        float sum = bias[c];
        for (int q = 0; q < codebooks; ++q) {
            const int code = codes[t * codebooks + q];
            sum += tables[(static_cast<size_t>(q) * entries + code) * channels + c];
        }
        latent[static_cast<size_t>(c) * frames + t] = sum;
    }
}

/// tables: float32 [codebooks, entries, channels]; codes: int32 [frames, codebooks], each below
/// entries; latent: float32 [channels, frames].
inline void codec_lookup(const Launch& on, const float* tables, const float* bias, const int* codes,
                         int codebooks, int entries, int channels, int frames, float* latent) {
    launch(on, codec_lookup_kernel, frames, 256, 0, tables, bias, codes, codebooks, entries,
           channels, frames, latent);
}

}  // namespace livevoice
