// The tensors of an adapter, to the smallest model there can be; one that is accepted is merged. An
// input that begins as JSON is an adapter of PEFT: its configuration, a zero byte, its tensors; its
// factors are also brought to rank 1. Either is read as a list too, alone and with itself.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/adapters/fused_source.h"
#include "model/adapters/low_rank_factors.h"
#include "state_model.h"
#include "target.h"

namespace {

using namespace tandem;

/// Calls merge(weight, its elements, rows) for every matrix; what it leaves must be finite.
template <class Merge>
void merge_all(const Merge& merge) {
  for (const model::Role weight : model::kLayerRoles) {
    const io::Shape shape = model::shape_of(weight, fuzz::state_model().config);
    std::vector<float> rows(static_cast<size_t>(shape[0] * shape[1]));
    merge(weight, shape, rows);
  }
}

void check_finite(const std::vector<float>& rows) {
  for (const float x : rows)
    if (!(x - x == 0)) throw std::logic_error("a weight that is not finite");
}

/// The weights of the model, or with adapters, in f32.
std::vector<float> weights(const std::vector<model::WeightedAdapter>& adapters,
                           model::Role weight) {
  const model::ModelConfig& config = fuzz::state_model().config;
  const io::Shape shape = model::shape_of(weight, config);
  std::vector<float> rows(static_cast<size_t>(shape[0] * shape[1]));
  const auto source = model::fused_source(model::synthetic_source(config, 1), adapters, config);
  source->rows({weight, 0}, 0, shape[0], DType::f32, rows.data());
  std::vector<bf16> narrow(rows.size());
  source->rows({weight, 0}, 0, shape[0], DType::bf16, narrow.data());
  return rows;
}

/// One of slices is its values where it has any; with itself at 0.5 it adds half the change, and
/// elements that it does not hold have the base's bits.
void read_list(const model::AnyAdapter& adapter) {
  const auto* const slices = std::get_if<model::Adapter>(&adapter);
  for (const model::Role weight : model::kLayerRoles) {
    const std::vector<float> base = weights({}, weight), one = weights({{adapter}}, weight),
                             sum = weights({{adapter}, {adapter, 0.5f}}, weight);
    if (slices == nullptr) continue;
    std::vector<float> replaced = base;
    const auto columns =
        static_cast<size_t>(model::shape_of(weight, fuzz::state_model().config)[1]);
    slices->replace({weight, 0}, 0, static_cast<int64_t>(base.size() / columns), DType::f32,
                    replaced.data());
    if (std::memcmp(one.data(), replaced.data(), one.size() * sizeof(float)) != 0)
      throw std::logic_error("one adapter's values are not those of the list");
    const auto index = slices->index({weight, 0});
    for (size_t i = 0; i < base.size(); ++i) {
      const size_t feature = model::ends_in_stream(weight) ? i % columns : i / columns;
      float want = base[i];
      if (std::ranges::binary_search(index, static_cast<int32_t>(feature))) {
        want += replaced[i] - base[i];
        want += 0.5f * (replaced[i] - base[i]);
      }
      if (std::isfinite(want) && sum[i] != want)
        throw std::logic_error("the sum of a list is another");
    }
  }
}

void shorten(const model::LowRankAdapter& adapter) {
  const decode::ModelFiles& files = fuzz::state_model();
  const model::WeightedAdapter given{adapter, 0.5f};
  for (const model::Role weight : model::kLayerRoles) {
    const auto exact =
        model::exact_factors(*files.source, *files.source, {&given, 1}, {weight}, files.config);
    if (exact.rank == 0 || !model::is_finite(exact)) continue;
    const auto shorter = model::shorten_factors(exact, 1);
    if (shorter.factors.rank != 1 || !std::isfinite(shorter.lost) ||
        shorter.lost > shorter.change * (1 + 1e-6))
      throw std::logic_error("factors that lose more than there is");
    check_finite(shorter.factors.a);
    check_finite(shorter.factors.b);
  }
}

void read_peft(std::span<const uint8_t> input) {
  const auto end = std::ranges::find(input, 0);
  const auto text = fuzz::as_text(input.data(), static_cast<size_t>(end - input.begin()));
  const auto tensors = input.subspan(std::min(input.size(), text.size() + 1));
  // Aligned as a file's are.
  const std::vector<uint8_t> copy(tensors.begin(), tensors.end());
  const auto adapter =
      model::LowRankAdapter::parse(io::Safetensors::parse(std::as_bytes(std::span(copy)), "fuzz"),
                                   text, fuzz::state_model().config);
  merge_all([&](model::Role weight, const io::Shape& shape, std::vector<float>& rows) {
    adapter.merge({weight, 0}, 0, shape[0], rows);  // products of finite numbers may overflow
  });
  read_list(adapter);
  for (const model::Role weight : {model::Role::embedding, model::Role::head})
    weights({{adapter}, {adapter, 0.5f}}, weight);
  if (!adapter.scales_rows() && adapter.others().empty()) shorten(adapter);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const decode::ModelFiles& files = fuzz::state_model();
  return fuzz::run(ErrorKind::input, [&] {
    if (size > 0 && data[0] == '{') return read_peft({data, size});
    const auto adapter =
        model::Adapter::parse(io::Safetensors::parse(std::as_bytes(std::span(data, size)), "fuzz"),
                              files.config, {files.name, files.fingerprint});
    static_cast<void>(adapter.info());
    merge_all([&](model::Role weight, const io::Shape& shape, std::vector<float>& rows) {
      adapter.replace({weight, 0}, 0, shape[0], DType::f32, rows.data());
      check_finite(rows);
      const auto n = static_cast<int64_t>(adapter.index({weight, 0}).size());
      const int64_t other = shape[model::ends_in_stream(weight) ? 0 : 1];
      if (static_cast<int64_t>(adapter.values({weight, 0}).size()) != n * other)
        throw std::logic_error("values that are not those of the index");
    });
    read_list(adapter);
  });
}
