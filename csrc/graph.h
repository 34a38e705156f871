// Owners of CUDA handles. Each is released by its destructor, never raises there, and is created in
// an order such that members destroyed backwards give: graph, pinned memory, arenas, stream.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>

#include "check.h"
#include "pool.h"

namespace livevoice {

class Stream {
  public:
    ~Stream() {
        if (!stream_) return;
        cudaStreamSynchronize(stream_);
        cudaStreamDestroy(stream_);
    }
    Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    enum Priority { kNormal, kUrgent };  // urgent: its blocks go before those of normal streams

    /// Non-blocking: work of others on the default stream never waits for ours.
    void create(Priority priority = kNormal) {
        fault_point("stream");
        int least = 0, greatest = 0;
        CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                                priority == kUrgent ? greatest : least));
    }
    void synchronize() const { CUDA_CHECK(cudaStreamSynchronize(stream_)); }
    cudaStream_t get() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

class Event {
  public:
    Event() = default;
    ~Event() {
        if (event_) cudaEventDestroy(event_);
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void create(unsigned flags = cudaEventDisableTiming) {
        fault_point("event");
        CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
    }
    cudaEvent_t get() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

/// Host memory that the GPU copies from and writes to.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    ~PinnedBuffer() { release(); }
    PinnedBuffer(const PinnedBuffer&) = delete;
    PinnedBuffer& operator=(const PinnedBuffer&) = delete;
    void allocate(size_t bytes) {
        fault_point("pinned memory");
        CUDA_CHECK(cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    }
    void release() noexcept {
        if (data_) cudaFreeHost(data_);
        data_ = nullptr;
    }
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_ = nullptr;
};

/// Work recorded once from a stream, launched many times. Holds no memory nodes: nothing inside may
/// allocate, synchronise or touch the default stream.
class CapturedGraph {
  public:
    CapturedGraph() = default;
    ~CapturedGraph() {
        if (exec_) cudaGraphExecDestroy(exec_);
        if (graph_) cudaGraphDestroy(graph_);
    }
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;

    template <class Record>
    void capture(cudaStream_t stream, Record&& record) {
        fault_point("graph capture");
        // Thread-local: other threads may go on using CUDA as they like meanwhile.
        CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        try {
            record();
            fault_point("recording of the graph");
        } catch (...) {
            cudaGraph_t broken = nullptr;
            cudaStreamEndCapture(stream, &broken);
            if (broken) cudaGraphDestroy(broken);
            cudaGetLastError();
            throw;
        }
        CUDA_CHECK(cudaStreamEndCapture(stream, &graph_));
        fault_point("graph instantiation");
        CUDA_CHECK(cudaGraphInstantiate(&exec_, graph_, 0));
    }
    void launch(cudaStream_t stream) const { CUDA_CHECK(cudaGraphLaunch(exec_, stream)); }

  private:
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
};

/// Makes `device` current for a scope. A fresh thread has none, even when there is only one GPU.
class DeviceScope {
  public:
    explicit DeviceScope(int device) {
        CUDA_CHECK(cudaGetDevice(&before_));
        CUDA_CHECK(cudaSetDevice(device));
    }
    ~DeviceScope() { cudaSetDevice(before_); }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    int before_ = 0;
};

}  // namespace livevoice
