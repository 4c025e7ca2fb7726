#include "recipe/sparse_section.h"

#include "recipe/fields_of.h"

namespace tandem::recipe {

void Sparse::check(Problems& p) const {
  if (refresh > 0 && kind != SparseKind::griffin)
    p.field("refresh",
            "sparse.refresh: needs kind griffin, found {}: leave it 0, or choose kind griffin",
            yaml_text(kind));
  if (weighted && kind != SparseKind::cats)
    p.field("weighted",
            "sparse.weighted: needs kind cats, found {}: leave it out, or choose kind cats",
            yaml_text(kind));
  if (kind == SparseKind::cats_threshold && thresholds.empty())
    p.field("thresholds",
            "sparse.thresholds: kind cats_threshold needs a file: name one that pig-eval's task "
            "channels wrote");
  if (kind != SparseKind::cats_threshold && !thresholds.empty())
    p.field("thresholds",
            "sparse.thresholds: needs kind cats_threshold, found {}: leave it out, or choose kind "
            "cats_threshold",
            yaml_text(kind));
}

template Field fields_of(Sparse&);

}  // namespace tandem::recipe
