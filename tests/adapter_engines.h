#pragma once
#include <memory>
#include <string>
#include <vector>

#include "adapter_case.h"
#include "generate_runs.h"
#include "temporary_folder.h"

/// Engines that serve three adapters of tiny-2m, on either device.
namespace tandem::test {

/// Three adapters of tiny-2m: of columns, of rows of all kinds, and of low-rank factors.
struct Adapters {
  static constexpr const char* kModel = "tiny-2m";
  TemporaryFolder folder;
  std::filesystem::path model = tiny_model(kModel);
  std::vector<std::filesystem::path> paths;

  Adapters() {
    using model::Role;
    paths.push_back(write_slices(folder / "columns", model, {.seed = 1}));
    paths.push_back(write_slices(
        folder / "rows", model,
        {.seed = 2, .share = 0.3, .weights = {Role::q, Role::k, Role::v, Role::gate, Role::up}}));
    paths.push_back(write_factors(folder / "factors", model, {.seed = 3}));
  }
  recipe::Model section(bool named, size_t only = 99) const {
    recipe::Model m;
    m.path = {model.string()};
    for (size_t i = 0; i < paths.size(); ++i) {
      if (only != 99 && i != only) continue;
      recipe::Adapter a;
      if (named) a.name = "a" + std::to_string(i);
      a.path = paths[i];
      m.adapters.push_back(a);
    }
    return m;
  }
  /// The engine with all of them as names.
  std::unique_ptr<decode::Engine> engine(decode::AdapterUse use, const Setup& s = {}) const {
    decode::EngineSpec spec = engine_spec(s);
    spec.adapters = use;
    return std::make_unique<decode::Engine>(decode::open_model(section(true), 0), spec, nullptr,
                                            s.queue);
  }
  /// One with an adapter merged into its weights when they were loaded; -1: none.
  std::unique_ptr<decode::Engine> merged(int adapter, const Setup& s = {}) const {
    recipe::Model m = section(false, static_cast<size_t>(adapter));
    if (adapter < 0) m.adapters.clear();
    return std::make_unique<decode::Engine>(decode::open_model(m, 0), engine_spec(s), nullptr,
                                            s.queue);
  }
};

/// Logits of a prompt's last token and of three tokens after it, under an adapter.
inline std::vector<Row> rows_of(decode::Engine& engine, int adapter, const Ids& ids) {
  const int slot = engine.cache().create();
  if (engine.spec().adapters != decode::AdapterUse::none) engine.use_adapter(slot, adapter);
  std::vector<Row> rows = {prefill(engine, slot, std::span(ids).first(ids.size() - 3))};
  for (Row& row : extend_each(engine, slot, std::span(ids).last(3))) rows.push_back(std::move(row));
  engine.cache().release(slot);
  return rows;
}

inline double worst(const std::vector<Row>& a, const std::vector<Row>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = worse(most, max_difference(a[i], b[i]));
  return most;
}

}  // namespace tandem::test
