// What keys and values of eight bits in host memory change in a model's answers and predictions:
// engines whose keys lie there, with the forward on the same CPU, so that it takes no GPU. Run by
// hand:
//
//     quality_host_dtype LENGTH CASES PROSE [SCORED]
//
// reads LENGTH tokens of the embedded model tiny-16m, at most CASES questions a task and windows of
// PROSE, and prints a line of JSON for each policy: right answers with keys as they are and with
// those of eight bits, the cases where one alone is right, and on the last SCORED tokens (256) of
// the windows, after a dense prompt, the divergence of predictions and the difference of losses.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "eval/perplexity.h"
#include "eval/protocols.h"
#include "ops/sampling.h"
#include "source_dir.h"

using namespace tandem;
using recipe::HostDtype;

namespace {

struct Settings {
  int length, cases, scored = 256;
  std::string prose;
};

constexpr int kGroup = 4;  // cases at once
constexpr size_t kChunk = 64;

std::vector<eval::NamedPolicy> policies() {
  const auto named = [](const char* name, recipe::CacheKind kind) {
    eval::NamedPolicy p{name, {}};
    p.cache.kind = kind;
    p.cache.place = recipe::CachePlace::host;
    p.cache.index = recipe::IndexPlace::host;
    p.cache.dense_layers = {0};
    return p;
  };
  std::vector<eval::NamedPolicy> all = {named("hybrid-1", recipe::CacheKind::hybrid),
                                        named("hybrid-5", recipe::CacheKind::hybrid),
                                        named("lsh-8-150", recipe::CacheKind::lsh)};
  all[0].cache.hybrid.exact = {0.0125};
  all[1].cache.hybrid.exact = {0.05};
  all[2].cache.lsh.bits = 8;
  return all;
}

std::unique_ptr<decode::Engine> engine_of(eval::NamedPolicy policy, HostDtype dtype,
                                          decode::EngineSpec (*spec_of)(const eval::NamedPolicy&,
                                                                        const Settings&),
                                          const Settings& s) {
  policy.cache.host_dtype = dtype;
  const std::string model = (test::source_dir() / "recipes/models/tiny-16m").string();
  return std::make_unique<decode::Engine>(decode::open_model(model, 0), spec_of(policy, s));
}

decode::EngineSpec question_spec(const eval::NamedPolicy& p, const Settings& s) {
  return eval::case_engine_spec({p}, DType::f32, 512, s.length, kGroup);
}

decode::EngineSpec text_spec(const eval::NamedPolicy& p, const Settings& s) {
  return eval::text_engine_spec({p}, DType::f32, s.length, s.scored, 512);
}

/// Answers of a task, one engine.
std::vector<bool> answers(decode::Engine& engine, eval::Task task, const Settings& s) {
  const eval::CaseGenerator generator(*engine.tokenizer(), {}, 0);
  std::vector<bool> correct;
  for (int first = 0; first < s.cases; first += kGroup) {
    std::vector<eval::Case> cases;
    for (int i = first; i < std::min(s.cases, first + kGroup); ++i)
      cases.push_back(
          generator.make(task, static_cast<size_t>(s.length), static_cast<uint32_t>(i)));
    for (const auto& outcomes :
         eval::run_cases(engine, cases, {{eval::Protocol::sparse}, {eval::Score::forced}}))
      correct.push_back(outcomes.front().correct);
  }
  return correct;
}

/// Log probabilities that follow a window's last tokens, [scored, V].
std::vector<std::vector<float>> predictions(decode::Engine& engine, const eval::Ids& ids,
                                            const Settings& s) {
  std::vector<std::vector<float>> rows;
  const int slot = engine.cache().create();
  const size_t first = ids.size() - static_cast<size_t>(s.scored) - 1;
  const decode::SeqTokens prompt{slot, std::span(ids).first(first), true};
  engine.prefill({&prompt, 1}, [](std::span<const size_t>, const Tensor&) {});
  for (size_t at = first; at + 1 < ids.size(); at += kChunk) {
    const decode::SeqTokens part{
        slot, std::span(ids).subspan(at, std::min(kChunk, ids.size() - 1 - at)), true};
    engine.forward_all(kv::Phase::extend, {&part, 1}, [&](int, const Tensor& logits) {
      const ops::LogitStats stats = ops::logit_stats(logits);
      for (int64_t r = 0; r < logits.rows(); ++r) {
        const float* row = logits.slice(r, 1).as<float>();
        std::vector<float>& to = rows.emplace_back(row, row + logits.row_size());
        for (float& x : to) x -= stats.lse[static_cast<size_t>(r)];
      }
    });
  }
  engine.cache().release(slot);
  return rows;
}

nlohmann::ordered_json on_questions(const eval::NamedPolicy& policy, const Settings& s) {
  using enum eval::Task;
  const auto wide = engine_of(policy, HostDtype::automatic, question_spec, s),
             narrow = engine_of(policy, HostDtype::int8, question_spec, s);
  nlohmann::ordered_json tasks;
  for (const auto& [name, task] :
       {std::pair{"needle1", needle1}, std::pair{"needle8", needle8}, std::pair{"kv", kv},
        std::pair{"vt", vt}, std::pair{"cwe", cwe}}) {
    const std::vector<bool> a = answers(*wide, task, s), b = answers(*narrow, task, s);
    int right = 0, right_narrow = 0, lost = 0, won = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      right += a[i] ? 1 : 0;
      right_narrow += b[i] ? 1 : 0;
      lost += a[i] && !b[i] ? 1 : 0;
      won += b[i] && !a[i] ? 1 : 0;
    }
    tasks[name] = {{"cases", a.size()},
                   {"right", right},
                   {"right_int8", right_narrow},
                   {"lost", lost},
                   {"won_instead", won}};
  }
  return tasks;
}

