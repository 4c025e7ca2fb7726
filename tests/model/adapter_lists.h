#pragma once
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "model/adapters/fused_source.h"
#include "temporary_folder.h"

/// Adapters to a small seeded model, for the tests of the forms that lists of them take.
namespace tandem::test {

using namespace tandem::model;

inline const AdapterBase kBase = {"base", "f00d"};
inline constexpr uint64_t kSeed = 1;

inline ModelConfig config() {
  ModelConfig c;
  c.dim = 12;
  c.n_layers = 2;
  c.n_heads = 3;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.ffn_dim = 300;  // rows are merged 256 at a time
  c.vocab_size = 16;
  c.max_context = 16;
  return c;
}

inline std::vector<float> random_values(int64_t n, uint64_t seed) {
  PhiloxStream draw(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = static_cast<float>(0.1 * (2 * draw.uniform() - 1));
  return values;
}

struct Part {
  Role weight;
  int layer;
  std::vector<int32_t> index;
};

/// An adapter of slices on disk.
inline Adapter slices(const std::filesystem::path& folder, const std::vector<Part>& parts,
                      uint64_t seed) {
  std::vector<std::vector<float>> values;
  std::vector<AdapterSlice> all;
  values.reserve(parts.size());
  for (const Part& p : parts) {
    const io::Shape shape = shape_of(p.weight, config());
    const auto n = static_cast<int64_t>(p.index.size());
    values.push_back(
        random_values(n * shape[ends_in_stream(p.weight) ? 0 : 1], seed + values.size()));
    all.push_back({{p.weight, p.layer}, p.index, values.back()});
  }
  write_adapter(folder, {.base = kBase, .selection = "{}"}, all);
  return Adapter::open(folder, config(), kBase);
}

/// Factors of rank 2 of up and down in layer 0.
inline LowRankAdapter factors(const std::filesystem::path& folder, bool dora, uint64_t seed) {
  LowRankInfo info{.base = "base", .rank = 2, .alpha = 3, .dora = dora};
  info.targets = {Role::up, Role::down};
  std::vector<std::vector<float>> values;
  values.reserve(16);
  std::vector<LowRankDelta> deltas;
  const auto draw = [&](int64_t n) -> std::span<const float> {
    return values.emplace_back(random_values(n, seed + values.size()));
  };
  for (int layer = 0; layer < 2; ++layer)
    for (const Role w : info.targets) {
      const io::Shape shape = shape_of(w, config());
      LowRankDelta d{.id = {w, layer}, .rank = 2};
      d.a = draw(2 * shape[1]);
      d.b = draw(2 * shape[0]);
      if (dora) d.magnitude = draw(shape[0]);
      deltas.push_back(d);
    }
  write_low_rank_adapter(folder, info, deltas);
  return LowRankAdapter::open(folder, config());
}

using List = std::vector<WeightedAdapter>;

template <class... Adapters>
List list(Adapters... adapters) {
  List all;
  (all.push_back(std::move(adapters)), ...);
  return all;
}

inline std::vector<std::byte> bytes_of(const WeightSource& source, MatrixId id, DType dtype,
                                       int64_t begin = 0, int64_t end = -1) {
  const io::Shape shape = shape_of(id.role, config());
  if (end < 0) end = shape[0];
  std::vector<std::byte> bytes(static_cast<size_t>((end - begin) * shape[1]) * dtype_bytes(dtype));
  source.rows(id, begin, end, dtype, bytes.data());
  return bytes;
}

inline std::vector<float> floats_of(const WeightSource& source, MatrixId id) {
  const std::vector<std::byte> bytes = bytes_of(source, id, DType::f32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::unique_ptr<WeightSource> base() { return synthetic_source(config(), kSeed); }
inline std::unique_ptr<WeightSource> fused(List adapters) {
  return fused_source(base(), std::move(adapters), config());
}

inline const std::vector<Part> kA = {{Role::up, 0, {0, 5, 257}},
                                     {Role::down, 0, {1, 2, 299}},
                                     {Role::q, 1, {4, 5, 6, 7}},
                                     {Role::o, 0, {0, 1, 2, 3}}};
/// Shares no element with A.
inline const std::vector<Part> kB = {{Role::up, 0, {1, 256}},
                                     {Role::down, 0, {0}},
                                     {Role::gate, 1, {17}},
                                     {Role::q, 1, {8, 9, 10, 11}}};
/// Shares some with A.
inline const std::vector<Part> kC = {{Role::up, 0, {5, 6, 257}}, {Role::down, 0, {2, 3}}};

}  // namespace tandem::test
