#include "codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace livevoice {

namespace {

// Fixed by the DAC architecture (arXiv 2306.06546), not by a configuration.
constexpr int kKernel = 7;
constexpr int kDilations[] = {1, 3, 9};

std::string block_name(size_t b) { return "block." + std::to_string(b) + "."; }
std::string unit_name(size_t b, int u) { return block_name(b) + "unit" + std::to_string(u) + "."; }

/// Floats of the largest activation of a window.
size_t largest_activation(const CodecShape& shape) {
    size_t frames = shape.max_frames, channels = shape.decoder_channels, samples = frames;
    size_t largest = std::max(channels, static_cast<size_t>(shape.latent_channels)) * samples;
    for (int stride : shape.strides) {
        channels /= 2;
        samples *= stride;
        largest = std::max(largest, channels * samples);
    }
    return largest;
}

struct CodecLayout {
    std::map<std::string, int> values;
    int codes, buffers[3];
};

CodecLayout lay_out(const CodecShape& shape, Arena& arena) {
    CodecLayout layout;
    for (const auto& [name, count] : Codec::value_counts(shape))
        layout.values[name] = arena.reserve(name, count * sizeof(float));
    layout.codes = arena.reserve("codes", sizeof(int) * shape.max_frames * shape.codebooks);
    for (int& buffer : layout.buffers)
        buffer = arena.reserve("activations", largest_activation(shape) * sizeof(float));
    return layout;
}

}  // namespace

std::map<std::string, size_t> Codec::value_counts(const CodecShape& shape) {
    std::map<std::string, size_t> counts;
    const auto add_conv = [&](const std::string& name, size_t in, size_t out, size_t taps,
                              size_t phases) {
        counts[name + ".weight"] = in * taps * out * phases;
        counts[name + ".bias"] = out;
    };
    size_t channels = shape.decoder_channels;
    counts["tables"] = static_cast<size_t>(shape.codebooks) * shape.entries * shape.latent_channels;
    counts["tables.bias"] = shape.latent_channels;
    add_conv("first", shape.latent_channels, channels, kKernel, 1);
    for (size_t b = 0; b < shape.strides.size(); ++b) {
        counts[block_name(b) + "snake"] = channels;
        add_conv(block_name(b) + "up", channels, channels / 2, 2, shape.strides[b]);
        channels /= 2;
        for (int u = 0; u < 3; ++u) {
            counts[unit_name(b, u) + "snake1"] = counts[unit_name(b, u) + "snake2"] = channels;
            add_conv(unit_name(b, u) + "conv1", channels, channels, kKernel, 1);
            add_conv(unit_name(b, u) + "conv2", channels, channels, 1, 1);
        }
    }
    counts["snake"] = channels;
    add_conv("last", channels, 1, kKernel, 1);
    return counts;
}

size_t Codec::codec_bytes(const CodecShape& shape) {
    Arena arena("codec");
    lay_out(shape, arena);
    return arena.layout_bytes();
}

Codec::Codec(const CodecShape& shape, int device) : shape_(shape), device_(device) {
    LIVEVOICE_CHECK(
        shape.max_frames > 0 && shape.decoder_channels % (1 << shape.strides.size()) == 0,
        "codec: ", shape.decoder_channels, " channels can't be halved ", shape.strides.size(),
        " times");
    const DeviceScope scope(device_);
    auto held = std::make_unique<Held>();
    held->stream.create(Stream::kUrgent);
    const CodecLayout layout = lay_out(shape_, held->arena);
    regions_ = layout.values;
    codes_region_ = layout.codes;
    std::copy(std::begin(layout.buffers), std::end(layout.buffers), buffers_);
    held->arena.allocate();
    held->codes.allocate(sizeof(int) * shape_.max_frames * shape_.codebooks);
    held->waveform.allocate(sizeof(float) * shape_.max_frames * shape_.hop());
    on_ = launch_on(held->stream.get(), device_, false);
    resident_bytes_ = held->arena.resident_bytes();
    held_ = std::move(held);
}

void Codec::load_values(const std::string& name, const float* values, size_t count) {
    const std::lock_guard<std::mutex> lock(work_);
    if (!held_) throw CudaError("codec: unloaded");
    const auto region = regions_.find(name);
    LIVEVOICE_CHECK(region != regions_.end(), "codec: nothing is called ", name);
    const size_t expected = held_->arena.regions()[region->second].bytes / sizeof(float);
    LIVEVOICE_CHECK(count == expected, "codec: ", name, " needs ", expected, " values, got ",
                    count);
    const DeviceScope scope(device_);
    CUDA_CHECK(cudaMemcpyAsync(held_->arena.at<float>(region->second), values,
                               count * sizeof(float), cudaMemcpyHostToDevice, on_.stream));
    held_->stream.synchronize();  // the caller's memory may go away
}

