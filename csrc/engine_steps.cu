// The engine's decode step: which way it runs, what happens when it gives up, and its time.
#include <algorithm>

#include "engine.h"

namespace livevoice {

void Engine::finish_loading() {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    held.stream.synchronize();
    held.loader.reset();
    upload_state({}, 0);
    reset_exchange();
    held.steps.capture(on_, passes_, model_, decode_, way_);
    // Both ways give the same codes, so that the choice may differ from one loading to the next.
    constexpr int kTimedPosition = 500, kTimedSteps = 8;
    const int position = std::min(kTimedPosition, shape_.capacity / 2);
    held.steps.choose([&](const CapturedGraph& graph) {
        if (position + kTimedSteps >= shape_.capacity) return 0.0f;
        time_graph(graph, position, 1);  // warm
        return time_graph(graph, position, kTimedSteps);
    });
}

/// Nothing was exchanged yet; see exchange.cuh.
void Engine::reset_exchange() {
    const Arena& decode = held_->arenas.decode;
    const Region& words = decode.regions()[held_->arenas.at.exchange];
    CUDA_CHECK(cudaMemsetAsync(decode_.exchange.attention_delta, 0xFF, words.bytes, on_.stream));
    const StepControl control{0, 0, {kStepLimitMs, 0, 0, 0}};
    CUDA_CHECK(cudaMemcpyAsync(decode_.control, &control, sizeof control, cudaMemcpyHostToDevice,
                               on_.stream));
    held_->stream.synchronize();
}

void Engine::try_step(const StepTrial& trial) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    CUDA_CHECK(cudaMemcpyAsync(&decode_.control->trial, &trial, sizeof trial,
                               cudaMemcpyHostToDevice, on_.stream));
    held.stream.synchronize();
}

std::string Engine::step_reason() {
    const std::lock_guard<std::mutex> lock(work_);
    return held().steps.reason();
}

/// Raises when the persistent step was given up; from then on small kernels run.
void Engine::check_steps() {
    if (!held_->steps.has_failed()) return;
    held_->stream.synchronize();
    held_->steps.fall_back();
    position_ = rows_launched_ = max_rows_ = 0;
    throw CudaError(
        "native backend: a decode step waited too long for a part of itself, the GPU is shared or "
        "very busy; try again, small kernels are used from now on");
}

void Engine::poison() {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    held.arenas.decode.poison(on_.stream);
    held.arenas.scratch.poison(on_.stream);
    reset_exchange();
    held.stream.synchronize();
    position_ = 0;
}

float Engine::time_steps(int position, int steps) {
    const std::lock_guard<std::mutex> lock(work_);
    const DeviceScope scope(device_);
    Held& held = this->held();
    LIVEVOICE_CHECK(position > 0 && steps > 0 && position + steps < shape_.capacity,
                    "time_steps: position ", position, " and ", steps, " steps do not fit");
    const float milliseconds = time_graph(held.steps.step(), position, steps);
    check_steps();
    return milliseconds;
}

float Engine::time_graph(const CapturedGraph& graph, int position, int steps) {
    Event begin, end;
    begin.create(cudaEventDefault);
    end.create(cudaEventDefault);
    position_ = position;
    Sampling sampling{};
    sampling.temperature = 0.8f;
    sampling.top_k = 50;
    sampling.top_p = 1.0f;
    upload_state(sampling, shape_.capacity);
    CUDA_CHECK(cudaEventRecord(begin.get(), on_.stream));
    for (int i = 0; i < steps; ++i) graph.launch(on_.stream);
    CUDA_CHECK(cudaEventRecord(end.get(), on_.stream));
    held_->stream.synchronize();
    float milliseconds = 0.0f;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    position_ = 0;
    return milliseconds / static_cast<float>(steps);
}

}  // namespace livevoice
