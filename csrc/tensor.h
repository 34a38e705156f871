// What Python hands over: a pointer with its shape and dtype, checked by name before a kernel runs.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "check.h"

namespace livevoice {

struct TensorView {
    void* data = nullptr;
    std::string dtype;  // "float32", "bfloat16", "uint8" …
    std::vector<int64_t> shape;
    bool is_on_gpu = false, is_contiguous = false;

    int64_t size(int axis) const { return shape.at(axis); }
};

constexpr int64_t kAnySize = -1;

inline std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i)
        text += (i ? ", " : "") + (shape[i] == kAnySize ? "any" : std::to_string(shape[i]));
    return text + "]";
}

/// Raises unless `view` is a contiguous tensor of this dtype and shape on the expected side.
inline void check_tensor(const TensorView& view, const char* name, const char* dtype,
                         const std::vector<int64_t>& shape, bool is_on_gpu) {
    LIVEVOICE_CHECK(view.dtype == dtype, name, ": expected dtype ", dtype, ", got ", view.dtype);
    bool fits = view.shape.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i)
        fits = shape[i] == kAnySize || shape[i] == view.shape[i];
    LIVEVOICE_CHECK(fits, name, ": expected shape ", shape_text(shape), ", got ",
                    shape_text(view.shape));
    LIVEVOICE_CHECK(view.is_on_gpu == is_on_gpu, name, ": expected a tensor ",
                    is_on_gpu ? "on the GPU" : "on the CPU");
    LIVEVOICE_CHECK(view.is_contiguous, name, ": expected a contiguous tensor");
}

/// The data of a tensor on the GPU, checked.
template <class T>
T* device_data(const TensorView& view, const char* name, const char* dtype,
               const std::vector<int64_t>& shape) {
    check_tensor(view, name, dtype, shape, true);
    return static_cast<T*>(view.data);
}

/// The data of a tensor in host memory, checked.
template <class T>
T* host_data(const TensorView& view, const char* name, const char* dtype,
             const std::vector<int64_t>& shape) {
    check_tensor(view, name, dtype, shape, false);
    return static_cast<T*>(view.data);
}

}  // namespace livevoice
