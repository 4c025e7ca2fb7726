#include <doctest/doctest.h>

#include "generate_runs.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

using namespace tandem;
using namespace tandem::test;
using decode::Finish;
using decode::GenerateSpec;

namespace {

/// Gives each sequence the next tokens of its script, several a step, whatever the model says.
class Scripted final : public decode::Decoder {
 public:
  Scripted(std::vector<Ids> scripts, size_t a_step)
      : scripts_(std::move(scripts)), given_(scripts_.size()), a_step_(a_step) {}

  void start(const decode::SamplerSpec&) override {}
  int depth() const override { return 1; }
  int in_flight() const override { return drawn_.empty() ? 0 : 1; }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor&) override { give(seqs, 1); }
  void step(std::span<const decode::DrawSeq> seqs) override { give(seqs, a_step_); }
  std::vector<std::vector<decode::Drawn>> collect() override { return std::exchange(drawn_, {}); }
  void forget(int) override {}
  double bytes_read() const override { return 0; }

 private:
  void give(std::span<const decode::DrawSeq> seqs, size_t n) {
    for (const decode::DrawSeq& s : seqs) {
      const auto i = static_cast<size_t>(s.seq);
      std::vector<decode::Drawn>& drawn = drawn_.emplace_back();
      for (size_t k = 0; k < n && given_[i] < scripts_[i].size(); ++k)
        drawn.push_back({.id = scripts_[i][given_[i]++], .logprob = 0, .top = {}});
    }
  }

  std::vector<Ids> scripts_;
  std::vector<size_t> given_;
  size_t a_step_;
  std::vector<std::vector<decode::Drawn>> drawn_;
};

decode::Engine& engine() {
  static const auto made = make_engine(tiny_model("tiny-2m"), {.max_tokens = 64});
  return *made;
}
const text::Tokenizer& tokenizer() { return *engine().tokenizer(); }

/// One sequence for each script, each as long as its script unless something stops it.
Generated play(const std::vector<Ids>& scripts, GenerateSpec spec, size_t a_step = 1) {
  Scripted decoder(scripts, a_step);
  spec.max_tokens = static_cast<int>(scripts[0].size());
  return generate(engine(), std::vector(scripts.size(), request({20})), spec, &decoder);
}

Ids ids_of(std::string_view text) { return tokenizer().encode(text, {.add_bos = false}); }

/// What one script shows under one stop string, which it must meet after `n` tokens.
std::string shown(std::string_view text, const std::string& stop, size_t n) {
  GenerateSpec spec;
  spec.stops = {stop};
  const Generated g = play({ids_of(text)}, spec);
  CAPTURE(stop);
  CHECK(g.finish[0] == Finish::stop_string);
  CHECK(g.ids[0].size() == n);
  return g.text[0];
}

}  // namespace

