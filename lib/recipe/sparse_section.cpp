#include "recipe/sparse_section.h"

#include "recipe/fields_of.h"

namespace tandem::recipe {

void Sparse::check(Problems& p) const {
  if (refresh > 0 && kind != SparseKind::griffin)
    p.field(
        "refresh",
        "sparse.refresh: is for kind griffin, which keeps what a prompt taught, found {}: leave "
        "it 0, or choose kind griffin",
        yaml_text(kind));
  if (weigh && kind != SparseKind::cats)
    p.field("weigh", "sparse.weigh: is for kind cats, found {}: leave it out, or choose kind cats",
            yaml_text(kind));
  if (kind == SparseKind::cats_threshold && thresholds.empty())
    p.field(
        "thresholds",
        "sparse.thresholds: name the file of kind cats_threshold; pig-eval's task channels writes "
        "it");
  if (kind != SparseKind::cats_threshold && !thresholds.empty())
    p.field("thresholds",
            "sparse.thresholds: is for kind cats_threshold, found {}: leave it out, or choose kind "
            "cats_threshold",
            yaml_text(kind));
}

template Field fields_of(Sparse&);

}  // namespace tandem::recipe
