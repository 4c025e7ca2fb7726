#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "eval/eval_testing.h"
#include "eval/perplexity.h"
#include "io/file.h"
#include "io/json.h"
#include "ops/sampling.h"
#include "temporary_folder.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::DType;

namespace {

struct IdsFile {
  tandem::test::TemporaryFolder folder;
  std::filesystem::path path;

  explicit IdsFile(const std::string& text) : path(folder.write("ids.json", text)) {}
};

/// One document each.
std::vector<Window> windows_of(const std::vector<Ids>& texts) {
  std::vector<Window> windows;
  for (const Ids& ids : texts) windows.push_back({ids, static_cast<int>(windows.size())});
  return windows;
}

std::vector<TextQuality> measure(const std::string& model, const std::vector<NamedPolicy>& policies,
                                 const std::vector<Ids>& texts, int context) {
  const auto engine = make_engine(model, text_engine_spec(policies, DType::f32, context));
  return measure_text(*engine, windows_of(texts), 0, {});
}

const tandem::io::Json& golden() {
  static const auto json = tandem::io::parse_json(
      tandem::io::read_file(source_dir() / "tests/data/golden/tiny/logits.json"), "logits.json");
  return json;
}

Ids golden_ids(size_t n) {
  Ids ids = golden().at("ids");
  ids.resize(n);
  return ids;
}

}  // namespace

