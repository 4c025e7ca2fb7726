// The tensors of an adapter, to the smallest model there can be; one that is accepted is merged.
#include "model/adapter.h"
#include "state_model.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const decode::ModelFiles& files = fuzz::state_model();
  return fuzz::run(ErrorKind::input, [&] {
    const auto adapter = model::Adapter::parse(std::as_bytes(std::span(data, size)), "fuzz",
                                               files.config, {files.name, files.fingerprint});
    static_cast<void>(adapter.info());
    for (const model::Weight weight : model::adapter_weights()) {
      const io::Shape shape = model::weight_shape(weight, files.config);
      std::vector<float> rows(static_cast<size_t>(shape[0] * shape[1]));
      adapter.replace(weight, 0, 0, shape[0], DType::f32, rows.data());
      for (const float x : rows)
        if (!(x - x == 0)) throw std::logic_error("a weight that is not finite");
      const auto n = static_cast<int64_t>(adapter.index(weight, 0).size());
      const int64_t other = shape[model::takes_columns(weight) ? 0 : 1];
      if (static_cast<int64_t>(adapter.values(weight, 0).size()) != n * other)
        throw std::logic_error("values that are not those of the index");
    }
  });
}
