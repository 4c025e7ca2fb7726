#pragma once
#include "model/weights.h"

namespace tandem::model {

/// A source some of whose matrices are changed as they are read; all else is the base's.
class ChangedSource : public WeightSource {
 public:
  explicit ChangedSource(std::unique_ptr<WeightSource> base) : base_(std::move(base)) {}

  bool rows_on_device(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
                      void* device, Stream stream) const override {
    return !changes(weight, layer) &&
           base_->rows_on_device(weight, layer, begin, end, dtype, device, stream);
  }
  std::vector<float> vector(Weight weight, int layer) const override {
    return base_->vector(weight, layer);
  }
  void embed(std::span<const int32_t> ids, float* out) const override { base_->embed(ids, out); }

 protected:
  virtual bool changes(Weight weight, int layer) const = 0;
  const WeightSource& base() const { return *base_; }

 private:
  std::unique_ptr<WeightSource> base_;
};

}  // namespace tandem::model
