#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace livevoice {

namespace {

/// Frames the GPU may be ahead of the caller: hides the host's scheduling, wastes little at the
/// end.
constexpr int kFramesAhead = 3;
constexpr auto kRowTimeout = std::chrono::seconds(10);

/// Several small things travel through one pinned buffer; each has its place.
struct SmallTransfers {
    DecodeState state;
    int forced_row[kMaxCodebooks];
};

}  // namespace

Engine::Engine(const ModelShape& shape, Precision precision, int device, bool overlap, StepWay way)
    : shape_(shape),
      precision_(precision),
      device_(device),
      passes_(passes_for(precision, shape.head_dim)),
      way_(way) {
    const DeviceScope scope(device_);
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
    LIVEVOICE_CHECK(
        precision == Precision::kBf16 || properties.major * 10 + properties.minor >= 89,
        "precision fp8 needs a GPU that converts e4m3 (compute capability 8.9 or newer); ",
        properties.name, " has ", properties.major, ".", properties.minor, ", choose bf16");
    auto held = std::make_unique<Held>(shape_, precision_);
    held->stream.create();
    held->arenas.weights.allocate();
    held->arenas.decode.allocate();
    held->arenas.scratch.allocate();
    held->rows.allocate(sizeof(int) * (shape_.capacity + 1) * shape_.codebooks);
    held->steps.allocate();
    held->small.allocate(sizeof(SmallTransfers) + sizeof(float) * shape_.table_rows());
    held->prompt.allocate((2 * shape_.hidden + sizeof(int) * shape_.codebooks) * kPrefillChunk);
    on_ = launch_on(held->stream.get(), device_, overlap);
    on_.gemv_blocks = decode_blocks(shape_, on_.multiprocessors);
    held->loader = std::make_unique<Loader>(on_, held->arenas.scratch.base());
    // Rows that pad a packed matrix must be zero, and no scale may be NaN.
    CUDA_CHECK(cudaMemsetAsync(held->arenas.weights.base(), 0, held->arenas.weights.layout_bytes(),
                               on_.stream));
    CUDA_CHECK(cudaMemsetAsync(held->arenas.decode.base(), 0, held->arenas.decode.layout_bytes(),
                               on_.stream));
    held->stream.synchronize();
    resident_bytes_ = held->arenas.layout_bytes();
    held_ = std::move(held);
    bind();
}

/// Points the model and the buffers into the arenas.
void Engine::bind() {
    const Layout& at = held_->arenas.at;
    const Arena &w = held_->arenas.weights, &d = held_->arenas.decode, &s = held_->arenas.scratch;
    const auto matrix = [&](int region, int scales, int rows, int columns) {
        return PackedMatrix{w.at<uint8_t>(region), w.at<float>(scales), ceil_div(rows, kTileRows),
                            columns};
    };
    model_ = {shape_, {}, d.at<__nv_bfloat16>(at.kv)};
    for (const Layout::Layer& layer : at.layers)
        model_.weights.layers.push_back(
            {matrix(layer.qkv, layer.qkv_scales, shape_.qkv_rows(), shape_.hidden),
             matrix(layer.o, layer.o_scales, shape_.hidden, shape_.attention_width()),
             matrix(layer.gate_up, layer.gate_up_scales, 2 * shape_.ffn, shape_.hidden),
             matrix(layer.down, layer.down_scales, shape_.hidden, shape_.ffn),
             w.at<float>(layer.input_norm), w.at<float>(layer.post_norm), w.at<float>(layer.q_norm),
             w.at<float>(layer.k_norm)});
    model_.weights.head = {w.at<uint8_t>(at.head), nullptr,
                           ceil_div(shape_.table_rows(), kTileRows), shape_.hidden};
    model_.weights.final_norm = w.at<float>(at.final_norm);
    model_.weights.rope = w.at<float2>(at.rope);
    int* rows = nullptr;
    CUDA_CHECK(cudaHostGetDevicePointer(&rows, held_->rows.as<int>(), 0));
    size_t words = 0;
    decode_ = {d.at<DecodeState>(at.state),
               d.at<float>(at.residual_a),
               d.at<float>(at.residual_b),
               d.at<float>(at.delta_attention),
               d.at<float>(at.delta_ffn),
               d.at<float>(at.qkv),
               d.at<__half>(at.parts),
               d.at<float>(at.lse),
               d.at<void>(at.activation),
               d.at<float>(at.logits),
               rows,
               d.at<StepControl>(at.step_control),
               held_->steps.signals_on_device(),
               exchange_at(d.at<uint64_t>(at.exchange), shape_, words)};
    prefill_ = {s.at<float>(at.chunk_residual), s.at<void>(at.chunk_normed),
                s.at<float>(at.chunk_qkv),      s.at<__nv_bfloat16>(at.chunk_q),
                s.at<void>(at.chunk_attention), s.at<void>(at.chunk_activation),
                s.at<float>(at.chunk_partials), s.at<void>(at.chunk_text),
                s.at<int>(at.chunk_codes)};
}

