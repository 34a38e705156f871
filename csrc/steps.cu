#include "steps.h"

#include <iomanip>

#include "kernels/sample.cuh"

namespace livevoice {

namespace {

volatile StepSignals* seen(const PinnedBuffer& signals) { return signals.as<StepSignals>(); }

}  // namespace

StepSignals* DecodeSteps::signals_on_device() const {
    StepSignals* signals = nullptr;
    CUDA_CHECK(cudaHostGetDevicePointer(&signals, signals_.as<StepSignals>(), 0));
    return signals;
}

void DecodeSteps::capture(const Launch& on, const Passes& passes, const Model& model,
                          const DecodeBuffers& b, StepWay way) {
    seen(signals_)->stop = seen(signals_)->has_failed = 0;
    // A kernel's attributes are set, and its code is loaded, outside the capture.
    passes.decode_step(on, model, b, false);
    CUDA_CHECK(cudaStreamSynchronize(on.stream));
    small_.capture(on.stream, [&] {
        sample(on, b.logits, model.shape.codebooks, model.shape.vocab, b.state, b.rows);
        passes.decode_step(on, model, b, false);
    });
    forced_small_.capture(on.stream, [&] { passes.decode_step(on, model, b, true); });
    reason_ = "small kernels, as asked for";
    if (way == StepWay::kSmallKernels) return;

    const std::string obstacle = passes.persistent_obstacle(on, model);
    if (!obstacle.empty()) {
        LIVEVOICE_CHECK(way == StepWay::kFastest, "native backend: no persistent step, ", obstacle);
        reason_ = "small kernels, " + obstacle;
        return;
    }
    persistent_.capture(on.stream, [&] { passes.persistent_step(on, model, b, false); });
    forced_persistent_.capture(on.stream, [&] { passes.persistent_step(on, model, b, true); });
    is_persistent_ = way == StepWay::kPersistent;
    has_choice_ = way == StepWay::kFastest;
    reason_ = "persistent kernel, as asked for";
}

void DecodeSteps::choose(const std::function<float(const CapturedGraph&)>& time) {
    if (!has_choice_) return;
    const float small = time(small_), persistent = time(persistent_);
    is_persistent_ = persistent < small && !has_failed();
    const auto text = [](float milliseconds) {
        std::ostringstream out;
        out << std::fixed << std::setprecision(3) << milliseconds << " ms";
        return out.str();
    };
    reason_ = is_persistent_
                  ? sentence("persistent kernel, ", text(persistent), " against ", text(small),
                             " with small kernels")
                  : sentence("small kernels, ", text(small), " against ", text(persistent),
                             " with the persistent one");
    if (has_failed()) fall_back();
}

void DecodeSteps::stop() noexcept {
    if (signals_.as<StepSignals>()) seen(signals_)->stop = 1;
}

bool DecodeSteps::has_failed() const { return seen(signals_)->has_failed != 0; }

void DecodeSteps::fall_back() {
    is_persistent_ = false;
    seen(signals_)->has_failed = 0;
    reason_ = "small kernels, since the persistent one waited too long for a part of itself";
}

}  // namespace livevoice