TEST_SUITE("decode/stops") {
  const std::string kText = "One<|eot_id|><|reserved_0|>END two";

  TEST_CASE("a stop string that is or holds special tokens ends the text, and shows nothing") {
    const size_t one = ids_of("One").size(), end = ids_of("END").size();
    REQUIRE(ids_of(kText).size() == one + 2 + end + ids_of(" two").size());
    CHECK(shown(kText, "<|eot_id|>", one + 1) == "One");
    CHECK(shown(kText, "ne<|eot_id|>", one + 1) == "O");
    CHECK(shown(kText, "<|reserved_0|>", one + 2) == "One");
    CHECK(shown(kText, "<|eot_id|><|reserved_0|>", one + 2) == "One");
    CHECK(shown(kText, "|><|res", one + 2) == "One");
    CHECK(shown(kText, "<|reserved_0|>END", one + 2 + end) == "One");
    CHECK(shown(kText, "e<|eot_id|><|reserved_0|>E", one + 3) == "On");
    CHECK(shown(kText, "END", one + 2 + end) == "One");
  }

  TEST_CASE("text held for a stop string that does not come is shown, special tokens are not") {
    GenerateSpec spec;
    spec.stops = {"One<|eot_id|>x", "<|reserved_0|>END.", "two!"};
    const Generated g = play({ids_of(kText)}, spec);
    CHECK(g.finish[0] == Finish::length);
    CHECK(g.text[0] == "OneEND two");
    spec.stops.clear();
    CHECK(play({ids_of(kText)}, spec).text[0] == "OneEND two");
  }

  TEST_CASE("a stop id ends the text; a stop string that it completes does not show") {
    Ids script = ids_of("One two");
    script.insert(script.end(), {4, 40, 41});
    GenerateSpec spec;
    spec.stop_ids = {4};
    for (const auto& [stops, text] : {std::pair{std::vector<std::string>{}, "One two"},
                                      {{"two<|eot_id|>"}, "One "},
                                      {{"two<|eot_id|>!"}, "One two"}}) {
      spec.stops = stops;
      const Generated g = play({script}, spec);
      CHECK(g.finish[0] == Finish::stop_id);
      CHECK(g.ids[0].back() == 4);
      CHECK(g.text[0] == text);
    }
    spec.stop_ids = {ids_of(" two").back()};  // a token that is text does not show either
    CHECK(play({script}, spec).text[0] == "One");
  }

  TEST_CASE("random tokens, stops, batches and steps: as by the definition") {
    PhiloxStream draw(3);
    const Ids emoji = ids_of("\U0001F600"), letters = ids_of("ab");
    REQUIRE(emoji.size() > 1);  // parts of a character, between which special tokens come, too
    Ids words = {4, 6, 6};
    words.insert(words.end(), emoji.begin(), emoji.end());
    words.insert(words.end(), letters.begin(), letters.end());
    const std::string pieces[] = {"<|eot_id|>", "<|reserved_0|>", "|>", "<|", "\U0001F600", "a",
                                  "b"};
    int n_stopped = 0;
    for (int run = 0; run < 300; ++run) {
      CAPTURE(run);
      std::vector<Ids> scripts(1 + draw.below(3));
      for (Ids& script : scripts)
        while (script.size() < 12)
          script.push_back(words[draw.below(static_cast<uint32_t>(words.size()))]);
      GenerateSpec spec;
      for (uint32_t n = 1 + draw.below(2); n > 0; --n) {
        std::string& stop = spec.stops.emplace_back();
        for (uint32_t k = 1 + draw.below(3); k > 0; --k) stop += pieces[draw.below(7)];
      }
      const Generated g = play(scripts, spec, 1 + draw.below(4));
      for (size_t i = 0; i < scripts.size(); ++i) {
        CAPTURE(i);
        std::string all;          // special tokens included
        std::vector<bool> shows;  // of its bytes
        size_t begin = std::string::npos, n = 0;
        while (n < scripts[i].size() && begin == std::string::npos) {
          const int32_t id = scripts[i][n++];
          for (const char byte : tokenizer().token_bytes(id)) {
            all += byte;
            shows.push_back(!tokenizer().is_special(id));
            for (const std::string& stop : spec.stops)
              if (begin == std::string::npos || all.size() - stop.size() < begin)
                if (all.ends_with(stop)) begin = all.size() - stop.size();
            if (begin != std::string::npos) break;
          }
        }
        const bool stopped = begin != std::string::npos;
        n_stopped += stopped ? 1 : 0;
        std::string want;
        text::Utf8Assembler characters;
        for (size_t k = 0; k < std::min(begin, all.size()); ++k)
          if (shows[k]) characters.append(all.substr(k, 1), want);
        characters.finish(want);
        REQUIRE(g.text[i] == want);
        REQUIRE(g.ids[i].size() == n);
        REQUIRE(g.finish[i] == (stopped ? Finish::stop_string : Finish::length));
      }
    }
    CHECK(n_stopped > 100);
  }
}