const float* Codec::value(const std::string& name) const {
    return held_->arena.at<float>(regions_.at(name));
}

void Codec::conv(const std::string& name, const Conv& sizes, const float* x, int samples,
                 const ConvOut& out, int samples_out) {
    Conv with_values = sizes;
    with_values.weight = value(name + ".weight");
    with_values.bias = value(name + ".bias");
    codec_conv(on_, with_values, x, samples, out, samples_out);
}

/// x.activated, Snake applied -> stride times as many samples: x.raw, and x.activated for unit 0.
void Codec::upsample(const std::string& block, int in_channels, int stride, Activations& x) {
    const Conv sizes{nullptr, nullptr, in_channels, in_channels / 2, 2,
                     1,       stride,  1,           (stride + 1) / 2};
    conv(block + "up", sizes, x.activated, x.samples,
         {x.raw, x.spare, value(block + "unit0.snake1"), nullptr}, x.samples * stride);
    std::swap(x.activated, x.spare);
    x.samples *= stride;
}

/// x.raw += conv2(snake2(conv1(x.activated))); x.activated is then Snake of that, for the next
/// layer.
void Codec::residual_unit(const std::string& unit, const std::string& next_snake, int channels,
                          int dilation, Activations& x) {
    const int padding = (kKernel - 1) / 2 * dilation;
    conv(unit + "conv1", {nullptr, nullptr, channels, channels, kKernel, dilation, 1, padding, 0},
         x.activated, x.samples, {nullptr, x.spare, value(unit + "snake2"), nullptr}, x.samples);
    conv(unit + "conv2", {nullptr, nullptr, channels, channels, 1, 1, 1, 0, 0}, x.spare, x.samples,
         {x.raw, x.activated, value(next_snake), x.raw}, x.samples);
}

void Codec::decode(const int* codes, int frames, float* out) {
    const std::lock_guard<std::mutex> lock(work_);
    if (!held_) throw CudaError("codec: unloaded");
    LIVEVOICE_CHECK(frames > 0 && frames <= shape_.max_frames, "codec: a window of 1 to ",
                    shape_.max_frames, " frames, got ", frames);
    const size_t n_codes = static_cast<size_t>(frames) * shape_.codebooks;
    LIVEVOICE_CHECK(std::all_of(codes, codes + n_codes,
                                [&](int code) { return code >= 0 && code < shape_.entries; }),
                    "codec: codes must be between 0 and ", shape_.entries - 1);
    const DeviceScope scope(device_);
    Held& held = *held_;
    int* device_codes = held.arena.at<int>(codes_region_);
    std::memcpy(held.codes.as<int>(), codes, n_codes * sizeof(int));
    CUDA_CHECK(cudaMemcpyAsync(device_codes, held.codes.as<int>(), n_codes * sizeof(int),
                               cudaMemcpyHostToDevice, on_.stream));
    Activations x{held.arena.at<float>(buffers_[0]), held.arena.at<float>(buffers_[1]),
                  held.arena.at<float>(buffers_[2]), frames};
    codec_lookup(on_, value("tables"), value("tables.bias"), device_codes, shape_.codebooks,
                 shape_.entries, shape_.latent_channels, frames, x.raw);
    int channels = shape_.decoder_channels;
    const Conv first{nullptr,     nullptr, shape_.latent_channels, channels, kKernel, 1, 1,
                     kKernel / 2, 0};
    conv("first", first, x.raw, frames,
         {nullptr, x.activated, value(block_name(0) + "snake"), nullptr}, frames);
    for (size_t b = 0; b < shape_.strides.size(); ++b) {
        upsample(block_name(b), channels, shape_.strides[b], x);
        channels /= 2;
        const bool is_last = b + 1 == shape_.strides.size();
        for (int u = 0; u < 3; ++u) {
            const std::string next = u < 2     ? unit_name(b, u + 1) + "snake1"
                                     : is_last ? std::string("snake")
                                               : block_name(b + 1) + "snake";
            residual_unit(unit_name(b, u), next, channels, kDilations[u], x);
        }
    }
    const Conv last{nullptr, nullptr, channels, 1, kKernel, 1, 1, kKernel / 2, 0};
    conv("last", last, x.activated, x.samples, {x.spare, nullptr, nullptr, nullptr}, x.samples);
    const size_t bytes = sizeof(float) * x.samples;
    CUDA_CHECK(cudaMemcpyAsync(held.waveform.as<float>(), x.spare, bytes, cudaMemcpyDeviceToHost,
                               on_.stream));
    held.stream.synchronize();
    std::memcpy(out, held.waveform.as<float>(), bytes);
}

void Codec::unload() noexcept {
    const std::lock_guard<std::mutex> lock(work_);
    if (!held_) return;
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    cudaStreamSynchronize(on_.stream);
    held_.reset();
    resident_bytes_ = 0;
    cudaSetDevice(before);
}

}  // namespace livevoice
