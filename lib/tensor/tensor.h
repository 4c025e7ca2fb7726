#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "base/convert.h"

namespace tandem {

/// Where memory lives. Every tensor names its device; operations dispatch on it.
struct Device {
  enum class Kind : uint8_t { cpu, cuda } kind = Kind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
  std::string name() const { return kind == Kind::cpu ? "cpu" : "cuda:" + std::to_string(index); }
};

/// View of row-major, contiguous memory of up to four dimensions; owns nothing.
class Tensor {
 public:
  static constexpr int kMaxRank = 4;

  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {})
      : data_(data), dtype_(dtype), rank_(static_cast<int>(shape.size())), device_(device) {
    TANDEM_CHECK(rank_ <= kMaxRank, "tensors of rank {} are not supported", rank_);
    int i = 0;
    for (const int64_t n : shape) shape_[static_cast<size_t>(i++)] = n;
  }

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int rank() const { return rank_; }
  int64_t size(int i) const { return shape_[static_cast<size_t>(i)]; }
  int64_t rows() const { return shape_[0]; }
  /// Elements of one index of the first dimension.
  int64_t row_size() const {
    int64_t n = 1;
    for (int i = 1; i < rank_; ++i) n *= size(i);
    return n;
  }
  int64_t elements() const { return rank_ == 0 ? 0 : rows() * row_size(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype_); }
  bool empty() const { return data_ == nullptr; }

  void* raw() const { return data_; }
  template <class T>
  T* as() const {
    TANDEM_DCHECK(sizeof(T) == dtype_bytes(dtype_), "a tensor of {} is viewed as another type",
                  dtype_name(dtype_));
    return static_cast<T*>(data_);
  }

  /// Rows [begin, begin + n) of the first dimension.
  Tensor slice(int64_t begin, int64_t n) const {
    TANDEM_DCHECK(begin >= 0 && n >= 0 && begin + n <= rows(),
                  "rows [{}, {}) exceed the {} rows of the tensor", begin, begin + n, rows());
    Tensor t = *this;
    t.data_ =
        static_cast<char*>(data_) + static_cast<size_t>(begin * row_size()) * dtype_bytes(dtype_);
    t.shape_[0] = n;
    return t;
  }

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  Device device_;
};

}  // namespace tandem