TEST_SUITE("eval/perplexity") {
  TEST_CASE("mean NLL equals transformers' at every length") {
    const std::string model = "tiny-2m";
    int n_compared = 0;
    for (const auto& c : golden().at("cases")) {
      const auto length = c.at("length").get<int>();
      if (c.at("model") != model || c.at("mean_nll").is_null() || length > 4096) continue;
      CAPTURE(length);
      const auto text = measure(model, {full()}, {golden_ids(static_cast<size_t>(length))}, length);
      CHECK(text[0].n_tokens == length - 1);
      CHECK(std::abs(text[0].nll.mean - c.at("mean_nll").get<double>()) <= 1e-4);
      CHECK(text[0].ppl.mean == doctest::Approx(std::exp(text[0].nll.mean)));
      ++n_compared;
    }
    CHECK(n_compared >= 3);
  }

  TEST_CASE("full attention does not part from itself, nor does a window of everything") {
    const auto text =
        measure("tiny-2m", {full(), full(), streaming(0, 700)}, {golden_ids(700)}, 700);
    for (size_t i = 1; i < 3; ++i) {
      CHECK(text[i].kl.mean <= 1e-6);
      CHECK(text[i].kl_p99 <= 1e-6);
      CHECK(text[i].top1_agree == 1.0);
      CHECK(std::abs(text[i].nll_difference.mean) <= 1e-6);
    }
  }

  TEST_CASE("a window in chunks equals tokens one at a time, and costs likelihood") {
    const NamedPolicy policy = streaming(4, 32);
    const Ids ids = golden_ids(400);
    const auto text = measure("tiny-2m", {full(), policy}, {ids}, 400);
    CHECK(text[1].nll_difference.mean > 0);
    CHECK(text[1].kl.mean > 1e-3);
    CHECK(text[1].kl_p99 > text[1].kl.mean);
    CHECK(text[1].top1_agree < 1.0);
    // One token at a time through the same policy.
    const auto engine = make_engine("tiny-2m", text_engine_spec({policy}, DType::f32, 400));
    const int slot = engine->cache().create();
    double nll = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const tandem::decode::SeqTokens part[] = {{slot, std::span(ids).subspan(i, 1), true}};
      const auto logits = engine->extend(part);
      nll +=
          double{tandem::ops::logit_stats(logits).lse[0]} - double{logits.as<float>()[ids[i + 1]]};
    }
    CHECK(text[1].nll.mean == doctest::Approx(nll / 399).epsilon(1e-5));
  }

  TEST_CASE("percentiles interpolate between order statistics") {
    // The first token sees itself alone, so its KL is 0: 99 % of the way to that of the second.
    const auto text = measure("tiny-2m", {full(), streaming(0, 1)}, {golden_ids(3)}, 3);
    CHECK(text[1].kl.mean > 1e-4);
    CHECK(text[1].kl_p99 == doctest::Approx(0.99 * 2 * text[1].kl.mean).epsilon(1e-4));
  }

  TEST_CASE("windows share no context and their tokens add up") {
    const Ids a = golden_ids(300), b(a.begin() + 100, a.begin() + 180);
    const auto both = measure("tiny-2m", {full()}, {a, b}, 300)[0];
    const auto first = measure("tiny-2m", {full()}, {a}, 300)[0];
    const auto second = measure("tiny-2m", {full()}, {b}, 300)[0];
    CHECK(both.n_tokens == 299 + 79);
    CHECK(both.nll.mean ==
          doctest::Approx((first.nll.mean * 299 + second.nll.mean * 79) / 378).epsilon(1e-6));
    CHECK(both.nll.stderr_);
  }

  TEST_CASE("text is cut into windows that begin with BOS, ids as they are") {
    const auto files = tandem::decode::open_model(model_path("tiny-2m"), 0);
    const auto text = load_windows(source_dir() / "recipes/demo/questions.txt", files, 32);
    REQUIRE(text.size() > 2);
    for (const Window& window : text) CHECK(window.ids[0] == *tokenizer().bos_id());
    for (size_t i = 0; i + 1 < text.size(); ++i) CHECK(text[i].ids.size() == 32);
    const IdsFile ids("[5, 6, 7, 8, 9, 10, 11]");
    const auto windows = load_windows(ids.path, files, 3);
    REQUIRE(windows.size() == 2);
    CHECK(windows[0].ids == Ids{5, 6, 7});
    CHECK(windows[1].ids == Ids{8, 9, 10});
    for (const char* bad : {"{}", "[1.5]", "[8192]", "[-1, 2]", "[1]", "[]", "[1, 2"}) {
      const IdsFile file(bad);
      CHECK_THROWS_AS(load_windows(file.path, files, 3), tandem::Error);
    }
  }

  TEST_CASE("answers of questions are scored after their prompts") {
    const auto files = tandem::decode::open_model(model_path("tiny-2m"), 0);
    const tandem::test::TemporaryFolder folder;
    const auto path = folder.write(
        "gold.jsonl",
        R"({"prompt": "The lamp was lit when the boat came in.", "answer": " It was late."}
{"prompt": "The lamp", "question": " was", "answer": [" lit", " dim"]})");
    std::vector<Window> windows = load_answers(path, files, 64, 0, 5);
    REQUIRE(windows.size() == 2);
    std::ranges::sort(windows, {}, &Window::scored);
    const auto& tokenizer = *files.tokenizer;
    CHECK(tokenizer.decode(windows[0].ids, true) == "The lamp was lit");
    CHECK(windows[0].document != windows[1].document);
    const auto& [ids, document, scored] = windows[1];
    CHECK(tokenizer.decode(std::span(ids).last(static_cast<size_t>(scored))) == " It was late.");
    CHECK_THROWS_AS(load_answers(path, files, 8, 0, 5), tandem::Error);
    const auto choices = folder.write(
        "choices.jsonl", R"({"prompt": "The lamp was", "choices": ["red", "lit"], "answer": 1})");
    CHECK(load_answers(choices, files, 64, 0, 5).front().ids == windows[0].ids);

    // Losses are those of the window's last tokens, whatever the setting for texts says.
    const auto of_last = [&](int last, int setting) {
      const std::vector<Window> one = {{ids, 0, last}};
      const auto engine =
          make_engine("tiny-2m", text_engine_spec({full(), streaming(0, 1)}, DType::f32, 64, 12));
      return measure_text(*engine, one, setting, {});
    };
    const auto answer = of_last(scored, 2), text = of_last(0, scored);
    CHECK(answer[0].n_tokens == scored);
    CHECK(answer[0].nll.mean == text[0].nll.mean);
    CHECK(answer[1].kl.mean > 1e-3);
    const auto both =
        measure_text(*make_engine("tiny-2m", text_engine_spec({full()}, DType::f32, 64, scored)),
                     windows, 0, {});
    CHECK(both[0].n_tokens == windows[0].scored + windows[1].scored);
    REQUIRE(both[0].nll.stderr_);
  }

  TEST_CASE("scored tokens continue one dense prefill, under every policy") {
    const std::vector<NamedPolicy> policies = {full(), streaming(4, 32), full(), sparse("topk")};
    const std::vector<Window> windows = windows_of({golden_ids(600)});
    const auto engine = make_engine("tiny-2m", text_engine_spec(policies, DType::f32, 600, 300));
    const int before = engine->cache().store().free_pages();
    const auto text = measure_text(*engine, windows, 300, {});
    CHECK(engine->cache().store().free_pages() == before);
    // The last 300 of the losses of the whole window.
    const auto whole = measure("tiny-2m", {full()}, {golden_ids(600)}, 600)[0],
               first = measure("tiny-2m", {full()}, {golden_ids(300)}, 600)[0];
    for (const TextQuality& q : text) CHECK(q.n_tokens == 300);
    CHECK(text[0].nll.mean ==
          doctest::Approx((whole.nll.mean * 599 - first.nll.mean * 299) / 300).epsilon(1e-5));
    CHECK(text[1].kl.mean > 1e-3);
    CHECK(text[2].kl.mean <= 1e-6);
    CHECK(text[3].kl.mean > 1e-6);
    // The prompt is read densely: the policy's error is that of its own rows alone.
    const auto engine_of_one =
        make_engine("tiny-2m", text_engine_spec({full(), streaming(4, 32)}, DType::f32, 600));
    const auto all = measure_text(*engine_of_one, windows, 0, {});
    CHECK(all[1].n_tokens == 599);
    CHECK(text[1].nll_difference.mean != all[1].nll_difference.mean);
  }

  TEST_CASE("standard errors take documents as independent, in one document blocks of tokens") {
    const Ids a = golden_ids(500), b(a.begin() + 100, a.begin() + 400), c(a.begin() + 50, a.end());
    const std::vector<NamedPolicy> policies = {full(), streaming(4, 32)};
    const auto engine = make_engine("tiny-2m", text_engine_spec(policies, DType::f32, 500));
    const std::vector<Window> windows = {{a, 0}, {b, 0}, {c, 1}};
    const TextQuality both = measure_text(*engine, windows, 0, {})[1];
    const TextQuality first = measure_text(*engine, {windows.data(), 2}, 0, {})[1],
                      second = measure_text(*engine, {windows.data() + 2, 1}, 0, {})[1];
    const auto error_of = [&](double x, double y) {
      const auto n = static_cast<double>(first.n_tokens), m = static_cast<double>(second.n_tokens);
      const Block documents[] = {{x * n, first.n_tokens}, {y * m, second.n_tokens}};
      return *mean_of_blocks(documents).stderr_;
    };
    REQUIRE(both.kl.stderr_);
    CHECK(*both.kl.stderr_ == doctest::Approx(error_of(first.kl.mean, second.kl.mean)));
    CHECK(*both.nll.stderr_ == doctest::Approx(error_of(first.nll.mean, second.nll.mean)));
    CHECK(first.kl.stderr_);  // blocks
  }

  TEST_CASE("a record separator ends a document, and with it a window") {
    const auto files = tandem::decode::open_model(model_path("tiny-2m"), 0);
    const tandem::test::TemporaryFolder folder;
    const std::string one = "The lamp was lit. The sea was calm that night, and no ship came.",
                      two = "It rained.";
    const auto windows = load_windows(folder.write("two.txt", one + "\x1e" + two), files, 12);
    REQUIRE(windows.size() >= 3);
    Ids joined[2];
    for (const Window& w : windows) {
      CHECK(w.ids[0] == *tokenizer().bos_id());
      joined[w.document].insert(joined[w.document].end(), w.ids.begin() + 1, w.ids.end());
    }
    CHECK(tokenizer().decode(joined[0], true) == one);
    CHECK(tokenizer().decode(joined[1], true) == two);
    CHECK(windows.back().document == 1);
  }

  TEST_CASE("progress can end it") {
    const auto engine = make_engine("tiny-2m", text_engine_spec({full()}, DType::f32, 600));
    const std::vector<Window> windows = windows_of({golden_ids(600), golden_ids(600)});
    int64_t last = 0;
    const int before = engine->cache().store().free_pages();
    CHECK(measure_text(*engine, windows, 0, [&](int64_t done) {
            last = done;
            return done < 300;
          }).empty());
    CHECK(last == 512);
    CHECK(engine->cache().store().free_pages() == before);
  }
}
