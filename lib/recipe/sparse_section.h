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
  bool weighted = false;
  std::filesystem::path thresholds;

  bool any() const { return kind != SparseKind::none; }

  template <class V>
  void fields(V& v) {
    v("kind", kind,
      "selection of FFN neurons: griffin (most active over the prompt), magnitude (largest "
      "weights), cats (largest gates of each step) or cats_threshold (gates above thresholds). "
      "none = all neurons");
    v("keep", keep, above(0).up_to(1),
      "share of FFN neurons to compute. Not used by cats_threshold");
    v("refresh", refresh, between(0, 1),
      "weight of the latest verification's tokens in the activity statistics, after which neurons "
      "are selected again. 0 = never. Only with kind: griffin");
    v("weighted", weighted,
      "weighting of gates by the root mean square of up over the prompt and the norm of down, only "
      "for cats");
    v("thresholds", thresholds, optional_input(),
      "file with one threshold per layer, as written by pig-eval's task channels. Only with kind: "
      "cats_threshold");
  }
  void check(Problems& p) const;
};

extern template Field fields_of(Sparse&);

}  // namespace tandem::recipe
