#include "decode/precision_runs.h"
#include "golden/golden_checks.h"
#include "gpu/engine_pair.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr size_t kSteps = 10;

/// Logits of ragged prompts, of steps of one token a sequence and of one ragged step.
std::vector<Row> run(decode::Engine& engine, const Ids& text) {
  const size_t lengths[] = {1, 37, 300, 64, 129}, last[] = {3, 1, 40, 2, 5};
  Batch batch;
  for (size_t i = 0; i < std::size(lengths); ++i) {
    batch.slots.push_back(engine.cache().create());
    batch.tokens.push_back(part_of(text, 100 * i, lengths[i]));
  }
  std::vector<Row> rows = prefill_all(engine, batch);
  const auto add = [&](std::vector<Row> more) {
    for (Row& row : more) rows.push_back(std::move(row));
  };
  for (size_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < batch.tokens.size(); ++i)
      batch.tokens[i] = part_of(text, 100 * i + lengths[i] + step, 1);
    add(extend_all(engine, batch));
  }
  for (size_t i = 0; i < batch.tokens.size(); ++i)
    batch.tokens[i] = part_of(text, 100 * i + lengths[i] + kSteps, last[i]);
  add(extend_all(engine, batch));
  for (const int slot : batch.slots) engine.cache().release(slot);
  return rows;
}

/// Log-probabilities of `n_seqs` texts of `n` tokens, one token of each to a step.
std::vector<Row> decode_steps(decode::Engine& engine, const Ids& text, size_t n_seqs, size_t n) {
  Batch batch;
  for (size_t i = 0; i < n_seqs; ++i) {
    batch.slots.push_back(engine.cache().create());
    batch.tokens.emplace_back();
  }
  std::vector<Row> rows(n_seqs * n);
  for (size_t t = 0; t < n; ++t) {
    for (size_t i = 0; i < n_seqs; ++i) batch.tokens[i] = part_of(text, i * n + t, 1);
    std::vector<Row> now = log_softmax(engine.extend(batch.parts()));
    for (size_t i = 0; i < n_seqs; ++i) rows[i * n + t] = std::move(now[i]);
  }
  for (const int slot : batch.slots) engine.cache().release(slot);
  return rows;
}

}  // namespace

TEST_SUITE("gpu/decode/logits") {
  TEST_CASE("f32: ragged prompts in chunks, and the steps after them, equal the CPU's") {
    const Ids text = real_text(900);
    for (const std::string model : {"tiny-2m", "tiny-16m"})
      for (const int chunk : {100, 1024}) {
        CAPTURE(model);
        CAPTURE(chunk);
        const EnginePair on = make_pair_of(tiny_model(model), {.chunk = chunk, .max_seqs = 5});
        const double worst = max_difference(run(*on.gpu, text), run(*on.cpu, text));
        MESSAGE(model << " in chunks of " << chunk << ": largest |GPU - CPU| " << worst);
        CHECK(worst <= kF32Tolerance);
        CHECK(worst > 0);  // or the CPU was compared with itself
      }
  }

  TEST_CASE("the same work again gives the same bits, in f32 and in bf16") {
    const Ids text = real_text(900);
    for (const DType compute : {DType::f32, DType::bf16}) {
      const auto engine =
          make_engine(tiny_model("tiny-16m"), {.compute = compute, .max_seqs = 5, .device = kGpu});
      const std::vector<Row> first = run(*engine, text);
      for (int i = 0; i < 3; ++i) CHECK(same(run(*engine, text), first));
    }
  }

  TEST_CASE("bf16: mean KL divergence from the CPU's f32 over real text") {
    const Ids text = real_text(1024);
    for (const std::string model : {"tiny-2m", "tiny-16m"}) {
      CAPTURE(model);
      const std::vector<Row> f32 = log_probabilities(model, DType::f32, text);
      const Divergence prompt = divergence(f32, log_probabilities(model, DType::bf16, text, kGpu));
      MESSAGE(model << ", prompt: mean KL " << prompt.mean << ", largest " << prompt.largest);
      CHECK(prompt.mean <= kMeanKl);
      CHECK(prompt.mean > 0);
    }
  }

  TEST_CASE("bf16: mean KL divergence of decode steps, for batches of several sizes") {
    const Ids text = real_text(1024);
    for (const std::string model : {"tiny-2m", "tiny-16m"}) {
      const Setup setup{.compute = DType::bf16, .max_seqs = 32, .max_tokens = 512, .device = kGpu};
      const auto engine = make_engine(tiny_model(model), setup);
      for (const auto& [n_seqs, n] : {std::pair<size_t, size_t>{1, 512}, {8, 100}, {32, 32}}) {
        CAPTURE(model);
        CAPTURE(n_seqs);
        std::vector<Row> f32;
        for (size_t i = 0; i < n_seqs; ++i)
          for (Row& row : log_probabilities(model, DType::f32, part_of(text, i * n, n)))
            f32.push_back(std::move(row));
        const Divergence kl = divergence(f32, decode_steps(*engine, text, n_seqs, n));
        MESSAGE(model << ", " << n_seqs << " sequences: mean KL " << kl.mean << ", largest "
                      << kl.largest);
        CHECK(kl.mean <= kMeanKl);
        CHECK(kl.mean > 0);
      }
    }
  }

  TEST_CASE("bf16: mean KL divergence of decode steps over cut texts") {
    const Ids text = real_text(1024);
    for (const recipe::Cache& cache : {streaming(4, 40), streaming(4, 40, true)}) {
      CAPTURE(static_cast<bool>(cache.reposition));
      Setup setup{.caches = {cache}};
      const auto cpu = make_engine(tiny_model("tiny-16m"), setup);
      setup.compute = DType::bf16;
      setup.device = kGpu;
      const auto gpu = make_engine(tiny_model("tiny-16m"), setup);
      const Divergence kl =
          divergence(decode_steps(*cpu, text, 4, 130), decode_steps(*gpu, text, 4, 130));
      MESSAGE("mean KL " << kl.mean << ", largest " << kl.largest);
      CHECK(kl.mean <= kMeanKl);
      CHECK(kl.mean > 0);
    }
  }
}

TEST_SUITE("gpu/decode/golden") {
  TEST_CASE("f32: every supported architecture equals transformers") {
    golden::check_small_models(kGpu);
  }
  TEST_CASE("f32: logits and NLL of the tiny models equal transformers' at every length") {
    golden::check_tiny_logits(golden::Texts::shorter, kGpu);
    golden::check_tiny_logits(golden::Texts::longer, kGpu);
  }
  TEST_CASE("f32: greedy text of the tiny models equals transformers'") {
    golden::check_tiny_greedy(golden::Texts::shorter, kGpu);
    golden::check_tiny_greedy(golden::Texts::longer, kGpu);
  }
}