nlohmann::ordered_json on_text(const eval::NamedPolicy& policy, const Settings& s) {
  const auto wide = engine_of(policy, HostDtype::automatic, text_spec, s),
             narrow = engine_of(policy, HostDtype::int8, text_spec, s);
  const auto windows = eval::longer_windows(eval::load_windows(s.prose, wide->files(), s.length),
                                            s.scored + 1, s.cases, "SCORED");
  std::vector<eval::Block> kl, difference, loss;
  int64_t agreed = 0, n = 0;
  for (const eval::Window& window : windows) {
    const auto p = predictions(*wide, window.ids, s), q = predictions(*narrow, window.ids, s);
    for (auto* blocks : {&kl, &difference, &loss}) blocks->emplace_back();
    for (size_t r = 0; r < p.size(); ++r, ++n) {
      double sum = 0;
      for (size_t i = 0; i < p[r].size(); ++i)
        sum += std::exp(double{p[r][i]}) * (double{p[r][i]} - double{q[r][i]});
      const auto next = static_cast<size_t>(window.ids[window.ids.size() - p.size() + r]);
      kl.back().add(sum);
      loss.back().add(-double{p[r][next]});
      difference.back().add(double{p[r][next]} - double{q[r][next]});
      agreed += std::ranges::max_element(p[r]) - p[r].begin() ==
                        std::ranges::max_element(q[r]) - q[r].begin()
                    ? 1
                    : 0;
    }
  }
  const auto json = [](const std::vector<eval::Block>& blocks) {
    const eval::Estimate e = eval::mean_of_blocks(blocks);
    return nlohmann::ordered_json{{"mean", e.mean}, {"stderr", e.stderr_.value_or(0)}};
  };
  return {{"windows", windows.size()},
          {"tokens", n},
          {"nll", json(loss)},
          {"nll_difference", json(difference)},
          {"kl", json(kl)},
          {"top1_agree", static_cast<double>(agreed) / static_cast<double>(n)}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: quality_host_dtype LENGTH CASES PROSE [SCORED]\n");
    return 2;
  }
  try {
    Settings s{.length = std::stoi(argv[1]), .cases = std::stoi(argv[2]), .prose = argv[3]};
    if (argc > 4) s.scored = std::stoi(argv[4]);
    for (const eval::NamedPolicy& policy : policies()) {
      const nlohmann::ordered_json line = {{"policy", policy.name},
                                           {"context_tokens", s.length},
                                           {"compute", "f32"},
                                           {"text", on_text(policy, s)},
                                           {"questions", on_questions(policy, s)}};
      fmt::print("{}\n", line.dump());
      std::fflush(stdout);
    }
  } catch (const Error& e) {
    fmt::print(stderr, "error: {}\n", e.message());
    return 1;
  }
}