Engine::Held& Engine::held() {
    if (is_closing_ || !held_) throw CudaError("native backend: unloaded");
    return *held_;
}

void Engine::load_matrix(const std::string& name, int layer, const MatrixSource& source) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    LIVEVOICE_CHECK(held.loader, "load_matrix: loading was finished");
    const int q_rows = shape_.attention_width(), kv_rows = shape_.kv_heads * shape_.head_dim;
    if (name == "head") {
        LIVEVOICE_CHECK(source.rows == shape_.table_rows() && source.columns == shape_.hidden,
                        "head: wrong shape");
        held.loader->load(source, Precision::kBf16,
                          held.arenas.weights.at<uint8_t>(held.arenas.at.head), nullptr,
                          {0, 16, 0});
        return;
    }
    const Layout::Layer& at = held.arenas.at.layers.at(layer);
    struct Target {
        const char* name;
        int region, scales, rows, columns;
        RowPlacement place;
    };
    const Target targets[] = {
        {"q", at.qkv, at.qkv_scales, q_rows, shape_.hidden, {0, 16, 0}},
        {"k", at.qkv, at.qkv_scales, kv_rows, shape_.hidden, {q_rows / 16, 16, 0}},
        {"v", at.qkv, at.qkv_scales, kv_rows, shape_.hidden, {(q_rows + kv_rows) / 16, 16, 0}},
        {"o", at.o, at.o_scales, shape_.hidden, q_rows, {0, 16, 0}},
        {"gate", at.gate_up, at.gate_up_scales, shape_.ffn, shape_.hidden, {0, 8, 0}},
        {"up", at.gate_up, at.gate_up_scales, shape_.ffn, shape_.hidden, {0, 8, 8}},
        {"down", at.down, at.down_scales, shape_.hidden, shape_.ffn, {0, 16, 0}},
    };
    for (const Target& target : targets) {
        if (name != target.name) continue;
        LIVEVOICE_CHECK(source.rows == target.rows && source.columns == target.columns, name,
                        ": expected [", target.rows, ", ", target.columns, "], got [", source.rows,
                        ", ", source.columns, "]");
        const Arena& weights = held.arenas.weights;
        held.loader->load(source, precision_, weights.at<uint8_t>(target.region),
                          weights.at<float>(target.scales), target.place);
        return;
    }
    LIVEVOICE_CHECK(false, "load_matrix: no matrix is called ", name);
}

void Engine::load_values(const std::string& name, int layer, const float* values, size_t count) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    const Arenas& arenas = held().arenas;
    int region = name == "final_norm" ? arenas.at.final_norm : name == "rope" ? arenas.at.rope : -1;
    if (region < 0) {
        const Layout::Layer& at = arenas.at.layers.at(layer);
        region = name == "input_norm"  ? at.input_norm
                 : name == "post_norm" ? at.post_norm
                 : name == "q_norm"    ? at.q_norm
                 : name == "k_norm"    ? at.k_norm
                                       : -1;
    }
    LIVEVOICE_CHECK(region >= 0, "load_values: nothing is called ", name);
    const size_t bytes = count * sizeof(float), expected = arenas.weights.regions()[region].bytes;
    LIVEVOICE_CHECK(bytes == expected, name, ": expected ", expected, " bytes, got ", bytes);
    CUDA_CHECK(cudaMemcpyAsync(arenas.weights.at<float>(region), values, bytes,
                               cudaMemcpyHostToDevice, on_.stream));
    held_->stream.synchronize();  // the caller's memory may go away
}

void Engine::upload_state(const Sampling& sampling, int max_rows) {
    held_->stream.synchronize();  // an earlier state may still be on its way
    auto* state = &held_->small.as<SmallTransfers>()->state;
    *state = {};
    state->sampling = sampling;
    state->position = std::max(position_ - 1, 0);
    state->next_position = position_;
    state->max_rows = max_rows;
    state->rows_to_eoc = -1;
    CUDA_CHECK(cudaMemcpyAsync(decode_.state, state, sizeof(DecodeState), cudaMemcpyHostToDevice,
                               on_.stream));
}

void Engine::prefill(const void* text, const int* codes, int S, int first) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    LIVEVOICE_CHECK(S > 0 && first >= 0 && first + S < shape_.capacity, "prefill: positions ",
                    first, " to ", first + S, " do not fit the context of ", shape_.capacity);
    rows_launched_ = max_rows_ = 0;
    const size_t text_row = 2 * static_cast<size_t>(shape_.hidden);
    const size_t code_row = sizeof(int) * shape_.codebooks;
    for (int done = 0; done < S; done += kPrefillChunk) {
        const int n = std::min(kPrefillChunk, S - done);
        held.stream.synchronize();  // the pinned buffer and frames of an earlier generation
        auto* pinned = held.prompt.as<uint8_t>();
        auto* pinned_codes = pinned + text_row * kPrefillChunk;
        std::memcpy(pinned, static_cast<const uint8_t*>(text) + done * text_row, n * text_row);
        std::memcpy(pinned_codes, codes + static_cast<size_t>(done) * shape_.codebooks,
                    n * code_row);
        CUDA_CHECK(cudaMemcpyAsync(prefill_.text, pinned, n * text_row, cudaMemcpyHostToDevice,
                                   on_.stream));
        CUDA_CHECK(cudaMemcpyAsync(prefill_.codes, pinned_codes, n * code_row,
                                   cudaMemcpyHostToDevice, on_.stream));
        passes_.prefill_chunk(on_, model_, prefill_, decode_, n, first + done, done + n == S);
    }
    position_ = first + S;
}

