#include "bench/kernel_cases.h"

#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "base/convert.h"
#include "bench/kernel_data.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

struct Family {
  std::string_view name;
  KernelCases (*cases)(const KernelShapes&);
};

constexpr std::array kFamilies = {
    Family{"embed", embed_cases},     Family{"norm", norm_cases},
    Family{"linear", linear_cases},   Family{"ffn", ffn_cases},
    Family{"rope", rope_cases},       Family{"attention", attention_cases},
    Family{"gate", gate_cases},       Family{"sample", sample_cases},
    Family{"loading", loading_cases}, Family{"lsh", lsh_cases},
    Family{"code", code_cases},       Family{"attend", attend_cases},
    Family{"tree", tree_cases},       Family{"backward", backward_cases},
    Family{"adapter", adapter_cases},
};

}  // namespace

void KernelShapes::check(recipe::Problems& p) const {
  if (n_heads % n_kv_heads != 0)
    p.field("n_heads", "expected a multiple of n_kv_heads = {}, found {}", n_kv_heads, n_heads);
  if (slices > dim || rank > dim)
    p.field(slices > dim ? "slices" : "rank", "bench: expected at most dim = {} changed features",
            dim);
  if (head_dim % 2 != 0) p.field("head_dim", "expected an even number, found {}", head_dim);
  const auto names = kernel_families();
  for (const std::string& family : families)
    if (std::find(names.begin(), names.end(), family) == names.end()) {
      p.field("families", "unknown kernel family '{}', expected one of {}", family,
              fmt::join(names, ", "));
      p.hint(recipe::did_you_mean(family, names));
    }
}

DType KernelShapes::act() const {
  return compute == recipe::Compute::bf16 ? DType::bf16 : DType::f32;
}

std::vector<std::string_view> kernel_families() {
  std::vector<std::string_view> names;
  for (const Family& f : kFamilies) names.push_back(f.name);
  return names;
}

KernelCases kernel_cases(std::string_view family, const KernelShapes& shapes) {
  for (const Family& f : kFamilies)
    if (f.name == family) return f.cases(shapes);
  throw recipe_error("bench.families", "unknown kernel family '{}'", family)
      .hint(fmt::format("one of: {}", fmt::join(kernel_families(), ", ")));
}

OwnedTensor::OwnedTensor(DType dtype, std::initializer_list<int64_t> shape)
    : view_(nullptr, dtype, shape) {
  constexpr std::align_val_t kAlign{size_t{2} << 20};  // of a huge page
  const size_t bytes = std::max<size_t>(64, view_.bytes());
  memory_ = std::shared_ptr<void>(::operator new(bytes, kAlign),
                                  [](void* p) { ::operator delete(p, kAlign); });
  madvise(memory_.get(), bytes, MADV_HUGEPAGE);
  view_ = Tensor(memory_.get(), dtype, shape);
}

OwnedTensor OwnedTensor::random(DType dtype, std::initializer_list<int64_t> shape, uint32_t id,
                                float stddev) {
  OwnedTensor t(dtype, shape);
  ops::fill_random(t.raw(), dtype, {.tensor = id, .n = t.view().elements(), .stddev = stddev});
  return t;
}

float OwnedTensor::get(int64_t i) const {
  return view_.dtype() == DType::bf16 ? to_float(as<bf16>()[i]) : as<float>()[i];
}

double spacing(DType t) { return t == DType::bf16 ? 0x1p-7 : 0x1p-23; }

std::string find_mismatch(const OwnedTensor& got, const OwnedTensor& want, double relative,
                          double absolute) {
  int64_t worst = -1;
  double excess = 0;
  for (int64_t i = 0; i < want.view().elements(); ++i) {
    const double w = want.get(i);
    const double over = std::abs(got.get(i) - w) - (relative * std::abs(w) + absolute);
    if (over > excess || std::isnan(over)) {
      worst = i;
      excess = std::isnan(over) ? HUGE_VAL : over;
    }
  }
  if (worst < 0) return {};
  return fmt::format("element {} is {}, the reference gives {}", worst, got.get(worst),
                     want.get(worst));
}

int rotating_copies(size_t bytes) {
  constexpr size_t kBeyondCaches = size_t{512} << 20;
  return static_cast<int>(1 + kBeyondCaches / std::max<size_t>(bytes, 1 << 20));
}

}  // namespace tandem::bench
