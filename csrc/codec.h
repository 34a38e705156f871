// The codec's decoder on one GPU: codes to waveform in float32, in an arena of its own.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph.h"
#include "kernels/codec_conv.cuh"

namespace livevoice {

/// Sizes, as engine/config.py gives them.
struct CodecShape {
    int codebooks, entries;  // quantisers and codes each
    int latent_channels;     // what the quantisers sum to
    int decoder_channels;    // after the first convolution; halved by every block
    std::vector<int> strides;
    int max_frames;  // longest window
    int hop() const {
        int samples = 1;
        for (int stride : strides) samples *= stride;
        return samples;
    }
};

class Codec {
  public:
    Codec(const CodecShape& shape, int device);
    ~Codec() { unload(); }

    /// Loads float32 values by name; the names are those of `value_counts`.
    void load_values(const std::string& name, const float* values, size_t count);
    /// Every value that decoding needs, with its length.
    static std::map<std::string, size_t> value_counts(const CodecShape& shape);
    static size_t codec_bytes(const CodecShape& shape);

    /// codes: int32 [frames, codebooks], each below `entries`; out: float32 [frames * hop], both in
    /// host memory. The window is surrounded by zeros.
    void decode(const int* codes, int frames, float* out);
    void unload() noexcept;
    size_t resident_bytes() const { return resident_bytes_; }

  private:
    struct Held {
        Stream stream;
        Arena arena{"codec"};
        PinnedBuffer codes, waveform;
    };
    /// The activations between convolutions: float32 [channels, samples].
    struct Activations {
        float *raw, *activated, *spare;
        int samples;
    };
    const float* value(const std::string& name) const;
    void conv(const std::string& name, const Conv& sizes, const float* x, int samples,
              const ConvOut& out, int samples_out);
    void upsample(const std::string& block, int in_channels, int stride, Activations& x);
    void residual_unit(const std::string& unit, const std::string& next_snake, int channels,
                       int dilation, Activations& x);

    const CodecShape shape_;
    const int device_;
    Launch on_{};
    std::map<std::string, int> regions_;
    int codes_region_ = 0, buffers_[3] = {};
    std::mutex work_;
    std::atomic<size_t> resident_bytes_{0};
    std::unique_ptr<Held> held_;
};

}  // namespace livevoice