void Engine::logits(float* out) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    LIVEVOICE_CHECK(position_ > 0, "logits: nothing was prefilled");
    auto* pinned = reinterpret_cast<float*>(held.small.as<SmallTransfers>() + 1);
    const size_t bytes = sizeof(float) * shape_.table_rows();
    CUDA_CHECK(cudaMemcpyAsync(pinned, decode_.logits, bytes, cudaMemcpyDeviceToHost, on_.stream));
    held.stream.synchronize();
    check_steps();
    std::memcpy(out, pinned, bytes);
}

void Engine::force(const int* row) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    LIVEVOICE_CHECK(position_ > 0 && position_ < shape_.capacity, "force: position ", position_,
                    " does not fit the context of ", shape_.capacity);
    for (int n = 0; n < shape_.codebooks; ++n)
        LIVEVOICE_CHECK(row[n] >= 0 && row[n] < shape_.vocab, "force: code ", row[n],
                        " of codebook ", n, " is not below ", shape_.vocab);
    upload_state({}, shape_.capacity);
    auto* pinned = held.small.as<SmallTransfers>()->forced_row;
    std::copy(row, row + shape_.codebooks, pinned);
    CUDA_CHECK(cudaMemcpyAsync(decode_.state->codes, pinned, sizeof(int) * shape_.codebooks,
                               cudaMemcpyHostToDevice, on_.stream));
    held.steps.forced().launch(on_.stream);
    ++position_;
}

void Engine::start(const Sampling& sampling, int max_rows) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    LIVEVOICE_CHECK(position_ > 0, "start: nothing was prefilled");
    held.stream.synchronize();  // frames of an earlier generation write rows
    max_rows_ = std::min(max_rows, shape_.capacity - position_ + 1);
    rows_launched_ = rows_taken_ = 0;
    std::fill_n(held.rows.as<int>(), static_cast<size_t>(std::max(max_rows_, 0)) * shape_.codebooks,
                -1);
    upload_state(sampling, max_rows_);
}

std::optional<std::vector<int>> Engine::next_row() {
    const std::lock_guard<std::mutex> lock(work_);
    if (is_closing_) return std::nullopt;
    const DeviceScope scope(device_);
    Held& held = this->held();
    if (rows_taken_ >= max_rows_) return std::nullopt;
    for (; rows_launched_ < std::min(rows_taken_ + kFramesAhead, max_rows_); ++rows_launched_)
        held.steps.step().launch(on_.stream);
    const volatile int* row =
        held.rows.as<int>() + static_cast<size_t>(rows_taken_) * shape_.codebooks;
    if (!wait_for_row(row)) return std::nullopt;
    ++rows_taken_;
    return std::vector<int>(row, row + shape_.codebooks);
}

bool Engine::wait_for_row(const volatile int* row) {
    const auto is_there = [&] {
        return std::all_of(row, row + shape_.codebooks, [](int code) { return code >= 0; });
    };
    const auto deadline = std::chrono::steady_clock::now() + kRowTimeout;
    for (int polls = 0; !is_there(); ++polls) {
        if (is_closing_) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        if (polls % 64 != 63) continue;
        check_steps();
        const cudaError_t status = cudaStreamQuery(on_.stream);
        if (status == cudaSuccess && !is_there())
            throw CudaError("native backend: the GPU finished without a row");
        if (status != cudaErrorNotReady) CUDA_CHECK(status);
        if (std::chrono::steady_clock::now() > deadline)
            throw CudaError(
                "native backend: no row came within 10 s; the GPU hangs or is very busy");
    }
    return true;
}

void Engine::unload() noexcept {
    {
        const std::lock_guard<std::mutex> lock(closing_);
        is_closing_ = true;
        if (held_) held_->steps.stop();
    }
    const std::lock_guard<std::mutex> lock(work_);
    if (!held_) return;
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    cudaStreamSynchronize(on_.stream);
    {
        const std::lock_guard<std::mutex> closing(closing_);
        held_.reset();
    }
    resident_bytes_ = 0;
    cudaSetDevice(before);
}

std::vector<std::pair<std::string, size_t>> Engine::arena_bytes() const {
    std::vector<std::pair<std::string, size_t>> bytes;
    const Arenas arenas(shape_, precision_);
    for (const Arena* arena : {&arenas.weights, &arenas.decode, &arenas.scratch})
        bytes.emplace_back(arena->name(), resident_bytes_ > 0 ? arena->layout_bytes() : 0);
    return bytes;
}

}  // namespace livevoice
