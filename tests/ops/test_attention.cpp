#include <doctest/doctest.h>

#include "base/error.h"
#include "ops/attention.h"

using namespace tandem;

namespace {

constexpr Device kCpu{}, kGpu{Device::Kind::cuda, 0};

AttentionBounds bounds(int head_dim) {
  return {.max_seqs = 2,
          .max_rows = 64,
          .max_tokens = 1000,
          .n_heads = 8,
          .n_kv_heads = 2,
          .head_dim = head_dim,
          .multiprocessors = 108};
}

}  // namespace

// Plans know the GPU's kernels in every build and on every machine.
TEST_SUITE("ops/attention") {
  TEST_CASE("a head dimension that no kernel of a GPU takes is refused when memory is planned") {
    for (const int d : {2, 64, 130, 256})
      CHECK(ops::attention_workspace_bytes(kGpu, bounds(d)) > 0);
    for (const int d : {258, 512, 81}) {
      CAPTURE(d);
      CHECK_NOTHROW((void)ops::attention_workspace_bytes(kCpu, bounds(d)));
      try {
        (void)ops::attention_workspace_bytes(kGpu, bounds(d));
        FAIL("not refused");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::device);
        CHECK(e.what() ==
              "head_dim: attention on a GPU needs an even number up to 256, this model has " +
                  std::to_string(d));
        CHECK(e.hint_text() == "run the model with --device cpu");
      }
    }
  }
}
