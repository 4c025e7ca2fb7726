#include <doctest/doctest.h>

#include "gpu/device_buffer.h"
#include "kernels/beam_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Grows a level on the GPU from how the case is on the CPU, and brings it back there.
void grow_on_gpu(BeamCase& c, int level, const std::vector<float>& rows) {
  c.prepare(level);
  const DeviceBuffer tokens(c.tokens), parent(c.parent), first_child(c.first_child),
      n_children(c.n_children), scores(c.scores), whole(c.whole), next(c.next),
      tentative(c.tentative), logits(rows),
      workspace(std::vector<uint8_t>(grow_beams_memory_bytes(c.vocab, c.n_seqs * c.width), 0xff));
  GrowBeamsParams p = c.params(level, logits.as<float>());
  p.tokens = tokens.as<int32_t>();
  p.parent = parent.as<int32_t>();
  p.first_child = first_child.as<int32_t>();
  p.n_children = n_children.as<int32_t>();
  p.scores = scores.as<double>();
  p.whole.mask = whole.as<uint64_t>();
  p.next.mask = next.as<uint64_t>();
  p.next.tentative = tentative.as<int32_t>();
  p.workspace = workspace.as<void>();
  cuda_table().grow_beams(p, queue().stream());
  cuda::launched("grow_beams", queue().stream());
  c.tokens = tokens.vector<int32_t>();
  c.parent = parent.vector<int32_t>();
  c.first_child = first_child.vector<int32_t>();
  c.n_children = n_children.vector<int32_t>();
  c.scores = scores.vector<double>();
  c.whole = whole.vector<uint64_t>();
  c.next = next.vector<uint64_t>();
}

/// Scores may differ by a logarithm's last bit.
void check_scores(const BeamCase& got, const BeamCase& want) {
  REQUIRE(got.scores.size() == want.scores.size());
  for (size_t i = 0; i < got.scores.size(); ++i)
    if (want.scores[i] == -kInf)
      REQUIRE(got.scores[i] == -kInf);
    else
      REQUIRE(got.scores[i] == doctest::Approx(want.scores[i]).epsilon(1e-14));
}

}  // namespace

TEST_SUITE("gpu/tree-beams") {
  TEST_CASE("levels are those of the CPU: tokens, parents and masks; scores to the last bit") {
    for (const int vocab : {8, 1009, 4096, 32003, 128256, 151936})
      for (const int width : {1, 2, 3, 4, 8})
        for (const float temperature : {0.6f, 1.0f}) {
          CAPTURE(vocab);
          CAPTURE(width);
          BeamCase c(vocab, width, vocab > 100000 ? 3 : 9, 3);
          c.temperature = temperature;
          c.n_children[c.at(2, 0)] = 0;  // a sequence that stays closed
          for (int level = 1; level <= c.gamma; ++level) {
            CAPTURE(level);
            const std::vector<float> rows = c.logits(level, static_cast<uint32_t>(vocab + width));
            BeamCase got = c;
            grow_on_gpu(got, level, rows);
            c.grow(cpu_table().grow_beams, level, rows);
            REQUIRE(got.tokens == c.tokens);
            REQUIRE(got.parent == c.parent);
            REQUIRE(got.first_child == c.first_child);
            REQUIRE(got.n_children == c.n_children);
            REQUIRE(got.whole == c.whole);
            REQUIRE(got.next == c.next);
            check_scores(got, c);
          }
        }
  }

  TEST_CASE("ties, few finite logits and rows without meaning are those of the CPU") {
    for (const float odd : {0.0f, -kInf, kInf, kNan, -kNan}) {
      CAPTURE(odd);
      BeamCase c(9000, 4, 2, 2);
      c.grow(cpu_table().grow_beams, 1, c.logits(1, 2));
      // All of a row alike; or all but two of another.
      std::vector<float> rows(static_cast<size_t>(8) * 9000, 1.5f);
      std::fill(rows.begin() + 9000, rows.begin() + 18000, odd);
      rows[9000 + 4097] = 3;
      rows[9000 + 17] = 3;
      BeamCase got = c;
      grow_on_gpu(got, 2, rows);
      c.grow(cpu_table().grow_beams, 2, rows);
      CHECK(got.tokens == c.tokens);
      CHECK(got.parent == c.parent);
      CHECK(got.n_children == c.n_children);
      CHECK(got.whole == c.whole);
      check_scores(got, c);
    }
  }
}
