#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "recipe/fields.h"
#include "recipe/units.h"

namespace tandem::recipe {

enum class SparseKind : uint8_t { none, griffin, magnitude, cats, cats_threshold };
constexpr std::array<std::string_view, 5> enum_names(SparseKind) {
  return {"none", "griffin", "magnitude", "cats", "cats_threshold"};
}

/// Section `sparse`: which FFN channels a forward reads. lib/ffn/README.md.
struct Sparse {
  SparseKind kind = SparseKind::none;
  Fraction keep{0.5};
  Fraction refresh{0};
  bool weigh = false;
  std::filesystem::path thresholds;

  bool any() const { return kind != SparseKind::none; }

  template <class V>
  void fields(V& v) {
    v("kind", kind,
      "which FFN channels are read. none: all; griffin: those that the prompt used most; "
      "magnitude: those of the largest weights; cats: those of the largest gates of each step; "
      "cats_threshold: of all gates beyond the numbers of a file");
    v("keep", keep, above(0).up_to(1),
      "share of the channels that are read; not of cats_threshold, whose file decides");
    v("refresh", refresh, between(0, 1),
      "griffin: weight of the newest check's rows in what the prompt taught, after which channels "
      "are chosen again; 0 = never");
    v("weigh", weigh,
      "cats: gates times the root mean square of up over the prompt, and the norm of down");
    v("thresholds", thresholds, optional_input(),
      "cats_threshold: file of a threshold a layer, which pig-eval's task channels writes");
  }
  void check(Problems& p) const;
};

extern template Field fields_of(Sparse&);

}  // namespace tandem::recipe
