// The ways to run a decode step, captured: the small kernels of decode_step.cu, or one kernel that
// stays on the whole GPU (persistent_step.cu). Both give the same bits.
#pragma once
#include <functional>
#include <string>

#include "graph.h"
#include "model.h"

namespace livevoice {

enum class StepWay { kFastest, kSmallKernels, kPersistent };

/// Longest time of a persistent frame, many times what it needs even on a GPU that is shared.
constexpr uint32_t kStepLimitMs = 2000;

class DecodeSteps {
  public:
    void allocate() { signals_.allocate(sizeof(StepSignals)); }
    StepSignals* signals_on_device() const;

    /// Records the small kernels, and the persistent one where it can run and is wanted. Raises
    /// where it is asked for and can't.
    void capture(const Launch& on, const Passes& passes, const Model& model,
                 const DecodeBuffers& buffers, StepWay way);
    /// Where both are there: takes the faster one. `time`: milliseconds of a step.
    void choose(const std::function<float(const CapturedGraph&)>& time);

    const CapturedGraph& step() const { return is_persistent_ ? persistent_ : small_; }
    const CapturedGraph& forced() const {
        return is_persistent_ ? forced_persistent_ : forced_small_;
    }
    const std::string& reason() const { return reason_; }

    /// Any thread: ends the step that runs, with wrong results.
    void stop() noexcept;
    /// Whether a persistent step has given up.
    bool has_failed() const;
    /// Small kernels from now on.
    void fall_back();

  private:
    PinnedBuffer signals_;
    CapturedGraph small_, forced_small_, persistent_, forced_persistent_;
    bool is_persistent_ = false, has_choice_ = false;
    std::string reason_;
};

}  // namespace livevoice
